"""Ops that may be done to the parts of a sum before these are added up."""

from __future__ import annotations

from autoshard.importer.micro_batch_cuts import adds_up
from autoshard.ir import mlir
from autoshard.ir.reading import element_of

PRODUCT = "stablehlo.multiply"
"""One of its operands may be a part of a sum."""

_MAKERS = ("stablehlo.dot_general", "stablehlo.reduce", "stablehlo.scatter")

_ONE = frozenset(
    f"stablehlo.{name}"
    for name in ("negate", "transpose", "reshape", "broadcast_in_dim", "slice", "dynamic_slice")
)
_SEVERAL = {
    PRODUCT: (0, 1),
    "stablehlo.add": (0, 1),
    "stablehlo.subtract": (0, 1),
    "stablehlo.select": (1, 2),
    "stablehlo.dynamic_update_slice": (0, 1),
    "stablehlo.pad": (0,),
}


def leaves_parts(op: mlir.Operation) -> bool:
    """May an op leave a part of what it adds up on each device?"""
    return op.name in _MAKERS and adds_up(op)


def part_operands(op: mlir.Operation) -> tuple[int, ...]:
    """Which operands have to be parts of sums so that the result is: all of these, of a product
    one; none: it never is.

    Args:
        op: Any but a loop and a barrier.
    """
    name = op.name
    if name in _ONE:
        return (0,)
    if name == "stablehlo.convert":
        return (0,) if _is_wider(op) else ()
    if name == "stablehlo.divide":  # whole numbers are rounded down
        return () if isinstance(element_of(op.results[0]), mlir.IntegerType) else (0,)
    if name == "stablehlo.concatenate":
        return tuple(range(len(op.operands)))
    if name == "stablehlo.reduce":
        return (0,) if adds_up(op) else ()
    return _SEVERAL.get(name, ())


def _is_wider(op: mlir.Operation) -> bool:
    """Does a conversion keep every number? Narrower parts would add up to another sum."""
    before, after = element_of(op.operands[0]), element_of(op.results[0])
    if not (isinstance(before, mlir.FloatType) and isinstance(after, mlir.FloatType)):
        return False
    return after == before or after.width >= 2 * before.width
