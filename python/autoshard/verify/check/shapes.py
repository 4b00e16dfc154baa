"""How the sizes of a program's dims hang together, op by op.

Every op says which sizes are the same, which are sums or products of others, and which attributes
hold sizes. Of an op that has no rule here all sizes stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from autoshard.importer.rules import ELEMENTWISE_CHLO
from autoshard.ir import mlir, stablehlo
from autoshard.ir.attributes import IN_HOST_MEMORY, MARK
from autoshard.ir.module import functions_of
from autoshard.verify.check.attributes import (
    Numbers,
    cut_constant,
    dense_of,
    integer_of,
    numbers_of,
    pairs_of,
    shape_of,
)
from autoshard.verify.check.sizes import Size, Sizes, number, product_of

Shape = tuple[Size, ...]
Rewrite = Callable[[Callable[[Size], int]], None]
"""Writes new sizes into the attributes of an op; is given what each size becomes."""

IDENTITY_TARGETS = frozenset({"Sharding", MARK, IN_HOST_MEMORY, "annotate_device_placement"})
"""Custom calls whose result is their operand."""

_NEARLY = 4
"""A slice or pad that changes at most one part in so many changes a border, which stays as it is;
another one cuts or makes a part of a dim."""

_ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "and", "atan2", "bitcast_convert", "cbrt", "ceil", "clamp", "compare"),
        *("complex", "convert", "cosine", "count_leading_zeros", "divide", "exponential"),
        *("exponential_minus_one", "floor", "imag", "is_finite", "log", "log_plus_one"),
        *("logistic", "map", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt"),
        *("power", "real", "reduce_precision", "remainder", "reverse", "round_nearest_afz"),
        *("round_nearest_even", "rsqrt", "select", "shift_left", "shift_right_arithmetic"),
        *("shift_right_logical", "sign", "sine", "sort", "sqrt", "subtract", "tan", "tanh", "xor"),
        *("cholesky", "optimization_barrier"),
    )
) | {
    *ELEMENTWISE_CHLO,
    *("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier", "sdy.data_flow_edge"),
}
"""Ops of which operands and results of one rank and number have one shape."""


class Shapes:
    """The sizes of all values of a module's functions, and what must be rewritten with them."""

    def __init__(self, module: mlir.Module) -> None:
        self.sizes = Sizes()
        self.of: dict[mlir.Value, Shape] = {}
        self.rewrites: list[Rewrite] = []
        self.functions = functions_of(module)
        self.reached: list[str] = []
        self._results: dict[str, list[Shape]] = {}
        self._rules: dict[str, Callable[[mlir.Operation], None]] = {
            "stablehlo.constant": self._constant,
            "stablehlo.iota": self._source,
            "stablehlo.rng_bit_generator": self._random_bits,
            "stablehlo.transpose": self._transpose,
            "stablehlo.broadcast_in_dim": self._broadcast,
            "stablehlo.reshape": self._reshape,
            "stablehlo.concatenate": self._concatenate,
            "stablehlo.slice": self._slice,
            "stablehlo.pad": self._pad,
            "stablehlo.dynamic_slice": self._dynamic_slice,
            "stablehlo.dynamic_update_slice": self._dynamic_update_slice,
            "stablehlo.gather": self._gather,
            "stablehlo.scatter": self._scatter,
            "stablehlo.dot_general": self._dot,
            "stablehlo.reduce": self._reduce,
            "stablehlo.reduce_window": self._reduce_window,
            "stablehlo.select_and_scatter": self._select_and_scatter,
            "stablehlo.convolution": self._convolution,
            "stablehlo.triangular_solve": self._triangular_solve,
            "stablehlo.fft": self._fft,
            "stablehlo.custom_call": self._custom_call,
            "stablehlo.while": self._while,
            "stablehlo.case": self._branches,
            "stablehlo.if": self._branches,
            "func.call": self._call,
            "chlo.top_k": self._top_k,
        }
        self._function("main")

    # Functions and blocks -------------------------------------------------------------------

    def _function(self, name: str) -> None:
        """Read a function, of which the arguments may be known."""
        self.reached.append(name)
        (block,) = self.functions[name].regions[0].blocks
        for argument in block.arguments:
            self._define(argument, [self.sizes.fresh(old) for old in shape_of(argument)])
        self._results[name] = self._block(block)

    def _block(self, block: mlir.Block) -> list[Shape]:
        """Read all ops; the shapes of what the last one returns."""
        *ops, last = [op.operation for op in block.operations]
        for op in ops:
            self._op(op)
        return [self.of.get(value, ()) for value in last.operands]

    def _op(self, op: mlir.Operation) -> None:
        rule = self._rules.get(op.name)
        if rule is not None:
            rule(op)
        elif op.name in _ELEMENTWISE:
            self._elementwise(op)
        else:
            self._unknown(op)

    # What rules are made of -----------------------------------------------------------------

    def _define(self, value: mlir.Value, shape: Sequence[Size]) -> None:
        self.of[value] = tuple(shape)

    def _fresh(self, value: mlir.Value) -> Shape:
        return tuple(self.sizes.fresh(old) for old in shape_of(value))

    def _same(self, one: Sequence[Size], other: Sequence[Size]) -> None:
        for mine, theirs in zip(one, other, strict=True):
            self.sizes.make_equal(mine, theirs)

    def _keep(self, value: mlir.Value) -> None:
        for size in self.of.get(value, ()):
            self.sizes.keep(size)

    def _shapes(self, op: mlir.Operation) -> list[Shape]:
        return [self.of[value] for value in op.operands]

    def _set(self, op: mlir.Operation, name: str, sizes: Sequence[Size]) -> None:
        """The attribute ``name`` is a list of sizes."""

        def write(new: Callable[[Size], int]) -> None:
            op.attributes[name] = mlir.DenseI64ArrayAttr.get([new(size) for size in sizes])

        self.rewrites.append(write)

    def _part(self, whole: Size, old: int) -> Size:
        """A part of a dim, all of it if it is that now."""
        if old == self.sizes.old_of(whole):
            return whole
        part = self.sizes.fresh(old)
        self.sizes.keep_above(whole, part)
        return part

    def _check_part(self, whole: Size, part: Size) -> None:
        """As ``_part``, of a part that has a size."""
        if self.sizes.old_of(whole) == self.sizes.old_of(part):
            self.sizes.make_equal(whole, part)
        else:
            self.sizes.keep_above(whole, part)

    def _unknown(self, op: mlir.Operation) -> None:
        """All sizes that ``op`` sees stay as they are."""

        def visit(inner: mlir.Operation) -> mlir.WalkResult:
            for operand in inner.operands:
                self._keep(operand)
            return mlir.WalkResult.ADVANCE

        op.walk(visit)
        for result in op.results:
            self._define(result, [number(old) for old in shape_of(result)])

    # Rules ----------------------------------------------------------------------------------

    def _elementwise(self, op: mlir.Operation) -> None:
        """Scalars among the operands (of a clamp or select) are for all elements."""
        shapes = self._shapes(op)
        if op.name == "stablehlo.optimization_barrier":
            for result, shape in zip(op.results, shapes, strict=True):
                self._define(result, shape)
            return
        rank = len(shape_of(op.results[0]))
        if op.name == "stablehlo.bitcast_convert" and any(len(shape) != rank for shape in shapes):
            self._unknown(op)
            return
        full = next(shape for shape in shapes if len(shape) == rank)
        for shape in shapes:
            if len(shape) == rank:
                self._same(full, shape)
        for result in op.results:
            self._define(result, full)

    def _constant(self, op: mlir.Operation) -> None:
        (result,) = op.results
        if isinstance(mlir.RankedTensorType(result.type).element_type, mlir.ComplexType):
            self._unknown(op)
            return
        shape = self._fresh(result)
        self._define(result, shape)
        if shape:
            self.rewrites.append(lambda new: cut_constant(op, [new(size) for size in shape]))

    def _source(self, op: mlir.Operation) -> None:
        """Iotas."""
        self._define(op.results[0], self._fresh(op.results[0]))

    def _random_bits(self, op: mlir.Operation) -> None:
        self._keep(op.operands[0])
        self._define(op.results[0], self.of[op.operands[0]])
        self._define(op.results[1], self._fresh(op.results[1]))

    def _transpose(self, op: mlir.Operation) -> None:
        (shape,) = self._shapes(op)
        self._define(op.results[0], [shape[dim] for dim in numbers_of(op, "permutation")])

    def _broadcast(self, op: mlir.Operation) -> None:
        (shape,) = self._shapes(op)
        (result,) = op.results
        found = list(self._fresh(result))
        for size, dim in zip(shape, numbers_of(op, "broadcast_dimensions"), strict=True):
            if self.sizes.old_of(size) == shape_of(result)[dim]:
                found[dim] = size
        self._define(result, found)

    def _reshape(self, op: mlir.Operation) -> None:
        (shape,) = self._shapes(op)
        (result,) = op.results
        olds = shape_of(result)
        if 0 in olds:
            self._unknown(op)
            return
        before = [size for size in shape if self.sizes.old_of(size) != 1]
        found: list[Size] = []
        for group, parts in _groups([self.sizes.old_of(s) for s in before], _above_one(olds)):
            sizes, before = before[: len(group)], before[len(group) :]
            whole = product_of(sizes)
            found += [whole] if len(parts) == 1 else self.sizes.parts(whole, parts)
        parts_left = iter(found)
        self._define(result, [number(1) if old == 1 else next(parts_left) for old in olds])

    def _concatenate(self, op: mlir.Operation) -> None:
        shapes = self._shapes(op)
        dim = integer_of(op, "dimension")
        total = number(0)
        for shape in shapes:
            total = total + shape[dim]
            for other in range(len(shape)):
                if other != dim:
                    self.sizes.make_equal(shapes[0][other], shape[other])
        self._define(op.results[0], [*shapes[0][:dim], total, *shapes[0][dim + 1 :]])

    def _slice(self, op: mlir.Operation) -> None:
        (shape,) = self._shapes(op)
        starts, strides = numbers_of(op, "start_indices"), numbers_of(op, "strides")
        found: list[Size] = []
        firsts: list[Rewriter] = []
        for size, start, stride, old in zip(
            shape, starts, strides, shape_of(op.results[0]), strict=True
        ):
            whole = self.sizes.old_of(size)
            if old == 0:
                found.append(number(0))
                firsts.append(_Fixed(0))
                continue
            if stride > 1 and old > 1:
                # all but a border, every so many
                found.append(self.sizes.fresh(old))
                self.sizes.make_equal(size, found[-1] * stride + (whole - old * stride))
                firsts.append(_Fixed(start))
                continue
            if (whole - old) * _NEARLY <= whole:
                found.append(size + (old - whole))
                firsts.append(_Fixed(start))
                continue
            found.append(self._part(size, old))
            firsts.append(_Placed(start, whole, old, size, found[-1]))
        self._define(op.results[0], found)

        def write(new: Callable[[Size], int]) -> None:
            begin = [first.new(new) for first in firsts]
            end = [
                at + max(0, (new(size) - 1) * stride + 1)
                for at, size, stride in zip(begin, found, strides, strict=True)
            ]
            op.attributes["start_indices"] = mlir.DenseI64ArrayAttr.get(begin)
            op.attributes["limit_indices"] = mlir.DenseI64ArrayAttr.get(end)

        self.rewrites.append(write)

    def _pad(self, op: mlir.Operation) -> None:
        shape = self.of[op.operands[0]]
        lows, highs = numbers_of(op, "edge_padding_low"), numbers_of(op, "edge_padding_high")
        found: list[Size] = []
        befores: list[Rewriter] = []
        spread: list[Size] = []
        for size, low, high, interior, old in zip(
            shape,
            lows,
            highs,
            numbers_of(op, "interior_padding"),
            shape_of(op.results[0]),
            strict=True,
        ):
            inner = size * (interior + 1) + -interior if self.sizes.old_of(size) else size
            spread.append(inner)
            if min(low, high) < 0 or (low + high) * _NEARLY <= self.sizes.old_of(inner):
                found.append(inner + (low + high))
                befores.append(_Fixed(low))
                continue
            found.append(self.sizes.fresh(old))
            self.sizes.keep_above(found[-1], inner)
            befores.append(_Placed(low, old, self.sizes.old_of(inner), found[-1], inner))
        self._define(op.results[0], found)

        def write(new: Callable[[Size], int]) -> None:
            before = [each.new(new) for each in befores]
            after = [
                new(size) - new(inner) - low
                for size, inner, low in zip(found, spread, before, strict=True)
            ]
            op.attributes["edge_padding_low"] = mlir.DenseI64ArrayAttr.get(before)
            op.attributes["edge_padding_high"] = mlir.DenseI64ArrayAttr.get(after)

        self.rewrites.append(write)

    def _dynamic_slice(self, op: mlir.Operation) -> None:
        shape = self.of[op.operands[0]]
        found = [
            self._part(size, old)
            for size, old in zip(shape, numbers_of(op, "slice_sizes"), strict=True)
        ]
        self._define(op.results[0], found)
        self._set(op, "slice_sizes", found)

    def _dynamic_update_slice(self, op: mlir.Operation) -> None:
        shape, update, *_ = self._shapes(op)
        for size, part in zip(shape, update, strict=True):
            self._check_part(size, part)
        self._define(op.results[0], shape)

    def _gather(self, op: mlir.Operation) -> None:
        operand, indices = self._shapes(op)
        said = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        slices = [
            self._part(size, old)
            for size, old in zip(operand, numbers_of(op, "slice_sizes"), strict=True)
        ]
        left_out = {*said.collapsed_slice_dims, *said.operand_batching_dims}
        window = iter(slices[dim] for dim in range(len(slices)) if dim not in left_out)
        places = self._places(
            indices,
            said.index_vector_dim,
            (operand, said.operand_batching_dims, said.start_indices_batching_dims),
        )
        (result,) = op.results
        self._define(
            result,
            [
                next(window) if dim in said.offset_dims else next(places)
                for dim in range(len(shape_of(result)))
            ],
        )
        self._set(op, "slice_sizes", slices)

    def _scatter(self, op: mlir.Operation) -> None:
        shapes = self._shapes(op)
        count = len(op.results)
        inputs, indices, updates = shapes[:count], shapes[count], shapes[count + 1 :]
        said = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        left_out = {*said.inserted_window_dims, *said.input_batching_dims}
        for operand, update in zip(inputs, updates, strict=True):
            self._same(inputs[0], operand)
            window = iter(operand[dim] for dim in range(len(operand)) if dim not in left_out)
            places = self._places(
                indices,
                said.index_vector_dim,
                (operand, said.input_batching_dims, said.scatter_indices_batching_dims),
            )
            for dim, size in enumerate(update):
                if dim in said.update_window_dims:
                    self._check_part(next(window), size)
                else:
                    self.sizes.make_equal(next(places), size)
        for result, operand in zip(op.results, inputs, strict=True):
            self._define(result, operand)

    def _places(
        self, indices: Shape, vector_dim: int, batch: tuple[Shape, Numbers, Numbers]
    ) -> Iterator[Size]:
        """The dims of indices that say how many there are; what an index consists of stays."""
        operand, operand_dims, index_dims = batch
        for mine, theirs in zip(operand_dims, index_dims, strict=True):
            self.sizes.make_equal(operand[mine], indices[theirs])
        if vector_dim < len(indices):
            self.sizes.keep(indices[vector_dim])
        return iter([size for dim, size in enumerate(indices) if dim != vector_dim])

    def _dot(self, op: mlir.Operation) -> None:
        left, right = self._shapes(op)
        said = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        batch = list(said.lhs_batching_dimensions), list(said.rhs_batching_dimensions)
        summed = list(said.lhs_contracting_dimensions), list(said.rhs_contracting_dimensions)
        for mine, theirs in (*zip(*batch, strict=True), *zip(*summed, strict=True)):
            self.sizes.make_equal(left[mine], right[theirs])
        found = [left[dim] for dim in batch[0]]
        for shape, used in ((left, batch[0] + summed[0]), (right, batch[1] + summed[1])):
            found += [size for dim, size in enumerate(shape) if dim not in used]
        self._define(op.results[0], found)

    def _reduce(self, op: mlir.Operation) -> None:
        shapes = self._shapes(op)[: len(op.results)]
        gone = numbers_of(op, "dimensions")
        for result, shape in zip(op.results, shapes, strict=True):
            self._same(shapes[0], shape)
            self._define(result, [size for dim, size in enumerate(shape) if dim not in gone])

    def _reduce_window(self, op: mlir.Operation) -> None:
        shapes = self._shapes(op)[: len(op.results)]
        rank = len(shapes[0])
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
        for dim, (size, length, (low, high)) in enumerate(
            zip(shapes[0], window, pads, strict=True)
        ):
            whole = self.sizes.old_of(size)
            plain = strides[dim] == base[dim] == dilations[dim] == 1
            if plain and length == whole > 1 and (low, high) in ((whole - 1, 0), (0, whole - 1)):
                # a cumulative sum
                found.append(size)
                windows.append(size)
                border = size + -1
                new_pads.append((border, number(0)) if low else (number(0), border))
                continue
            found.append(self.sizes.fresh(shape_of(op.results[0])[dim]))
            windows.append(number(length))
            new_pads.append((number(low), number(high)))
            spread = size * base[dim] + (1 - base[dim])
            span = number(dilations[dim] * (length - 1) + 1)
            self._slide(spread + (low + high) - span, strides[dim], found[-1])
        for result, shape in zip(op.results, shapes, strict=True):
            self._same(shapes[0], shape)
            self._define(result, found)
        self._set(op, "window_dimensions", windows)
        if "padding" in op.attributes:

            def write(new: Callable[[Size], int]) -> None:
                values = np.array([[new(low), new(high)] for low, high in new_pads], np.int64)
                op.attributes["padding"] = dense_of(values, op.attributes["padding"].type)

            self.rewrites.append(write)

    def _slide(self, ways: Size, stride: int, steps: Size) -> None:
        """A window takes ``steps`` places: it goes ``ways`` elements on, by ``stride``."""
        rest = self.sizes.old_of(ways) - stride * (self.sizes.old_of(steps) - 1)
        self.sizes.make_equal(ways, steps * stride + (rest - stride))

    def _select_and_scatter(self, op: mlir.Operation) -> None:
        operand, source, _ = self._shapes(op)
        rank = len(operand)
        window = numbers_of(op, "window_dimensions", [1] * rank)
        strides = numbers_of(op, "window_strides", [1] * rank)
        for dim, (low, high) in enumerate(pairs_of(op, "padding", rank)):
            ways = operand[dim] + (low + high - window[dim])
            self._slide(ways, strides[dim], source[dim])
        self._define(op.results[0], operand)

    def _convolution(self, op: mlir.Operation) -> None:
        images, kernel = self._shapes(op)
        (result,) = op.results
        said = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        found = list(self._fresh(result))
        features, batches = (
            integer_of(op, "feature_group_count"),
            integer_of(op, "batch_group_count"),
        )
        feature_groups, batch_groups = self.sizes.fresh(features), self.sizes.fresh(batches)
        inner = kernel[said.kernel_input_feature_dimension]
        outer = kernel[said.kernel_output_feature_dimension]
        self.sizes.make_equal(images[said.input_feature_dimension], feature_groups * inner)
        batch = found[said.output_batch_dimension]
        self.sizes.make_equal(images[said.input_batch_dimension], batch_groups * batch)
        found[said.output_feature_dimension] = outer
        for groups, count in ((feature_groups, features), (batch_groups, batches)):
            if count > 1:
                per_group = self.sizes.fresh(self.sizes.old_of(outer) // count)
                self.sizes.make_equal(outer, groups * per_group)
        spatial = len(said.input_spatial_dimensions)
        ones = [1] * spatial
        strides, base = numbers_of(op, "window_strides", ones), numbers_of(op, "lhs_dilation", ones)
        dilations, pads = numbers_of(op, "rhs_dilation", ones), pairs_of(op, "padding", spatial)
        for number_, (image_dim, kernel_dim, result_dim) in enumerate(
            zip(
                said.input_spatial_dimensions,
                said.kernel_spatial_dimensions,
                said.output_spatial_dimensions,
                strict=True,
            )
        ):
            # that of a gradient by weights is an image
            is_image = dilations[number_] > 1 or (
                strides[number_] == base[number_] == 1
                and self.sizes.old_of(kernel[kernel_dim]) > shape_of(result)[result_dim]
            )
            if not is_image:
                self.sizes.keep(kernel[kernel_dim])
            spread = images[image_dim] * base[number_] + (1 - base[number_])
            span = kernel[kernel_dim] * dilations[number_] + (1 - dilations[number_])
            ways = spread - span + sum(pads[number_])
            self._slide(ways, strides[number_], found[result_dim])
        self._define(result, found)

        def write(new: Callable[[Size], int]) -> None:
            for name, size in (
                ("feature_group_count", feature_groups),
                ("batch_group_count", batch_groups),
            ):
                int64 = mlir.IntegerType.get_signless(64)
                op.attributes[name] = mlir.IntegerAttr.get(int64, new(size))

        self.rewrites.append(write)

    def _triangular_solve(self, op: mlir.Operation) -> None:
        left, right = self._shapes(op)
        self._same(left[:-2], right[:-2])
        self.sizes.make_equal(left[-1], left[-2])
        is_left = mlir.BoolAttr(op.attributes["left_side"]).value
        self.sizes.make_equal(left[-1], right[-2] if is_left else right[-1])
        self._define(op.results[0], right)

    def _fft(self, op: mlir.Operation) -> None:
        (shape,) = self._shapes(op)
        kept = len(numbers_of(op, "fft_length"))
        for size in shape[-kept:]:
            self.sizes.keep(size)
        olds = shape_of(op.results[0])
        self._define(op.results[0], [*shape[:-kept], *map(number, olds[-kept:])])

    def _top_k(self, op: mlir.Operation) -> None:
        (shape,) = self._shapes(op)
        last = number(shape_of(op.results[0])[-1])
        self.sizes.keep_above(shape[-1], last)
        for result in op.results:
            self._define(result, [*shape[:-1], last])

    def _custom_call(self, op: mlir.Operation) -> None:
        target = mlir.StringAttr(op.attributes["call_target_name"]).value
        if target in IDENTITY_TARGETS and len(op.operands) == 1:
            self._define(op.results[0], self.of[op.operands[0]])
        else:
            self._unknown(op)

    def _call(self, op: mlir.Operation) -> None:
        name = mlir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if name not in self._results:
            self._function(name)
        (block,) = self.functions[name].regions[0].blocks
        for operand, argument in zip(op.operands, block.arguments, strict=True):
            self._same(self.of[operand], self.of[argument])
        for result, shape in zip(op.results, self._results[name], strict=True):
            self._define(result, shape)

    def _while(self, op: mlir.Operation) -> None:
        carried = self._shapes(op)
        for region in op.regions:
            (block,) = region.blocks
            for argument, shape in zip(block.arguments, carried, strict=True):
                self._define(argument, shape)
        condition, body = op.regions
        self._block(condition.blocks[0])
        for shape, yielded in zip(carried, self._block(body.blocks[0]), strict=True):
            self._same(shape, yielded)
        for result, shape in zip(op.results, carried, strict=True):
            self._define(result, shape)

    def _branches(self, op: mlir.Operation) -> None:
        first, *others = [self._block(region.blocks[0]) for region in op.regions]
        for other in others:
            for mine, theirs in zip(first, other, strict=True):
                self._same(mine, theirs)
        for result, shape in zip(op.results, first, strict=True):
            self._define(result, shape)


# Places of parts --------------------------------------------------------------------------------


class _Fixed:
    """An offset that stays."""

    def __init__(self, at: int) -> None:
        self.at = at

    def new(self, new: Callable[[Size], int]) -> int:
        return self.at


class _Placed:
    """Where a part of a dim starts: at the same end as before, or as far between them."""

    def __init__(self, at: int, whole: int, part: int, new_whole: Size, new_part: Size) -> None:
        self.at, self.room = at, whole - part
        self.whole, self.part = new_whole, new_part

    def new(self, new: Callable[[Size], int]) -> int:
        room = new(self.whole) - new(self.part)
        return round(self.at * room / self.room) if self.room else 0


Rewriter = _Fixed | _Placed


# Dims of reshapes ---------------------------------------------------------------------------------


def _above_one(olds: Sequence[int]) -> list[int]:
    return [old for old in olds if old != 1]


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
