"""Dims along which an element of a result is not made of the elements at its own place.

A factor may pass through such a dim: partitioners then send pieces to and fro. A micro-batch cannot
ask others, so along these nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autoshard.importer.windows import updated_dims, windowed_dims
from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import ints, shape_of

Place = tuple[int, int]
"""Number of a tensor, operands first, and of a dim."""


def mixed_dims(op: mlir.Operation) -> frozenset[Place]:
    """The dims of an op's tensors along which elements move, or meet others."""
    find = _FINDERS.get(op.name)
    return frozenset() if find is None else frozenset(find(op))


def _first(op: mlir.Operation, dims: list[int]) -> Iterator[Place]:
    """In the first operand and in every result, and in operands of the same rank."""
    rank = len(shape_of(op.operands[0]))
    for number, value in enumerate((*op.operands, *op.results)):
        if isinstance(value.type, mlir.RankedTensorType) and len(shape_of(value)) == rank:
            yield from ((number, dim) for dim in dims)


def _slice(op: mlir.Operation) -> Iterator[Place]:
    shapes = zip(shape_of(op.operands[0]), shape_of(op.results[0]), strict=True)
    return _first(op, [dim for dim, (whole, part) in enumerate(shapes) if whole != part])


def _reverse(op: mlir.Operation) -> Iterator[Place]:
    return _first(op, ints(op, "dimensions", []))


def _one(op: mlir.Operation) -> Iterator[Place]:
    return _first(op, ints(op, "dimension", []))


def _pad(op: mlir.Operation) -> Iterator[Place]:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    numbers = zip(*(ints(op, name, []) for name in names), strict=True)
    return _first(op, [dim for dim, each in enumerate(numbers) if any(each)])


def _update(op: mlir.Operation) -> Iterator[Place]:
    return _first(op, updated_dims(op))


def _windows(op: mlir.Operation) -> Iterator[Place]:
    return _first(op, windowed_dims(op))


def _last_two(op: mlir.Operation) -> Iterator[Place]:
    rank = len(shape_of(op.operands[0]))
    return _first(op, [rank - 2, rank - 1])


def _transformed(op: mlir.Operation) -> Iterator[Place]:
    rank = len(shape_of(op.operands[0]))
    return _first(op, list(range(rank - len(ints(op, "fft_length", [])), rank)))


def _convolution(op: mlir.Operation) -> Iterator[Place]:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    for tensor, dims in enumerate(
        (
            numbers.input_spatial_dimensions,
            numbers.kernel_spatial_dimensions,
            numbers.output_spatial_dimensions,
        )
    ):
        yield from ((tensor, dim) for dim in dims)
    feature_groups, batch_groups = (
        mlir.IntegerAttr(op.attributes[name]).value
        for name in ("feature_group_count", "batch_group_count")
    )
    if feature_groups > 1:
        yield 0, numbers.input_feature_dimension
        yield 1, numbers.kernel_input_feature_dimension
    if batch_groups > 1:
        yield 0, numbers.input_batch_dimension
        yield 2, numbers.output_batch_dimension
    if feature_groups > 1 or batch_groups > 1:
        yield 1, numbers.kernel_output_feature_dimension
        yield 2, numbers.output_feature_dimension


def _gather(op: mlir.Operation) -> Iterator[Place]:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = zip(ints(op, "slice_sizes", []), shape_of(op.operands[0]), strict=True)
    batching = set(numbers.operand_batching_dims)
    for dim, (size, whole) in enumerate(sizes):
        if size != whole and dim not in batching:
            yield 0, dim
    yield 1, numbers.index_vector_dim


def _scatter(op: mlir.Operation) -> Iterator[Place]:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    indexed = (*numbers.scattered_dims_to_operand_dims, *numbers.inserted_window_dims)
    for dim in indexed:
        yield 0, dim
        yield len(op.operands), dim
    yield 1, numbers.index_vector_dim


_FINDERS: dict[str, Callable[[mlir.Operation], Iterator[Place]]] = {
    "stablehlo.slice": _slice,
    "stablehlo.dynamic_slice": _slice,
    "stablehlo.dynamic_update_slice": _update,
    "stablehlo.reverse": _reverse,
    "stablehlo.concatenate": _one,
    "stablehlo.sort": _one,
    "stablehlo.pad": _pad,
    "stablehlo.reduce_window": _windows,
    "stablehlo.select_and_scatter": _windows,
    "stablehlo.cholesky": _last_two,
    "stablehlo.triangular_solve": _last_two,
    "stablehlo.fft": _transformed,
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
}
