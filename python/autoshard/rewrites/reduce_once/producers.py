"""Ops that add up over a cut dim, written so that each device keeps its part.

before  %g = dot_general %x, %dy, contracting_dims = [0] x [0]         // 32 rows, cut 8 times
after   %xs = reshape %x : (tensor<32x4xf32>) -> tensor<8x4x4xf32>     // on a device as before
        %ys = reshape %dy : (tensor<32x2xf32>) -> tensor<8x4x2xf32>
        %g = dot_general %xs, %ys, batching_dims = [0] x [0], contracting_dims = [1] x [1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import element_of, ints, shape_of
from autoshard.rewrites.reduce_once.blocks import Blocks, open_pins, write
from autoshard.rewrites.reduce_once.chains import Producer
from autoshard.sharding import Sharding
from autoshard.sharding.sharding import AxisRef
from autoshard.sharding.text import OpStrategy


@dataclass(frozen=True, slots=True)
class _Split:
    """What became of the dims of an operand."""

    dims: tuple[tuple[int, ...], ...]
    """For each dim before, those that it is now."""
    front: Mapping[str, int]
    """The dim of each axis that is to be in front."""

    def at(self, dim: int) -> int:
        """A dim that was not split."""
        (found,) = self.dims[dim]
        return found

    def rest(self, dims: Sequence[int]) -> list[int]:
        """What is still added up of these dims."""
        taken = set(self.front.values())
        return [part for dim in dims for part in self.dims[dim] if part not in taken]


def write_producer(
    producer: Producer, blocks: Blocks, strategy: OpStrategy, held: Sharding
) -> None:
    """Let an op leave parts; its result has their type already.

    Args:
        producer: What it adds up, and by what that is cut.
        blocks: Axes over which it does not.
        strategy: As planned before.
        held: How its result was held.
    """
    op = producer.op
    sizes: dict[int, dict[int, tuple[str, ...]]] = {}
    for dims in producer.dims:
        for operand, dim in dims.places:
            sizes.setdefault(operand, {})[dim] = dims.axes
    wanted = list(strategy.operands)
    splits: dict[int, _Split] = {}
    for operand in range(len(op.operands)):
        if operand == producer.added_to:
            wanted[operand] = blocks.sharding(wanted[operand])
        elif operand in sizes:
            value, split, cut = _split(op, operand, sizes[operand], blocks, wanted[operand])
            op.operands[operand] = value
            splits[operand], wanted[operand] = split, cut
        else:
            wanted[operand] = blocks.freed(wanted[operand])
    open_pins(op, (0,))
    order = _WRITERS[op.name](op, blocks, splits)
    result, kept = blocks.sharding(strategy.results[0]), blocks.sharding(held)
    if order == sorted(order):
        write(op, [kept], OpStrategy(tuple(wanted), (result,)))
        return
    made = Sharding(blocks.mesh, tuple(result.dims[order.index(dim)] for dim in sorted(order)))
    write(op, [made], OpStrategy(tuple(wanted), (made,)))
    _transpose(op, order, OpStrategy((made,), (result,)), kept)


def _split(
    op: mlir.Operation,
    operand: int,
    cuts: Mapping[int, tuple[str, ...]],
    blocks: Blocks,
    wanted: Sharding,
) -> tuple[mlir.Value, _Split, Sharding]:
    """An operand with a dim for each axis that cuts what is added up."""
    value = op.operands[operand]
    shape: list[int] = []
    axes: list[tuple[AxisRef, ...]] = []
    dims: list[tuple[int, ...]] = []
    front: dict[str, int] = {}
    for dim, size in enumerate(shape_of(value)):
        names, first = cuts.get(dim, ()), len(shape)
        for name in names:
            if name in blocks.axes:
                front[name] = len(shape)
            shape.append(blocks.mesh.axis_size(name))
            axes.append((AxisRef(name),))
        shape.append(size // prod(map(blocks.mesh.axis_size, names)))
        axes.append(() if names else wanted.dims[dim])
        dims.append(tuple(range(first, len(shape))))
    cut = Sharding(blocks.mesh, tuple(axes))
    made = mlir.Operation.create(
        "stablehlo.reshape",
        results=[mlir.RankedTensorType.get(shape, element_of(value))],
        operands=[value],
        loc=op.location,
        ip=mlir.InsertionPoint(op),
    )
    write(made, [cut], OpStrategy((wanted,), (cut,)), like=op)
    return made.results[0], _Split(tuple(dims), front), cut


def _write_dot(op: mlir.Operation, blocks: Blocks, splits: Mapping[int, _Split]) -> list[int]:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = splits[0], splits[1]

    def batch(split: _Split, before: Sequence[int]) -> list[int]:
        return [*(split.front[axis] for axis in blocks.axes), *map(split.at, before)]

    op.attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=batch(left, numbers.lhs_batching_dimensions),
        rhs_batching_dimensions=batch(right, numbers.rhs_batching_dimensions),
        lhs_contracting_dimensions=left.rest(numbers.lhs_contracting_dimensions),
        rhs_contracting_dimensions=right.rest(numbers.rhs_contracting_dimensions),
    )
    return _all_dims(op)


def _all_dims(op: mlir.Operation) -> list[int]:
    return list(range(len(shape_of(op.results[0]))))


def _write_reduce(op: mlir.Operation, blocks: Blocks, splits: Mapping[int, _Split]) -> list[int]:
    split = splits[0]
    gone = sorted(split.rest(ints(op, "dimensions", [])))
    op.attributes["dimensions"] = mlir.DenseI64ArrayAttr.get(gone)
    kept = [dim for dims in split.dims for dim in dims if dim not in gone]
    front = [kept.index(split.front[axis]) for axis in blocks.axes]
    return [*front, *(number for number in range(len(kept)) if number not in front)]


def _transpose(
    op: mlir.Operation, order: Sequence[int], strategy: OpStrategy, held: Sharding
) -> None:
    """Bring the dims of a result, whose type is the one that is wanted, into this order."""
    result = op.results[0]
    wanted, shape = result.type, shape_of(result)
    result.set_type(
        mlir.RankedTensorType.get(
            [shape[order.index(dim)] for dim in range(len(order))], element_of(result)
        )
    )
    readers = [(use.owner, use.operand_number) for use in result.uses]
    made = mlir.Operation.create(
        "stablehlo.transpose",
        results=[wanted],
        operands=[result],
        attributes={"permutation": mlir.DenseI64ArrayAttr.get(order)},
        loc=op.location,
        ip=mlir.InsertionPoint.after(op),
    )
    write(made, [held], strategy, like=op)
    for reader, operand in readers:
        reader.operands[operand] = made.results[0]


def _write_scatter(op: mlir.Operation, blocks: Blocks, splits: Mapping[int, _Split]) -> list[int]:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    indices, updates = splits[1], splits[2]
    count = blocks.count
    op.attributes["scatter_dimension_numbers"] = stablehlo.ScatterDimensionNumbers.get(
        update_window_dims=list(map(updates.at, numbers.update_window_dims)),
        inserted_window_dims=[dim + count for dim in numbers.inserted_window_dims],
        input_batching_dims=[
            *range(count),
            *(dim + count for dim in numbers.input_batching_dims),
        ],
        scatter_indices_batching_dims=[
            *(indices.front[axis] for axis in blocks.axes),
            *map(indices.at, numbers.scatter_indices_batching_dims),
        ],
        scattered_dims_to_operand_dims=[
            dim + count for dim in numbers.scattered_dims_to_operand_dims
        ],
        index_vector_dim=_index_vector(numbers.index_vector_dim, indices),
    )
    # They were, but not by part and then by index.
    op.attributes["indices_are_sorted"] = mlir.BoolAttr.get(False)
    return _all_dims(op)


def _index_vector(dim: int, indices: _Split) -> int:
    """It may be one behind the last dim."""
    return indices.at(dim) if dim < len(indices.dims) else sum(map(len, indices.dims))


_WRITERS: Mapping[str, Callable[[mlir.Operation, Blocks, Mapping[int, _Split]], list[int]]] = {
    "stablehlo.dot_general": _write_dot,
    "stablehlo.reduce": _write_reduce,
    "stablehlo.scatter": _write_scatter,
}
"""Each returns the dims of what the op makes in the order that is wanted; mostly as they are."""
