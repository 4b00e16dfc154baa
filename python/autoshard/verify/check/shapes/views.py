"""Ops that put the elements of their operands into other dims."""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.verify.check.attributes import integer_of, numbers_of, shape_of
from autoshard.verify.check.shapes.shapes import Rule, Shapes
from autoshard.verify.check.sizes import Size, number, product_of


def _transpose(op: mlir.Operation, shapes: Shapes) -> None:
    (shape,) = shapes.of_operands(op)
    shapes.define(op.results[0], [shape[dim] for dim in numbers_of(op, "permutation")])


def _broadcast(op: mlir.Operation, shapes: Shapes) -> None:
    (shape,) = shapes.of_operands(op)
    (result,) = op.results
    found = list(shapes.fresh(result))
    for size, dim in zip(shape, numbers_of(op, "broadcast_dimensions"), strict=True):
        if shapes.sizes.old_of(size) == shape_of(result)[dim]:
            found[dim] = size
    shapes.define(result, found)


def _reshape(op: mlir.Operation, shapes: Shapes) -> None:
    (shape,) = shapes.of_operands(op)
    (result,) = op.results
    sizes, olds = shapes.sizes, shape_of(result)
    if 0 in olds:
        shapes.keep_all(op)
        return
    before = [size for size in shape if sizes.old_of(size) != 1]
    after = [old for old in olds if old != 1]
    found: list[Size] = []
    for group, parts in _groups([sizes.old_of(size) for size in before], after):
        whole, before = product_of(before[: len(group)]), before[len(group) :]
        found += [whole] if len(parts) == 1 else sizes.parts(whole, parts)
    parts_left = iter(found)
    shapes.define(result, [number(1) if old == 1 else next(parts_left) for old in olds])


def _concatenate(op: mlir.Operation, shapes: Shapes) -> None:
    operands = shapes.of_operands(op)
    dim = integer_of(op, "dimension")
    total = number(0)
    for shape in operands:
        total = total + shape[dim]
        for other in range(len(shape)):
            if other != dim:
                shapes.sizes.make_equal(operands[0][other], shape[other])
    shapes.define(op.results[0], [*operands[0][:dim], total, *operands[0][dim + 1 :]])


def _groups(before: list[int], after: list[int]) -> list[tuple[list[int], list[int]]]:
    """Dims of a reshape that are the same elements; those of size 1 are left out."""
    found: list[tuple[list[int], list[int]]] = []
    mine, theirs = list(before), list(after)
    while mine:
        group, parts = [mine.pop(0)], [theirs.pop(0)]
        left, right = group[0], parts[0]
        while left != right:
            if left < right:
                group.append(mine.pop(0))
                left *= group[-1]
            else:
                parts.append(theirs.pop(0))
                right *= parts[-1]
        found.append((group, parts))
    return found


RULES: dict[str, Rule] = {
    "stablehlo.transpose": _transpose,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.concatenate": _concatenate,
}
