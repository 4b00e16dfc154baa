"""Ops that sum over dims, or solve or choose along them."""

from __future__ import annotations

from autoshard.ir import mlir, stablehlo
from autoshard.verify.check.attributes import numbers_of, shape_of
from autoshard.verify.check.shapes.shapes import Rule, Shapes
from autoshard.verify.check.sizes import number


def _dot(op: mlir.Operation, shapes: Shapes) -> None:
    left, right = shapes.of_operands(op)
    said = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = list(said.lhs_batching_dimensions), list(said.rhs_batching_dimensions)
    summed = list(said.lhs_contracting_dimensions), list(said.rhs_contracting_dimensions)
    for mine, theirs in (*zip(*batch, strict=True), *zip(*summed, strict=True)):
        shapes.sizes.make_equal(left[mine], right[theirs])
    found = [left[dim] for dim in batch[0]]
    for shape, used in ((left, batch[0] + summed[0]), (right, batch[1] + summed[1])):
        found += [size for dim, size in enumerate(shape) if dim not in used]
    shapes.define(op.results[0], found)


def _reduce(op: mlir.Operation, shapes: Shapes) -> None:
    operands = shapes.of_operands(op)[: len(op.results)]
    gone = numbers_of(op, "dimensions")
    for result, shape in zip(op.results, operands, strict=True):
        shapes.make_equal(operands[0], shape)
        shapes.define(result, [size for dim, size in enumerate(shape) if dim not in gone])


def _triangular_solve(op: mlir.Operation, shapes: Shapes) -> None:
    left, right = shapes.of_operands(op)
    shapes.make_equal(left[:-2], right[:-2])
    shapes.sizes.make_equal(left[-1], left[-2])
    is_left = mlir.BoolAttr(op.attributes["left_side"]).value
    shapes.sizes.make_equal(left[-1], right[-2] if is_left else right[-1])
    shapes.define(op.results[0], right)


def _fft(op: mlir.Operation, shapes: Shapes) -> None:
    (shape,) = shapes.of_operands(op)
    kept = len(numbers_of(op, "fft_length"))
    for size in shape[-kept:]:
        shapes.sizes.keep(size)
    olds = shape_of(op.results[0])
    shapes.define(op.results[0], [*shape[:-kept], *map(number, olds[-kept:])])


def _top_k(op: mlir.Operation, shapes: Shapes) -> None:
    (shape,) = shapes.of_operands(op)
    last = number(shape_of(op.results[0])[-1])
    shapes.sizes.keep_above(shape[-1], last)
    for result in op.results:
        shapes.define(result, [*shape[:-1], last])


RULES: dict[str, Rule] = {
    "stablehlo.dot_general": _dot,
    "stablehlo.reduce": _reduce,
    "stablehlo.triangular_solve": _triangular_solve,
    "stablehlo.fft": _fft,
    "chlo.top_k": _top_k,
}
