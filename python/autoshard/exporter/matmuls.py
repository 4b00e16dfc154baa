"""Matmuls that compilers join with what stands behind them."""

from __future__ import annotations

from autoshard.exporter.copies import Copies
from autoshard.ir import mlir, stablehlo
from autoshard.planned.module import Placement, PlannedOp
from autoshard.sharding.sharding import AxisRef

_DOT = "stablehlo.dot_general"
_MATMULS = frozenset({_DOT, "stablehlo.convolution"})
_VIEWS = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
"""Ops that compilers make a part of the matmul before them."""


def is_contracted_in_a_batch(op: mlir.Operation) -> bool:
    """Whether all that is done to the result of a matmul is a batch of matmuls over its columns.

    Reshapes may stand between.
    """
    if op.name != _DOT:
        return False
    (value,) = op.results
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return False
        reader = uses[0].owner.operation
        if reader.name != "stablehlo.reshape":
            break
        (value,) = reader.results
    if reader.name != _DOT:
        return False
    numbers = stablehlo.DotDimensionNumbers(reader.attributes["dot_dimension_numbers"])
    is_left = uses[0].operand_number == 0
    contracted = (
        numbers.lhs_contracting_dimensions if is_left else numbers.rhs_contracting_dimensions
    )
    last = mlir.RankedTensorType(value.type).rank - 1
    return bool(numbers.lhs_batching_dimensions) and list(contracted) == [last]


def scattered_axes(planned: PlannedOp) -> frozenset[AxisRef]:
    """Axes that cut batch dims of a matmul's result and not those of its operands: parts of a sum
    are added up over them, and scattered.

    XLA's partitioner adds them up, gathers the whole result, and slices it. Where a constraint says
    first how the sum lies, it adds up and slices alone, of which compilers make a reduce-scatter.

    Example:
        ``[{dp}, {tp}, {}], [{dp}, {tp}, {}] -> [{dp, tp}, {}, {}]``, contracted along ``tp``.
    """
    op = planned.op
    if op.name != _DOT or planned.computed[0] is None:
        return frozenset()
    cuts = planned.computed[0].sharding.dims
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    found: set[AxisRef] = set()
    batching = zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions, strict=True)
    for dim, in_operands in enumerate(batching):
        for operand, place in zip(planned.operands, in_operands, strict=True):
            if operand is not None:
                cut = operand.sharding.dims[place]
                found.update(axis for axis in cuts[dim] if axis not in cut)
    return frozenset(found)


class JoinedViews:
    """Results of matmuls, and of views of them, that the constraint behind their reader places."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._joined: dict[mlir.Value, frozenset[AxisRef]] = {}
        """With the axes over which they are scattered."""

    def scattered(self, planned: PlannedOp) -> frozenset[AxisRef]:
        """The axes over which the result of a matmul, or of a view of one, is scattered."""
        if planned.op.name in _VIEWS:
            return self._joined.get(planned.op.operands[0], frozenset())
        return scattered_axes(planned)

    def take(
        self,
        planned: PlannedOp,
        result: mlir.Value,
        computed: Placement | None,
        final: Placement | None,
    ) -> bool:
        """Whether ``result`` is one: then what reads it may be one, too."""
        op = planned.op
        if op.name not in _MATMULS and not (op.name in _VIEWS and op.operands[0] in self._joined):
            return False
        wish = self._copies.only_wish(result)
        is_joined = (
            len(list(result.uses)) == 1
            and wish is not None
            and wish.reader.name in _VIEWS
            and wish.wanted is computed is final
        )
        if is_joined:
            self._joined[result] = self.scattered(planned)
        return is_joined
