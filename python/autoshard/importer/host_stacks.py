"""Stacks that loops build in the memory of the host, slice by slice.

A remat policy that offloads moves a value of each layer to the host; ``scan`` stacks them:

    %0 = while(%stack = zeros) {
           %1 = custom_call @annotate_device_placement(%x) {.. = "pinned_host"}
           yield dynamic_update_slice(%stack, %1)
         }
    while(..) { %2 = custom_call @annotate_device_placement(dynamic_slice(%0)) {.. = "device"} .. }

XLA keeps the whole stack on the host, from the zeros on. What is moved there is followed through
the ops that only place it, to find what loops carry so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autoshard.ir import mlir
from autoshard.ir.host_memory import PINNED_HOST, moved_to
from autoshard.ir.module import functions_of

PLACED = {
    "stablehlo.dynamic_slice": 1,
    "stablehlo.dynamic_update_slice": 2,
    "stablehlo.slice": 1,
    "stablehlo.reshape": 1,
    "stablehlo.broadcast_in_dim": 1,
}
"""Ops whose result is on the host where what they place is there: their first operands."""

_SAME = frozenset(
    {"stablehlo.optimization_barrier", "sdy.sharding_constraint", "stablehlo.custom_call"}
)
_ZEROS = ("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.reshape")


def placed_operands(op: mlir.Operation) -> list[mlir.Value]:
    """Operands that an op of ``PLACED`` places in its result: one on the host decides."""
    return list(op.operands)[: PLACED[op.name]]


def host_stacks(module: mlir.Module, operations: Sequence[mlir.Operation]) -> set[mlir.Value]:
    """What is on the host besides values that are moved there and what is made of these.

    Carried values of loops, as their bodies see them, and the zeros that such loops start with.

    Args:
        module: Each call has a callee of its own.
        operations: All of the module.
    """
    calls = [op for op in operations if op.name == "func.call"]
    flow = _Flow(functions_of(module), {_callee(op): op for op in calls})
    moves = (op for op in operations if op.name == "stablehlo.custom_call")
    flow.follow(op.results[0] for op in moves if moved_to(op) == PINNED_HOST)
    starts = {
        value
        for loop in flow.loops
        for value, argument in zip(loop.operands, _body(loop).arguments, strict=True)
        if argument in flow.carried and value not in flow.on_host
    }
    return flow.carried | {value for value in starts if flow.is_for_host_alone(value)}


def _callee(call: mlir.Operation) -> str:
    return mlir.FlatSymbolRefAttr(call.attributes["callee"]).value


def _body(loop: mlir.Operation) -> mlir.Block:
    return loop.regions[1].blocks[0]


class _Flow:
    """Follows values from where they come to the host to what places them."""

    def __init__(
        self, functions: Mapping[str, mlir.Operation], calls: Mapping[str, mlir.Operation]
    ) -> None:
        self.functions, self.calls = functions, calls
        self.on_host: set[mlir.Value] = set()
        self.carried: set[mlir.Value] = set()
        """Those of them that a loop carries, as its body sees them."""
        self.loops: list[mlir.Operation] = []
        """Loops that carry some."""

    def follow(self, values: Iterable[mlir.Value]) -> None:
        """These are on the host, and what is made of them."""
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value in self.on_host:
                continue
            self.on_host.add(value)
            for use in value.uses:
                waiting += self._placed(use.owner.operation, use.operand_number)

    def _placed(self, op: mlir.Operation, number: int) -> list[mlir.Value]:
        """Values that are where an operand of an op is."""
        if op.name == "func.call":
            return [self.functions[_callee(op)].regions[0].blocks[0].arguments[number]]
        if op.name == "stablehlo.while":
            return self._carry(op, number)
        if op.name in ("stablehlo.return", "func.return"):
            return self._returned(op, number)
        if moved_to(op) is not None:
            return []
        if op.name in PLACED:
            return [op.results[0]] if number < len(placed_operands(op)) else []
        is_same = op.name in _SAME and len(op.operands) == len(op.results)
        return [op.results[number]] if is_same else []

    def _carry(self, loop: mlir.Operation, number: int) -> list[mlir.Value]:
        argument = _body(loop).arguments[number]
        if argument not in self.carried:
            self.carried.add(argument)
            self.loops.append(loop)
        return [argument, loop.results[number]]

    def _returned(self, end: mlir.Operation, number: int) -> list[mlir.Value]:
        """What becomes of a value with which a body of a loop, or a function, ends."""
        around = end.parent
        assert around is not None
        if around.name == "stablehlo.while" and end.block == _body(around):
            return self._carry(around, number)
        if around.name == "func.func":
            call = self.calls.get(mlir.StringAttr(around.attributes["sym_name"]).value)
            return [] if call is None else [call.results[number]]
        return []

    def is_for_host_alone(self, value: mlir.Value) -> bool:
        """Whether ``value`` is zeros or the like, and only starts what loops have on the host."""
        owner = value.owner
        if isinstance(owner, mlir.Block) or owner.operation.name not in _ZEROS:
            return False
        for use in value.uses:
            loop = use.owner.operation
            if loop.name != "stablehlo.while":
                return False
            if _body(loop).arguments[use.operand_number] not in self.carried:
                return False
        return True
