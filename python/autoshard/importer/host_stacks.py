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

from collections.abc import Mapping

from autoshard.ir import mlir
from autoshard.ir.host_memory import PINNED_HOST, moved_to
from autoshard.ir.module import functions_of

THROUGH_HOST = frozenset(
    {
        *("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice", "stablehlo.slice"),
        *("stablehlo.reshape", "stablehlo.broadcast_in_dim"),
    }
)
"""Ops whose result is on the host where what they place is there."""

_SAME = frozenset(
    {"stablehlo.optimization_barrier", "sdy.sharding_constraint", "stablehlo.custom_call"}
)
_ZEROS = ("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.reshape")


def placed_operands(op: mlir.Operation) -> list[mlir.Value]:
    """Operands that an op of ``THROUGH_HOST`` places in its result: one on the host decides."""
    return list(op.operands)[: 2 if op.name == "stablehlo.dynamic_update_slice" else 1]


def host_stacks(module: mlir.Module, main: mlir.Operation) -> set[mlir.Value]:
    """What is on the host besides values that are moved there and what is made of these.

    Carried values of loops, as their bodies see them, and the zeros that such loops start with.
    """
    search = _Search(functions_of(module))
    search.block(main.regions[0].blocks[0], {})
    return search.carried | {value for value in search.starts if search.is_for_host_alone(value)}


class _Search:
    def __init__(self, functions: Mapping[str, mlir.Operation]) -> None:
        self.functions = functions
        self.carried: set[mlir.Value] = set()
        self.starts: set[mlir.Value] = set()

    def block(self, block: mlir.Block, on_host: dict[mlir.Value, bool]) -> list[bool]:
        """Follow a block; whether each value that it ends with is on the host.

        Args:
            block: Of a function or a loop.
            on_host: Of its arguments, and what is outside of it; values of the block are added.
        """
        for each in block.operations:
            self.op(each.operation, on_host)
        last = block.operations[len(block.operations) - 1].operation
        return [on_host.get(value, False) for value in last.operands]

    def op(self, op: mlir.Operation, on_host: dict[mlir.Value, bool]) -> None:
        operands = [on_host.get(value, False) for value in op.operands]
        results = [False] * len(op.results)
        if op.name == "func.call":
            results = self.call(op, operands)
        elif op.name == "stablehlo.while":
            results = self.loop(op, operands, on_host)
        elif (kind := moved_to(op)) is not None:
            results = [kind == PINNED_HOST]
        elif op.name in THROUGH_HOST:
            results = [any(operands[: len(placed_operands(op))])]
        elif op.name in _SAME and len(operands) == len(results):
            results = operands
        on_host.update(zip(op.results, results, strict=True))

    def call(self, op: mlir.Operation, operands: list[bool]) -> list[bool]:
        callee = self.functions[mlir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        block = callee.regions[0].blocks[0]
        return self.block(block, dict(zip(block.arguments, operands, strict=True)))

    def loop(
        self, op: mlir.Operation, operands: list[bool], around: dict[mlir.Value, bool]
    ) -> list[bool]:
        body = op.regions[1].blocks[0]
        carried = list(operands)
        while True:  # ends: values only come to the host
            inside = {**around, **dict(zip(body.arguments, carried, strict=True))}
            yielded = self.block(body, inside)
            grown = [a or b for a, b in zip(carried, yielded, strict=True)]
            if grown == carried:
                break
            carried = grown
        for number, is_on_host in enumerate(carried):
            if is_on_host:
                self.carried.add(body.arguments[number])
                if not operands[number]:
                    self.starts.add(op.operands[number])
        return carried

    def is_for_host_alone(self, value: mlir.Value) -> bool:
        """Whether ``value`` is zeros or the like, and only starts what loops have on the host."""
        owner = value.owner
        if isinstance(owner, mlir.Block) or owner.operation.name not in _ZEROS:
            return False
        for use in value.uses:
            loop = use.owner.operation
            if loop.name != "stablehlo.while":
                return False
            if loop.regions[1].blocks[0].arguments[use.operand_number] not in self.carried:
                return False
        return True
