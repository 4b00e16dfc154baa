"""Ops that may be done to the parts of a sum before these are added up."""

from __future__ import annotations

from autoshard.importer.micro_batch_cuts import adds_up
from autoshard.ir import mlir
from autoshard.ir.constants import is_zeros
from autoshard.ir.reading import element_of
from autoshard.rewrites.recomputation.loops import maker_of

_ONE = frozenset(
    f"stablehlo.{name}"
    for name in ("negate", "transpose", "reshape", "broadcast_in_dim", "slice", "dynamic_slice")
)
_SUMS = frozenset(("stablehlo.add", "stablehlo.subtract"))


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
    name = op.name
    if name in _ONE:
        return (0,)
    if name in _SUMS:
        return (0, 1)
    if name == "stablehlo.convert":
        return (0,) if _is_wider(op) else None
    if name == "stablehlo.multiply":
        return (1,) if _is_known(op.operands[0]) else (0,)
    if name == "stablehlo.divide":  # whole numbers are rounded down
        return None if isinstance(element_of(op.results[0]), mlir.IntegerType) else (0,)
    if name == "stablehlo.select":
        return (1, 2)
    if name == "stablehlo.concatenate":
        return tuple(range(len(op.operands)))
    if name == "stablehlo.dynamic_update_slice":
        return (0, 1)
    if name == "stablehlo.pad":
        return (0,) if is_zero(op.operands[1]) else None
    if name == "stablehlo.reduce":
        return (0,) if adds_up(op) and is_zero(op.operands[1]) else None
    if name == "stablehlo.optimization_barrier":
        return (result,)
    return None


def _is_wider(op: mlir.Operation) -> bool:
    """Does a conversion keep every number? Narrower parts would add up to another sum."""
    before, after = element_of(op.operands[0]), element_of(op.results[0])
    if not (isinstance(before, mlir.FloatType) and isinstance(after, mlir.FloatType)):
        return False
    return after == before or after.width >= 2 * before.width


def _is_known(value: mlir.Value) -> bool:
    """Is it one number, however often? Then the other factor is the sum."""
    maker = maker_of(value)
    if maker is None:
        return False
    if maker.name == "stablehlo.broadcast_in_dim":
        return mlir.RankedTensorType(maker.operands[0].type).rank == 0
    return maker.name == "stablehlo.constant"
