"""Ops that may be done to the parts of a sum before these are added up."""

from __future__ import annotations

from autoshard.importer.sum_parts import PRODUCT, part_operands
from autoshard.ir import mlir
from autoshard.ir.constants import is_zeros
from autoshard.rewrites.recomputation.loops import maker_of

_WITH_ZERO = ("stablehlo.pad", "stablehlo.reduce")
"""Ops whose second operand has to be zero."""


def is_zero(value: mlir.Value) -> bool:
    """Is a value a constant of zeros or a broadcast of one, or does a loop hand it on as that?"""
    while True:
        maker = maker_of(value)
        if maker is not None and maker.name == "stablehlo.broadcast_in_dim":
            value = maker.operands[0]
        elif maker is not None:
            return is_zeros(maker)
        else:
            block = mlir.BlockArgument(value)
            loop, slot = block.owner.owner.operation, block.arg_number
            if loop.name != "stablehlo.while" or block.owner != loop.regions[1].blocks[0]:
                return False
            if not _is_handed_on(block):
                return False
            value = loop.operands[slot]


def _is_handed_on(argument: mlir.BlockArgument) -> bool:
    """Does the next trip get an argument of a loop's body as it is?"""
    users = (
        use.owner.operation for use in argument.uses if use.operand_number == argument.arg_number
    )
    return any(op.name == "stablehlo.return" and op.block == argument.owner for op in users)


def partial_operands(op: mlir.Operation, result: int) -> tuple[int, ...] | None:
    """Which operands have to be parts of sums so that a result is; None: it never is.

    Args:
        op: Any but a loop.
        result: Number of its result.
    """
    if op.name == "stablehlo.optimization_barrier":
        return (result,)
    if op.name == PRODUCT:
        return (1,) if _is_known(op.operands[0]) else (0,)
    if op.name in _WITH_ZERO and not is_zero(op.operands[1]):
        return None
    return part_operands(op) or None


def _is_known(value: mlir.Value) -> bool:
    """Is it one number, however often? Then the other factor is the sum."""
    maker = maker_of(value)
    if maker is None:
        return False
    if maker.name == "stablehlo.broadcast_in_dim":
        return mlir.RankedTensorType(maker.operands[0].type).rank == 0
    return maker.name == "stablehlo.constant"
