"""Matmuls that compilers join with what stands behind them."""

from __future__ import annotations

from autoshard.exporter.copies import Copies
from autoshard.ir import mlir, stablehlo
from autoshard.planned.module import Placement

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


class JoinedViews:
    """Results of matmuls, and of views of them, that the constraint behind their reader places."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._joined: set[mlir.Value] = set()

    def take(
        self,
        op: mlir.Operation,
        result: mlir.Value,
        computed: Placement | None,
        final: Placement | None,
    ) -> bool:
        """Whether ``result`` is one: then what reads it may be one, too."""
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
            self._joined.add(result)
        return is_joined
