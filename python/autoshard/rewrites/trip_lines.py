"""Integers of a counted loop that are a line over the number of the trip."""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.ir.attributes import constant_integers
from autoshard.ir.reading import shape_of
from autoshard.rewrites.counted_indices import counted_dim
from autoshard.rewrites.recomputation.loops import body_of, maker_of, yielded_of


def trip_line(loop: mlir.Operation, value: mlir.Value) -> tuple[int, int] | None:
    """``(a, b)`` of an integer in a loop that is ``a * trip + b``; None for any other one."""
    op = maker_of(value)
    if op is None:
        argument = mlir.BlockArgument(value)
        return _counter(loop, argument.arg_number) if argument.owner == body_of(loop) else None
    if op.name == "stablehlo.constant":
        values = constant_integers(op)
        return (0, int(values[0])) if values is not None and len(values) == 1 else None
    if op.name in ("stablehlo.convert", "stablehlo.reshape"):
        return trip_line(loop, op.operands[0])
    if op.name == "stablehlo.dynamic_slice":
        return _row_of_numbers(loop, op)
    if op.name == "stablehlo.select" and _is_never_negative(loop, op):
        return trip_line(loop, op.operands[2])
    if op.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = (trip_line(loop, operand) for operand in op.operands)
    if left is None or right is None:
        return None
    sign = 1 if op.name == "stablehlo.add" else -1
    return left[0] + sign * right[0], left[1] + sign * right[1]


def _row_of_numbers(loop: mlir.Operation, taken: mlir.Operation) -> tuple[int, int] | None:
    """A row of an array in which each element is its own place, as ``jnp.arange`` makes it."""
    array, *starts = taken.operands
    if len(starts) != 1 or tuple(shape_of(taken.results[0])) != (1,) or counted_dim(array) != 0:
        return None
    return trip_line(loop, starts[0])


def _is_never_negative(loop: mlir.Operation, select: mlir.Operation) -> bool:
    """Is it ``i < 0 ? i + size : i`` of an ``i`` that is 0 or more, as for indices of Python?"""
    compare = maker_of(select.operands[0])
    if compare is None or compare.name != "stablehlo.compare":
        return False
    left, right = (trip_line(loop, operand) for operand in compare.operands)
    is_less = "LT" in str(compare.attributes["comparison_direction"])
    return is_less and right == (0, 0) and left is not None and min(left) >= 0


def _counter(loop: mlir.Operation, slot: int) -> tuple[int, int] | None:
    """A carried value that starts at a constant and grows by one."""
    start = maker_of(loop.operands[slot])
    step = maker_of(yielded_of(loop)[slot])
    argument = body_of(loop).arguments[slot]
    if start is None or start.name != "stablehlo.constant" or step is None:
        return None
    values = constant_integers(start)
    if values is None or len(values) != 1 or step.name != "stablehlo.add":
        return None
    others = [operand for operand in step.operands if operand != argument]
    made = maker_of(others[0]) if len(others) == 1 else None
    if made is None or made.name != "stablehlo.constant":
        return None
    by = constant_integers(made)
    return (1, int(values[0])) if by is not None and [int(n) for n in by] == [1] else None
