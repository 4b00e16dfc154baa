"""Convolutions on blocks: images cut along height and width, features, batch and groups.

Where the image is cut, each device reads the window of elements that its results need, its halo
from its neighbours. Where the kernel's spatial dims are cut together with the image (the gradient
of a kernel contracts over the image), each device has a part of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.exporter.blocks.block_op import Form, result_sharding, same_op, shardings
from autoshard.exporter.blocks.cropped import cropped
from autoshard.exporter.blocks.emitter import (
    Axes,
    Emitter,
    int_array,
    local_type,
    pair_array,
    with_size,
)
from autoshard.exporter.blocks.swapped import Dim, swapped_wrongly
from autoshard.exporter.blocks.windows import read_window, spread
from autoshard.importer.windows import convolution_window
from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import ints, pairs_of, shape_of
from autoshard.planned.module import PlannedOp
from autoshard.sharding.window import Window


@dataclass(frozen=True, slots=True)
class _CutImage:
    """One spatial dim of which every device reads a window."""

    number: int
    """Among the spatial dims."""
    dim: int
    """Dim of the images."""
    axes: Axes
    window: Window


def convolution_form(planned: PlannedOp) -> Form:
    """How ``planned``, a convolution with equal blocks, is computed on them."""
    op = planned.op
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel = shardings(planned.operands)[1]
    summed = tuple(
        axis
        for dim in (numbers.kernel_input_feature_dimension, *numbers.kernel_spatial_dimensions)
        for axis in kernel.dims[dim]
    )
    made = result_sharding(planned, summed)
    cuts = tuple(
        cut
        for number in range(len(numbers.input_spatial_dimensions))
        if (cut := _cut_image(planned, numbers, number)) is not None
    )
    result = local_type(op.results[0].type, made)

    def compute(emit: Emitter, blocks: list[mlir.Value]) -> list[mlir.Value]:
        images, weights = blocks
        padding = pairs_of(op, "padding", _rank(numbers))
        dilations = ints(op, "lhs_dilation", [1] * _rank(numbers))
        for cut in cuts:
            images = read_window(emit, images, cut.dim, cut.axes, cut.window)
            if cut.window.has_one_offset:
                padding[cut.number] = cut.window.low, cut.window.high
            else:
                images = spread(emit, images, cut.dim, cut.axes, cut.window)
                padding[cut.number], dilations[cut.number] = (0, 0), 1
        dims = list(numbers.input_spatial_dimensions)
        numbers_cut = [cut.number for cut in cuts]
        images, padding = cropped(emit, images, dims, padding, dilations, numbers_cut)
        groups = _groups(numbers, (images, weights), result)
        wider = result
        if all(count == 1 for count in groups.values()):
            dims_of_blocks = _dims(op, numbers, (images, weights), padding, dilations)
            for number in swapped_wrongly(dims_of_blocks):
                low, high = padding[number]
                padding[number] = low, high + dims_of_blocks[number].stride
                made_dim = numbers.output_spatial_dimensions[number]
                size = mlir.RankedTensorType(wider).shape[made_dim]
                wider = with_size(wider, made_dim, size + 1)
        changed = {
            "padding": pair_array(padding),
            "lhs_dilation": int_array(dilations),
            **{name: _int64(count) for name, count in groups.items()},
        }
        (value,) = same_op(op, emit, (images, weights), [wider], changed)
        for dim, size in enumerate(mlir.RankedTensorType(result).shape):
            if shape_of(value)[dim] != size:
                value = emit.slice(value, dim, 0, size)
        return [value]

    return Form(compute, summed)


def _dims(
    op: mlir.Operation,
    numbers: stablehlo.ConvDimensionNumbers,
    blocks: tuple[mlir.Value, mlir.Value],
    padding: list[tuple[int, int]],
    dilations: list[int],
) -> list[Dim]:
    """The spatial dims of the convolution of ``blocks``."""
    images, kernel = (shape_of(block) for block in blocks)
    ones = [1] * _rank(numbers)
    strides, reaches = (ints(op, name, ones) for name in ("window_strides", "rhs_dilation"))
    reversals = ints(op, "window_reversal", [0] * _rank(numbers))
    return [
        Dim(
            images[numbers.input_spatial_dimensions[number]],
            kernel[numbers.kernel_spatial_dimensions[number]],
            strides[number],
            padding[number],
            dilations[number],
            reaches[number],
            bool(reversals[number]),
        )
        for number in range(_rank(numbers))
    ]


def _cut_image(
    planned: PlannedOp, numbers: stablehlo.ConvDimensionNumbers, number: int
) -> _CutImage | None:
    """The windows along one spatial dim; None where the images are whole along it."""
    images, kernel = shardings(planned.operands)
    dim = numbers.input_spatial_dimensions[number]
    if not images.dims[dim]:
        return None
    is_contracted = bool(kernel.dims[numbers.kernel_spatial_dimensions[number]])
    window = convolution_window(
        planned.op, number, images.num_shards(dim), is_contracted=is_contracted
    )
    return _CutImage(number, dim, images.dims[dim], window)


def _rank(numbers: stablehlo.ConvDimensionNumbers) -> int:
    return len(numbers.input_spatial_dimensions)


def _groups(
    numbers: stablehlo.ConvDimensionNumbers,
    blocks: tuple[mlir.Value, mlir.Value],
    result: mlir.Type,
) -> dict[str, int]:
    """How many of a convolution's groups are in the blocks of its operands."""
    images, kernel = (shape_of(block) for block in blocks)
    made = mlir.RankedTensorType(result).shape
    features = (
        images[numbers.input_feature_dimension] // kernel[numbers.kernel_input_feature_dimension]
    )
    batches = images[numbers.input_batch_dimension] // made[numbers.output_batch_dimension]
    return {"feature_group_count": features, "batch_group_count": batches}


def _int64(number: int) -> mlir.Attribute:
    return mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), number)
