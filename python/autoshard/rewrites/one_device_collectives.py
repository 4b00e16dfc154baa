"""Take out what a program of one device says to itself.

A ``shard_map`` over a mesh of one device leaves collectives among one device, and questions for its
number, in the program. Split over more devices they would mean others.

before  %1 = stablehlo.all_reduce(%0), replica_groups = [[0]]
        %2 = stablehlo.partition_id
after   %1 = %0
        %2 = stablehlo.constant 0
"""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.ir import mlir
from autoshard.ir.constants import zeros

_IN_GROUPS = frozenset(
    f"stablehlo.{name}"
    for name in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "reduce_scatter")
)
_PERMUTE = "stablehlo.collective_permute"
_NUMBERS = frozenset(("stablehlo.partition_id", "stablehlo.replica_id"))
COLLECTIVES = _IN_GROUPS | _NUMBERS | {_PERMUTE}


def drop_collectives_of_one(operations: Iterable[mlir.Operation]) -> bool:
    """Replace collectives among one device by their operands, and its number by zero.

    Args:
        operations: Of a program of one device, none of them in a manual computation.

    Returns:
        Whether there was any.
    """
    has_any = False
    for op in operations:
        if op.name in _NUMBERS:
            (result,) = op.results
            made = zeros(result.type, mlir.InsertionPoint(op), op.location)
            result.replace_all_uses_with(made.results[0])
        elif _is_of_one(op):
            for result, operand in zip(op.results, op.operands, strict=True):
                result.replace_all_uses_with(operand)
        else:
            continue
        op.erase()
        has_any = True
    return has_any


def _is_of_one(op: mlir.Operation) -> bool:
    if op.name in _IN_GROUPS:
        groups = mlir.RankedTensorType(mlir.DenseElementsAttr(op.attributes["replica_groups"]).type)
        return groups.shape[1] == 1
    if op.name == _PERMUTE:
        pairs = mlir.DenseIntElementsAttr(op.attributes["source_target_pairs"])
        return [pairs[k] for k in range(len(pairs))] == [0, 0]
    return False
