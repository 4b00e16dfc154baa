"""Ops that take a part of a dim, write one, or make one of a larger dim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autoshard.ir import mlir, stablehlo
from autoshard.verify.check.attributes import Numbers, numbers_of, shape_of
from autoshard.verify.check.shapes.shapes import Rule, Shape, Shapes
from autoshard.verify.check.sizes import Size, number

_NEARLY = 4
"""A slice or pad that changes at most one part in so many changes a border, which stays as it is;
another one cuts or makes a part of a dim."""


@dataclass(frozen=True, slots=True)
class _Fixed:
    """An offset that stays."""

    at: int

    def new(self, new: Callable[[Size], int]) -> int:
        return self.at


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where a part of a dim starts: at the same end as before, or as far between them."""

    at: int
    room: int
    """How far the part could be moved."""
    whole: Size
    part: Size

    def new(self, new: Callable[[Size], int]) -> int:
        room = new(self.whole) - new(self.part)
        return round(self.at * room / self.room) if self.room else 0


_Offset = _Fixed | _Placed


def _slice(op: mlir.Operation, shapes: Shapes) -> None:
    (shape,) = shapes.of_operands(op)
    starts, strides = numbers_of(op, "start_indices"), numbers_of(op, "strides")
    found: list[Size] = []
    firsts: list[_Offset] = []
    for size, start, stride, old in zip(
        shape, starts, strides, shape_of(op.results[0]), strict=True
    ):
        whole = shapes.sizes.old_of(size)
        if old == 0:
            found.append(number(0))
            firsts.append(_Fixed(0))
            continue
        if stride > 1 and old > 1:
            # Every so many elements, all but a border.
            found.append(shapes.sizes.fresh(old))
            shapes.sizes.make_equal(size, found[-1] * stride + (whole - old * stride))
            firsts.append(_Fixed(start))
            continue
        if (whole - old) * _NEARLY <= whole:
            found.append(size + (old - whole))
            firsts.append(_Fixed(start))
            continue
        found.append(shapes.part(size, old))
        firsts.append(_Placed(start, whole - old, size, found[-1]))
    shapes.define(op.results[0], found)

    def write(new: Callable[[Size], int]) -> None:
        begin = [first.new(new) for first in firsts]
        end = [
            at + max(0, (new(size) - 1) * stride + 1)
            for at, size, stride in zip(begin, found, strides, strict=True)
        ]
        op.attributes["start_indices"] = mlir.DenseI64ArrayAttr.get(begin)
        op.attributes["limit_indices"] = mlir.DenseI64ArrayAttr.get(end)

    shapes.rewrites.append(write)


def _pad(op: mlir.Operation, shapes: Shapes) -> None:
    shape = shapes.of[op.operands[0]]
    lows, highs = numbers_of(op, "edge_padding_low"), numbers_of(op, "edge_padding_high")
    found: list[Size] = []
    befores: list[_Offset] = []
    spread: list[Size] = []
    for size, low, high, interior, old in zip(
        shape,
        lows,
        highs,
        numbers_of(op, "interior_padding"),
        shape_of(op.results[0]),
        strict=True,
    ):
        inner = size * (interior + 1) + -interior if shapes.sizes.old_of(size) else size
        spread.append(inner)
        if min(low, high) < 0 or (low + high) * _NEARLY <= shapes.sizes.old_of(inner):
            found.append(inner + (low + high))
            befores.append(_Fixed(low))
            continue
        found.append(shapes.sizes.fresh(old))
        shapes.sizes.keep_above(found[-1], inner)
        befores.append(_Placed(low, old - shapes.sizes.old_of(inner), found[-1], inner))
    shapes.define(op.results[0], found)

    def write(new: Callable[[Size], int]) -> None:
        before = [each.new(new) for each in befores]
        after = [
            new(size) - new(inner) - low
            for size, inner, low in zip(found, spread, before, strict=True)
        ]
        op.attributes["edge_padding_low"] = mlir.DenseI64ArrayAttr.get(before)
        op.attributes["edge_padding_high"] = mlir.DenseI64ArrayAttr.get(after)

    shapes.rewrites.append(write)


def _dynamic_slice(op: mlir.Operation, shapes: Shapes) -> None:
    shape = shapes.of[op.operands[0]]
    found = [
        shapes.part(size, old)
        for size, old in zip(shape, numbers_of(op, "slice_sizes"), strict=True)
    ]
    shapes.define(op.results[0], found)
    shapes.write_sizes(op, "slice_sizes", found)


def _dynamic_update_slice(op: mlir.Operation, shapes: Shapes) -> None:
    shape, update, *_ = shapes.of_operands(op)
    for size, part in zip(shape, update, strict=True):
        shapes.keep_part(size, part)
    shapes.define(op.results[0], shape)


def _gather(op: mlir.Operation, shapes: Shapes) -> None:
    operand, indices = shapes.of_operands(op)
    said = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    slices = [
        shapes.part(size, old)
        for size, old in zip(operand, numbers_of(op, "slice_sizes"), strict=True)
    ]
    left_out = {*said.collapsed_slice_dims, *said.operand_batching_dims}
    window = iter(slices[dim] for dim in range(len(slices)) if dim not in left_out)
    places = _places(
        shapes,
        indices,
        said.index_vector_dim,
        (operand, said.operand_batching_dims, said.start_indices_batching_dims),
    )
    (result,) = op.results
    shapes.define(
        result,
        [
            next(window) if dim in said.offset_dims else next(places)
            for dim in range(len(shape_of(result)))
        ],
    )
    shapes.write_sizes(op, "slice_sizes", slices)


def _scatter(op: mlir.Operation, shapes: Shapes) -> None:
    operands = shapes.of_operands(op)
    count = len(op.results)
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    said = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    left_out = {*said.inserted_window_dims, *said.input_batching_dims}
    for operand, update in zip(inputs, updates, strict=True):
        shapes.make_equal(inputs[0], operand)
        window = iter(operand[dim] for dim in range(len(operand)) if dim not in left_out)
        places = _places(
            shapes,
            indices,
            said.index_vector_dim,
            (operand, said.input_batching_dims, said.scatter_indices_batching_dims),
        )
        for dim, size in enumerate(update):
            if dim in said.update_window_dims:
                shapes.keep_part(next(window), size)
            else:
                shapes.sizes.make_equal(next(places), size)
    for result, operand in zip(op.results, inputs, strict=True):
        shapes.define(result, operand)


def _places(
    shapes: Shapes, indices: Shape, vector_dim: int, batch: tuple[Shape, Numbers, Numbers]
) -> Iterator[Size]:
    """The dims of indices that say how many there are; what an index consists of stays."""
    operand, operand_dims, index_dims = batch
    for mine, theirs in zip(operand_dims, index_dims, strict=True):
        shapes.sizes.make_equal(operand[mine], indices[theirs])
    if vector_dim < len(indices):
        shapes.sizes.keep(indices[vector_dim])
    return iter([size for dim, size in enumerate(indices) if dim != vector_dim])


RULES: dict[str, Rule] = {
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
}
