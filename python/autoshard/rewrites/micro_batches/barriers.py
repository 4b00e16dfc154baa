"""Barriers of the loop that also wait for what is known behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from autoshard.ir import mlir

_Use = tuple[mlir.Operation, int]


def pass_by(
    operations: list[mlir.Operation], passed: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], _Use]:
    """Write barriers anew without some operands, which go around them.

    Args:
        operations: Of the module; the new barriers take the places of the old ones.
        passed: Numbers of barriers and of operands.

    Returns:
        Where operands are now, by the number of their barrier and theirs before.
    """
    gone: defaultdict[int, set[int]] = defaultdict(set)
    for number, operand in passed:
        gone[number].add(operand)
    moved: dict[tuple[int, int], _Use] = {}
    for number, operands in gone.items():
        old = operations[number]
        kept = [k for k in range(len(old.operands)) if k not in operands]
        made = mlir.Operation.create(
            old.name,
            results=[old.results[k].type for k in kept],
            operands=[old.operands[k] for k in kept],
            loc=old.location,
            ip=mlir.InsertionPoint(old),
        )
        for k in operands:
            old.results[k].replace_all_uses_with(old.operands[k])
        for position, k in enumerate(kept):
            old.results[k].replace_all_uses_with(made.results[position])
            moved[number, k] = (made, position)
        operations[number] = made
        old.erase()
    return moved
