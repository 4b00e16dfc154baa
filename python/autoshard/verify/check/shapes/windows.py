"""Ops that slide a window over dims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoshard.ir import mlir, stablehlo
from autoshard.verify.check.attributes import dense_of, integer_of, numbers_of, pairs_of, shape_of
from autoshard.verify.check.shapes.shapes import Rule, Shapes
from autoshard.verify.check.sizes import Size, number


def _reduce_window(op: mlir.Operation, shapes: Shapes) -> None:
    operands = shapes.of_operands(op)[: len(op.results)]
    rank = len(operands[0])
    ones = [1] * rank
    window = numbers_of(op, "window_dimensions")
    pads = pairs_of(op, "padding", rank)
    strides = numbers_of(op, "window_strides", ones)
    base, dilations = (
        numbers_of(op, "base_dilations", ones),
        numbers_of(op, "window_dilations", ones),
    )
    found: list[Size] = []
    windows: list[Size] = []
    new_pads: list[tuple[Size, Size]] = []
    for dim, (size, length, (low, high)) in enumerate(zip(operands[0], window, pads, strict=True)):
        whole = shapes.sizes.old_of(size)
        plain = strides[dim] == base[dim] == dilations[dim] == 1
        if plain and length == whole > 1 and (low, high) in ((whole - 1, 0), (0, whole - 1)):
            # A cumulative sum.
            found.append(size)
            windows.append(size)
            border = size + -1
            new_pads.append((border, number(0)) if low else (number(0), border))
            continue
        found.append(shapes.sizes.fresh(shape_of(op.results[0])[dim]))
        windows.append(number(length))
        new_pads.append((number(low), number(high)))
        spread = size * base[dim] + (1 - base[dim])
        span = number(dilations[dim] * (length - 1) + 1)
        _slide(shapes, spread + (low + high) - span, strides[dim], found[-1])
    for result, shape in zip(op.results, operands, strict=True):
        shapes.make_equal(operands[0], shape)
        shapes.define(result, found)
    shapes.write_sizes(op, "window_dimensions", windows)
    if "padding" in op.attributes:

        def write(new: Callable[[Size], int]) -> None:
            values = np.array([[new(low), new(high)] for low, high in new_pads], np.int64)
            op.attributes["padding"] = dense_of(values, op.attributes["padding"].type)

        shapes.rewrites.append(write)


def _select_and_scatter(op: mlir.Operation, shapes: Shapes) -> None:
    operand, source, _ = shapes.of_operands(op)
    rank = len(operand)
    window = numbers_of(op, "window_dimensions", [1] * rank)
    strides = numbers_of(op, "window_strides", [1] * rank)
    for dim, (low, high) in enumerate(pairs_of(op, "padding", rank)):
        ways = operand[dim] + (low + high - window[dim])
        _slide(shapes, ways, strides[dim], source[dim])
    shapes.define(op.results[0], operand)


def _convolution(op: mlir.Operation, shapes: Shapes) -> None:
    sizes = shapes.sizes
    images, kernel = shapes.of_operands(op)
    (result,) = op.results
    said = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    found = list(shapes.fresh(result))
    features, batches = (
        integer_of(op, "feature_group_count"),
        integer_of(op, "batch_group_count"),
    )
    feature_groups, batch_groups = sizes.fresh(features), sizes.fresh(batches)
    inner = kernel[said.kernel_input_feature_dimension]
    outer = kernel[said.kernel_output_feature_dimension]
    sizes.make_equal(images[said.input_feature_dimension], feature_groups * inner)
    batch = found[said.output_batch_dimension]
    sizes.make_equal(images[said.input_batch_dimension], batch_groups * batch)
    found[said.output_feature_dimension] = outer
    for groups, count in ((feature_groups, features), (batch_groups, batches)):
        if count > 1:
            per_group = sizes.fresh(sizes.old_of(outer) // count)
            sizes.make_equal(outer, groups * per_group)
    spatial = len(said.input_spatial_dimensions)
    ones = [1] * spatial
    strides, base = numbers_of(op, "window_strides", ones), numbers_of(op, "lhs_dilation", ones)
    dilations, pads = numbers_of(op, "rhs_dilation", ones), pairs_of(op, "padding", spatial)
    for index, (image_dim, kernel_dim, result_dim) in enumerate(
        zip(
            said.input_spatial_dimensions,
            said.kernel_spatial_dimensions,
            said.output_spatial_dimensions,
            strict=True,
        )
    ):
        # The kernel of a gradient by weights is an image.
        is_image = dilations[index] > 1 or (
            strides[index] == base[index] == 1
            and sizes.old_of(kernel[kernel_dim]) > shape_of(result)[result_dim]
        )
        if not is_image:
            sizes.keep(kernel[kernel_dim])
        spread = images[image_dim] * base[index] + (1 - base[index])
        span = kernel[kernel_dim] * dilations[index] + (1 - dilations[index])
        ways = spread - span + sum(pads[index])
        _slide(shapes, ways, strides[index], found[result_dim])
    shapes.define(result, found)

    def write(new: Callable[[Size], int]) -> None:
        for name, size in (
            ("feature_group_count", feature_groups),
            ("batch_group_count", batch_groups),
        ):
            int64 = mlir.IntegerType.get_signless(64)
            op.attributes[name] = mlir.IntegerAttr.get(int64, new(size))

    shapes.rewrites.append(write)


def _slide(shapes: Shapes, ways: Size, stride: int, steps: Size) -> None:
    """A window takes ``steps`` places: it goes ``ways`` elements on, by ``stride``."""
    rest = shapes.sizes.old_of(ways) - stride * (shapes.sizes.old_of(steps) - 1)
    shapes.sizes.make_equal(ways, steps * stride + (rest - stride))


RULES: dict[str, Rule] = {
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.convolution": _convolution,
}
