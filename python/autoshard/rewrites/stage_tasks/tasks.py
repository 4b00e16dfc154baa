"""What the core asks of ops to find tasks, and which values ops read."""

from __future__ import annotations

from math import prod

from autoshard import _core
from autoshard.ir import mlir
from autoshard.ir.module import operations_of
from autoshard.ir.reading import shape_of

_HEAVY = frozenset(
    {"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.custom_call", "stablehlo.while"}
)
"""Ops for which a task of their own is worth its launch."""

Use = tuple[mlir.Operation, int]
"""An op, and which of its operands."""


def outer_uses(op: mlir.Operation) -> list[Use]:
    """Operands of an op, and of those that stand in it, that are made outside of it."""
    found: list[Use] = [(op, number) for number in range(len(op.operands))]
    if not len(op.regions):
        return found
    inner = operations_of(op)[1:]
    made: set[mlir.Value] = {value for each in inner for value in each.results}
    for each in (op, *inner):
        for region in each.regions:
            made.update(argument for block in region.blocks for argument in block.arguments)
    found += [
        (each, number)
        for each in inner
        for number, value in enumerate(each.operands)
        if value not in made
    ]
    return found


def is_copied(op: mlir.Operation) -> bool:
    """Is it cheaper to make again than to send? Constants, iotas, and broadcasts of less."""
    if op.name in ("stablehlo.constant", "stablehlo.iota"):
        return True
    if op.name != "stablehlo.broadcast_in_dim":
        return False
    return prod(shape_of(op.operands[0])) < prod(shape_of(op.results[0]))


def task_op(op: mlir.Operation) -> _core.TaskOp:
    """What holds for an op and all of its class."""
    return _core.TaskOp(is_copied=is_copied(op), is_heavy=op.name in _HEAVY)
