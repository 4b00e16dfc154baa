"""Convolutions that crop their image at its start and pad it at its end.

The compiler for CPUs in jaxlib 0.10.2 reads beyond such an image (seen in single precision, without
dilation of the image): on one device as on many, but not at all sizes. So the start is cut off
before the convolution.

before  convolution(x, w), pad = [[-1, 1]]
after   convolution(slice(x, 1:), w), pad = [[0, 1]]
"""

from __future__ import annotations

from autoshard.exporter.blocks.emitter import Emitter, pair_array
from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import ints, pairs_of, shape_of
from autoshard.planned.module import PlannedOp


def crop_whole_images(planned: PlannedOp, emit: Emitter) -> None:
    """Change the images and the padding of a convolution, along dims that are not cut."""
    op, placement = planned.op, planned.operands[0] if planned.operands else None
    if op.name != "stablehlo.convolution":
        return
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    dims = list(numbers.input_spatial_dimensions)
    padding = pairs_of(op, "padding", len(dims))
    whole = [
        number
        for number, dim in enumerate(dims)
        if placement is None or not placement.sharding.dims[dim]
    ]
    dilations = ints(op, "lhs_dilation", [1] * len(dims))
    images, changed = cropped(emit, op.operands[0], dims, padding, dilations, whole)
    if changed != padding:
        op.operands[0] = images
        op.attributes["padding"] = pair_array(changed)


def cropped(
    emit: Emitter,
    images: mlir.Value,
    dims: list[int],
    padding: list[tuple[int, int]],
    dilations: list[int],
    numbers: list[int],
) -> tuple[mlir.Value, list[tuple[int, int]]]:
    """Images without what the padding crops at their start, and the rest of the padding.

    Args:
        emit: Writes before the convolution.
        images: Its first operand.
        dims: Their spatial dims.
        padding: Of each spatial dim, low and high.
        dilations: Of each spatial dim, of the images.
        numbers: The spatial dims that may be changed.
    """
    padding = list(padding)
    for number in numbers:
        low, high = padding[number]
        size = shape_of(images)[dims[number]]
        if low < 0 < high and dilations[number] == 1 and -low < size:
            images = emit.slice(images, dims[number], -low, size)
            padding[number] = 0, high
    return images, padding
