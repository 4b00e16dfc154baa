"""What ops and values of a planned module cost, wherever they stand in it."""

from __future__ import annotations

from functools import cached_property

from autoshard import _core
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.work import MATRIX_OPS, is_elementwise
from autoshard.ir import mlir
from autoshard.planned.given_plan import Costed
from autoshard.planned.summarize import main_values
from autoshard.rewrites.numbering import has_effect

HELD = frozenset(
    (
        "stablehlo.while",
        "stablehlo.case",
        "stablehlo.if",
        "stablehlo.optimization_barrier",
        "stablehlo.rng",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.send",
        "stablehlo.recv",
        "func.call",
        "sdy.manual_computation",
    )
)
"""Ops that are never computed again: loops for their cost, the others for their meaning."""

_LOOPS = frozenset(("stablehlo.while", "stablehlo.case", "stablehlo.if"))
_FREE = frozenset(("stablehlo.constant", "stablehlo.iota"))


class PlanCosts:
    """Answers by op of the module, or by value of the core."""

    def __init__(self, costed: Costed) -> None:
        imported, plan = costed.imported, costed.plan
        compiler = costed.cluster.compiler
        operations, main = imported.operations, main_values(imported).op
        self.blocks = _core.PlannedBlocks(
            imported.read,
            imported.program,
            plan,
            compiler=compiler.to_core(),
            rounded=[(one.source, one.result) for one in imported.rounded.values()],
            kinds=[_kind(operations[op]) for op in imported.read.classes()],
            main_op=next(number for number, op in enumerate(operations) if op == main),
            parameters=sorted(imported.state),
            stores_behind_matmuls=compiler.does("fusion.matmul_results"),
        )
        """``main`` and the bodies of its loops."""
        # The core makes these lists anew each time that they are read.
        self.points = self.blocks.points
        """Program point of each op of the core."""
        self.value_sharding, self.op_strategy = plan.value_sharding, plan.op_strategy
        self.shardings, self.strategies = plan.shardings, plan.strategies
        self._imported = imported
        self._seconds, self._sends = self.blocks.seconds, self.blocks.sends
        self._bytes, self._element_bytes = self.blocks.bytes, self.blocks.element_bytes

    @cached_property
    def live_ranges(self) -> list[tuple[int, int]]:
        """Program point at which each value of the core is made, and the first without it or what
        it is rounded to."""
        return self.blocks.live_ranges

    @cached_property
    def _core_of(self) -> dict[mlir.Operation, int]:
        return {op: number for number, op in enumerate(self._imported.core_ops)}

    @cached_property
    def _trips(self) -> list[float]:
        return self._imported.program.op_trips

    def core_number(self, op: mlir.Operation) -> int:
        """Number of an op in the core; -1 if it is none there."""
        return self._core_of.get(op, -1)

    def seconds_of(self, op: mlir.Operation) -> float:
        """Seconds of all runs of an op in a step, with what it sends; 0 if the core has it not."""
        number = self.core_number(op)
        return 0.0 if number < 0 else self._seconds[number]

    def trips_of_core(self, number: int) -> float:
        """How often an op of the core runs in a step; 1 for -1."""
        return 1.0 if number < 0 else float(self._trips[number])

    def sends_result(self, op: mlir.Operation) -> bool:
        """Is the result of an op sent?"""
        number = self.core_number(op)
        return number >= 0 and self._sends[number]

    def bytes_of(self, core: int) -> float:
        """Bytes of a value of the core in the memory of one device."""
        return 0.0 if core == NO_VALUE else self._bytes[core]

    def sent_bytes_of(self, core: int) -> float:
        """Bytes of one device's part that a transfer sends: the elements, without padding."""
        return 0.0 if core == NO_VALUE else self._element_bytes[core]

    def is_stored(self, core: int) -> bool:
        """Does a value of the core take memory of its own?"""
        return core != NO_VALUE and self.live_ranges[core][1] > self.live_ranges[core][0]


def is_index(value: mlir.Value) -> bool:
    """Is a value one integer? The number of a trip says which layer is taken."""
    type_ = value.type
    return (
        isinstance(type_, mlir.RankedTensorType)
        and type_.rank == 0
        and isinstance(type_.element_type, mlir.IntegerType)
    )


def _kind(op: mlir.Operation) -> _core.OpKind:
    """What an op is, and all of its class."""
    name = op.name
    return _core.OpKind(
        is_held=name in HELD or has_effect(op),
        is_free=name in _FREE,
        is_while=name == "stablehlo.while",
        runs_regions=name in _LOOPS,
        is_matmul=name in MATRIX_OPS,
        is_elementwise=is_elementwise(name) or name == "stablehlo.reshape",
        makes_index=len(op.results) == 1 and is_index(op.results[0]),
    )
