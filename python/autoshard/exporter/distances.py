"""How far apart two readers of a value are, as the core's search counts it."""

from __future__ import annotations

from autoshard.exporter.callees import callee_of, name_of
from autoshard.ir import mlir
from autoshard.planned.module import Kind, PlannedBlock, PlannedModule, PlannedOp

_NEAR_SHARE, _NEAR_OPS = 1 / 16, 64
"""Readers of a value share a copy while the next one is at most this part of the program's ops
away, or this many: ``search_copy_distance`` of the core counts the same."""

_NO_OPS_OF_CORE = frozenset(
    {
        *("func.call", "func.return", "stablehlo.return"),
        *("stablehlo.while", "stablehlo.case", "stablehlo.if"),
        *("stablehlo.optimization_barrier", "stablehlo.constant", "stablehlo.iota"),
    }
)
"""What the core's program has no op for: calls are what they call, values pass through others."""


def is_op_of_core(op: mlir.Operation) -> bool:
    """Whether the core's program may have an op for this one."""
    return op.name not in _NO_OPS_OF_CORE


class Distances:
    """Counts the core's ops, those of callees and of one trip of loops included."""

    def __init__(self, plan: PlannedModule) -> None:
        self._bodies = {name_of(function.op): function.body for function in plan.functions}
        self._sizes: dict[str, int] = {}
        total = sum(self._ops_in(f.body) for f in plan.functions if f.is_entry)
        self._near = max(_NEAR_OPS, int(_NEAR_SHARE * total))

    def are_near(self, one: int, other: int) -> bool:
        """Whether readers share a copy, before which so many ops of the program run."""
        return abs(one - other) <= self._near

    def ops_of(self, planned: PlannedOp) -> int:
        """How many ops the core has for this one."""
        op = planned.op
        inside = sum(map(self._ops_in, planned.blocks))
        if op.name == "func.call":
            name = callee_of(op)
            if name not in self._sizes:
                self._sizes[name] = self._ops_in(self._bodies[name])
            inside = self._sizes[name]
        is_one = (
            is_op_of_core(op)
            and planned.kind in (Kind.COMPUTE, Kind.RECOMPUTED)
            and len(op.results) > 0
            and any(_is_placed(value) for value in (*op.operands, *op.results))
        )
        return is_one + inside

    def _ops_in(self, block: PlannedBlock) -> int:
        return sum(map(self.ops_of, block.ops))


def _is_placed(value: mlir.Value) -> bool:
    """Whether ``value`` is a tensor of rank 1 or more."""
    return isinstance(value.type, mlir.RankedTensorType) and value.type.rank > 0
