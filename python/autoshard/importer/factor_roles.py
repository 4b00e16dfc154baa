"""What a factor is for in its op, and what else about an op decides how it is partitioned.

A partitioner treats all batch dims of convolutions alike and all their image dims alike, so
verdicts about it (``partitioner.py``) go by *roles* of factors, not by numbers of dims. Where an
op has no words of its own a role is the kind of the factor: ``pass``, ``reduction``,
``permutation`` or ``whole``, the last one for factors that planning does not cut.

Example: of ``convolution ([i, j, k, l], [n, o, l, m])->([i, j, k, m])`` factor ``i`` is the
``batch``, ``j`` and ``k`` are ``image``, ``l`` is ``contracted`` and ``m`` is ``features``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from autoshard._core import FactorKind
from autoshard.compilers.partitioner import DTYPES
from autoshard.importer.factors import FactorRule
from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import shape_of

KINDS = {
    FactorKind.PASS_THROUGH: "pass",
    FactorKind.REDUCTION: "reduction",
    FactorKind.NEED_REPLICATION: "whole",
    FactorKind.PERMUTATION: "permutation",
}
"""Words for the kinds of factors."""

UNEVEN_CUT = "uneven_cut"
"""Trait of an op in a plan that cuts a dim of it into parts that are not equal."""

Places = frozenset[str]
"""Where a factor is: ``lhs.batch``; for most ops just ``operand``, ``result``."""


def role_of(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    """What ``factor`` is for.

    Args:
        op: A StableHLO or CHLO op.
        rule: Of the op, as ``rule_of`` of importer/rules.py gives it.
        factor: Its number in the rule.

    Returns:
        A word, with ``_minor`` behind it if in some tensor the factor is not the first of its dim:
        a cut of it has each device hold several pieces, unless the factors before it are cut up.
    """
    name = op.name.partition(".")[2]
    role = _ROLES.get(name, _kind_role)(op, rule, factor)
    is_minor = any(
        factor in dim[1:] for tensor in (*rule.operands, *rule.results) for dim in tensor
    )
    return f"{role}_minor" if is_minor else role


def traits_of(op: mlir.Operation) -> frozenset[str]:
    """What else about the op may decide whether it is partitioned right."""
    found = _TRAITS.get(op.name.partition(".")[2])
    traits = found(op) if found is not None else ()
    return frozenset((*traits, *_dtype_traits(op)))


# Roles ------------------------------------------------------------------------------------------


def _kind_role(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    kind = KINDS[rule.factors[factor].kind]
    if kind == "pass" and not _is_in(rule.operands, factor):
        return "new"
    return kind


def _touched(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    """Ops that move elements along some dims: the others are ``pass``."""
    role = _kind_role(op, rule, factor)
    return role if role in ("pass", "new") else "touched"


def _window(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    """Image dims that a window moves along are ``window``."""
    return "window" if rule.factors[factor].kind == FactorKind.PERMUTATION else "pass"


def _updated(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    """``updated``: a dim of the operand of which the update is a part."""
    if rule.factors[factor].kind == FactorKind.NEED_REPLICATION:
        return "update"
    return "pass" if _is_in(rule.operands[1:2], factor) else "updated"


def _sliced(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    return (
        "sliced"
        if rule.factors[factor].kind == FactorKind.NEED_REPLICATION
        else _kind_role(op, rule, factor)
    )


def _matmul(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    left, right = (_is_in(rule.operands[n : n + 1], factor) for n in (0, 1))
    if not _is_in(rule.results, factor):
        return "contracted"
    return "batch" if left and right else "left" if left else "right"


_CONVOLUTION_ROLES = {
    frozenset({"lhs.batch", "result.batch"}): "batch",
    frozenset({"kernel.features", "result.features"}): "features",
    frozenset({"lhs.features", "kernel.contracted"}): "contracted",
    frozenset({"lhs.image", "result.image"}): "image",
    frozenset({"lhs.image", "kernel.image"}): "image_contracted",
    frozenset({"kernel.image", "result.image"}): "image_of_kernel",
    frozenset({"lhs.features", "kernel.features", "result.features"}): "group",
    frozenset({"lhs.batch", "kernel.features", "result.features"}): "batch_group",
}


def _convolution(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    tensors = {
        "lhs": (
            rule.operands[0],
            {
                numbers.input_batch_dimension: "batch",
                numbers.input_feature_dimension: "features",
            },
        ),
        "kernel": (
            rule.operands[1],
            {
                numbers.kernel_input_feature_dimension: "contracted",
                numbers.kernel_output_feature_dimension: "features",
            },
        ),
        "result": (
            rule.results[0],
            {
                numbers.output_batch_dimension: "batch",
                numbers.output_feature_dimension: "features",
            },
        ),
    }
    places = frozenset(
        f"{tensor}.{names.get(dim, 'image')}"
        for tensor, (dims, names) in tensors.items()
        for dim, factors in enumerate(dims)
        if factor in factors
    )
    return _CONVOLUTION_ROLES.get(places, "+".join(sorted(places)) or "none")


def _gather(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    indexed, indices = (_is_in(rule.operands[n : n + 1], factor) for n in (0, 1))
    is_result = _is_in(rule.results, factor)
    if rule.factors[factor].kind == FactorKind.NEED_REPLICATION:
        return "part" if indexed else "index_vector"
    if indexed and indices:
        return "batch"
    if indices:
        return "indices"
    return "slice" if is_result else "indexed"


def _scatter(op: mlir.Operation, rule: FactorRule, factor: int) -> str:
    count = (len(op.operands) - 1) // 2
    updated = _is_in(rule.operands[:count], factor)
    indices = _is_in(rule.operands[count : count + 1], factor)
    updates = _is_in(rule.operands[count + 1 :], factor)
    if rule.factors[factor].kind == FactorKind.NEED_REPLICATION:
        return "index_vector" if indices else "part"
    if updated and indices:
        return "batch"
    if indices:
        return "indices"
    return "slice" if updates else "indexed"


def _is_in(tensors: Sequence[tuple[tuple[int, ...], ...]], factor: int) -> bool:
    return any(factor in dim for tensor in tensors for dim in tensor)


_ROLES: dict[str, Callable[[mlir.Operation, FactorRule, int], str]] = {
    "concatenate": _touched,
    "convolution": _convolution,
    "dot_general": _matmul,
    "dynamic_slice": _sliced,
    "dynamic_update_slice": _updated,
    "gather": _gather,
    "pad": _touched,
    "reduce_window": _window,
    "reverse": _touched,
    "scatter": _scatter,
    "select_and_scatter": _window,
    "slice": _touched,
}


# Traits -----------------------------------------------------------------------------------------


def _dtype_traits(op: mlir.Operation) -> Iterator[str]:
    values = op.operands if len(op.operands) else op.results
    if not len(values) or not isinstance(values[0].type, mlir.RankedTensorType):
        return
    name = str(values[0].type.element_type)
    if name.startswith("complex"):
        yield "complex"
    elif name == "i1":
        yield "bool"
    elif name.startswith(("i", "ui")):
        yield "integer"
    elif name in DTYPES:
        yield name


def _convolution_traits(op: mlir.Operation) -> Iterator[str]:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    lhs, kernel = (shape_of(operand) for operand in op.operands)
    images = [lhs[dim] for dim in numbers.input_spatial_dimensions]
    windows = [kernel[dim] for dim in numbers.kernel_spatial_dimensions]
    base = _numbers(op, "lhs_dilation", len(images), 1)
    dilation = _numbers(op, "rhs_dilation", len(images), 1)
    yield from _window_traits(
        _numbers(op, "window_strides", len(images), 1), base, dilation, _padding(op, len(images))
    )
    reach = [(window - 1) * step + 1 for window, step in zip(windows, dilation, strict=True)]
    whole = [(image - 1) * step + 1 for image, step in zip(images, base, strict=True)]
    if any(2 * window > image > 1 for window, image in zip(reach, whole, strict=True)):
        yield "large_window"
    if _integer(op, "feature_group_count") > 1:
        yield "grouped"
    if _integer(op, "batch_group_count") > 1:
        yield "batch_grouped"
    if "window_reversal" in op.attributes and any(
        mlir.DenseBoolArrayAttr(op.attributes["window_reversal"])
    ):
        yield "reversed"


def _reduce_window_traits(op: mlir.Operation) -> Iterator[str]:
    window = _numbers(op, "window_dimensions", 0, 1)
    rank = len(window)
    base, dilation = (_numbers(op, f"{name}_dilations", rank, 1) for name in ("base", "window"))
    strides, padding = _numbers(op, "window_strides", rank, 1), _padding(op, rank)
    yield from _window_traits(strides, base, dilation, padding)
    sizes = shape_of(op.operands[0])
    if any(1 < size == length for size, length in zip(sizes, window, strict=True)):
        yield "cumulative"
    elif any(2 * length > size > 1 for size, length in zip(sizes, window, strict=True)):
        yield "large_window"
    if len(op.results) > 1:
        yield "variadic"
    yield _reducer(op.regions[0])


def _select_and_scatter_traits(op: mlir.Operation) -> Iterator[str]:
    window = _numbers(op, "window_dimensions", 0, 1)
    strides, padding = _numbers(op, "window_strides", len(window), 1), _padding(op, len(window))
    if any(stride < length for stride, length in zip(strides, window, strict=True)):
        yield "overlapping"
    if any(stride > length for stride, length in zip(strides, window, strict=True)):
        yield "gaps"
    if any(low or high for low, high in padding):
        yield "padded"


def _window_traits(
    strides: Sequence[int],
    base: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Iterator[str]:
    if any(stride > 1 for stride in strides):
        yield "strided"
    if any(step > 1 for step in base):
        yield "base_dilated"
    if any(step > 1 for step in dilation):
        yield "window_dilated"
    if any(low < 0 or high < 0 for low, high in padding):
        yield "negative_pad"
    if any(low > 0 or high > 0 for low, high in padding):
        yield "padded"
    if any(low != high for low, high in padding):
        yield "uneven_pad"


def _pad_traits(op: mlir.Operation) -> Iterator[str]:
    low, high, interior = (
        _numbers(op, name, 0, 0)
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    if any(size < 0 for size in low):
        yield "negative_low"
    if any(size < 0 for size in high):
        yield "negative_high"
    if any(size > 0 for size in low):
        yield "low"
    if any(size > 0 for size in high):
        yield "high"
    if any(interior):
        yield "interior"


def _slice_traits(op: mlir.Operation) -> Iterator[str]:
    starts, strides = (_numbers(op, name, 0, 0) for name in ("start_indices", "strides"))
    if any(stride > 1 for stride in strides):
        yield "strided"
    if any(starts):
        yield "low"
    limits = _numbers(op, "limit_indices", 0, 0)
    if any(limit < size for limit, size in zip(limits, shape_of(op.operands[0]), strict=True)):
        yield "high"


def _gather_traits(op: mlir.Operation) -> Iterator[str]:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    sizes = _numbers(op, "slice_sizes", 0, 1)
    if _has_flag(op, "indices_are_sorted"):
        yield "sorted"
    yield from _index_traits(
        op.operands[1], numbers.start_index_map, gone, sizes, shape_of(op.operands[0])
    )


def _scatter_traits(op: mlir.Operation) -> Iterator[str]:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    gone = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    updates = shape_of(op.operands[len(op.operands) - 1])
    window = [updates[dim] for dim in numbers.update_window_dims]
    operand = shape_of(op.operands[0])
    sizes = [1 if dim in gone else window.pop(0) for dim in range(len(operand))]
    if _has_flag(op, "indices_are_sorted"):
        yield "sorted"
    if _has_flag(op, "unique_indices"):
        yield "unique"
    if len(op.results) > 1:
        yield "variadic"
    indices = op.operands[(len(op.operands) - 1) // 2]
    yield from _index_traits(indices, numbers.scattered_dims_to_operand_dims, gone, sizes, operand)
    yield _reducer(op.regions[0])


def _index_traits(
    indices: mlir.Value,
    indexed: Sequence[int],
    gone: set[int],
    sizes: Sequence[int],
    operand: Sequence[int],
) -> Iterator[str]:
    if prod(shape_of(indices)) == len(indexed):
        yield "one_index"
    if len(indexed) > 1:
        yield "several_dims"
    kept = [dim for dim in indexed if dim not in gone]
    if any(1 <= sizes[dim] < operand[dim] for dim in kept):
        yield "parts"
    if any(
        dim not in gone and dim not in indexed and sizes[dim] < operand[dim]
        for dim in range(len(operand))
    ):
        yield "cropped"


def _sort_traits(op: mlir.Operation) -> Iterator[str]:
    if len(op.results) > 1:
        yield "variadic"


def _reduce_traits(op: mlir.Operation) -> Iterator[str]:
    """What it reduces with. Partial results of several at once are gathered, not all-reduced."""
    yield "variadic" if len(op.results) > 1 else _reducer(op.regions[0])


_TRAITS: dict[str, Callable[[mlir.Operation], Iterator[str]]] = {
    "convolution": _convolution_traits,
    "gather": _gather_traits,
    "pad": _pad_traits,
    "reduce": _reduce_traits,
    "reduce_window": _reduce_window_traits,
    "scatter": _scatter_traits,
    "select_and_scatter": _select_and_scatter_traits,
    "slice": _slice_traits,
    "sort": _sort_traits,
}

_REDUCERS = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "multiply"}


def _reducer(region: mlir.Region) -> str:
    """What a region of two arguments makes of them; ``set`` takes the second one."""
    ops = [op.operation for op in region.blocks[0].operations]
    if len(ops) == 1:
        return "set"
    if len(ops) == 2:
        return _REDUCERS.get(ops[0].name.partition(".")[2], ops[0].name.partition(".")[2])
    return "other"


def _integer(op: mlir.Operation, name: str) -> int:
    return mlir.IntegerAttr(op.attributes[name]).value


def _has_flag(op: mlir.Operation, name: str) -> bool:
    return name in op.attributes and mlir.BoolAttr(op.attributes[name]).value


def _numbers(op: mlir.Operation, name: str, count: int, default: int) -> list[int]:
    """An array of integers; ``count`` times ``default`` where the op does not say it."""
    if name not in op.attributes:
        return [default] * count
    return list(mlir.DenseI64ArrayAttr(op.attributes[name]))


def _padding(op: mlir.Operation, count: int) -> list[tuple[int, int]]:
    if "padding" not in op.attributes:
        return [(0, 0)] * count
    numbers = [int(number) for number in mlir.DenseIntElementsAttr(op.attributes["padding"])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))
