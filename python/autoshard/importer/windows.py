"""Rules of ops that read windows: which of their dims may be cut together, and what that sends.

Shardy's rules tie dims of equal size. A window op is cut by what it computes: the image of a
convolution with its result, or, where the "kernel" is as large as the image (the gradient of a
kernel), with that, as a sum. Each factor here has one dim of each tensor, whose sizes may differ;
all must fall into equal blocks. The exporter computes every such cut block by block
(``exporter/blocks``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoshard._core import FactorKind
from autoshard.importer.factors import Factor, FactorRule
from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import ints, pairs_of, shape_of
from autoshard.sharding.window import Window, window_of

_SPLIT = 2
"""Devices along a dim for which a halo is counted: it is as long on more, where blocks of operand
and result are in proportion."""

_LONG = 0.5
"""A halo that is more than this of the whole dim is not exchanged: the dim stays whole."""


_Tensor = list[tuple[int, ...]]
"""The factors of each dim of one tensor."""


@dataclass(slots=True)
class _Draft:
    """A rule that is being changed."""

    factors: list[Factor]
    operands: list[_Tensor]
    results: list[_Tensor]

    @classmethod
    def of(cls, rule: FactorRule) -> _Draft:
        return cls(
            list(rule.factors),
            [[*dims] for dims in rule.operands],
            [[*dims] for dims in rule.results],
        )

    def rule(self) -> FactorRule:
        """What no dim has any more is not cut."""
        used = {f for tensor in (*self.operands, *self.results) for dim in tensor for f in dim}
        return FactorRule(
            tuple(
                factor if index in used else replace(factor, kind=FactorKind.NEED_REPLICATION)
                for index, factor in enumerate(self.factors)
            ),
            tuple(map(tuple, self.operands)),
            tuple(map(tuple, self.results)),
        )

    def join(
        self, dims: Sequence[tuple[_Tensor, int]], size: int, kind: FactorKind, halo: int
    ) -> None:
        """One new factor for some dims, in place of those they had; none if nothing is made."""
        for tensor, dim in dims:
            tensor[dim] = (len(self.factors),) if size else ()
        if size:
            self.factors.append(Factor(size, kind, halo))


def with_windows(op: mlir.Operation, rule: FactorRule) -> FactorRule:
    """The rule of an op, Shardy's for ops that read no windows."""
    change = _CHANGES.get(op.name)
    if change is None:
        return rule
    draft = _Draft.of(rule)
    change(op, draft)
    return draft.rule()


def window_key(op: mlir.Operation) -> tuple[object, ...]:
    """What two ops, of equal types and rules of Shardy's, must share to have one rule here."""
    named = _KEYS.get(op.name, ())
    attributes = tuple(op.attributes[name] for name in named if name in op.attributes)
    if op.name == "stablehlo.select_and_scatter":
        return (*attributes, _adds(op, 1))
    return attributes


_POOLS = ("window_dimensions", "window_strides", "padding", "window_dilations", "base_dilations")
_KEYS = {
    "stablehlo.convolution": (
        *("dimension_numbers", "padding", "window_strides", "lhs_dilation", "rhs_dilation"),
        "window_reversal",
    ),
    "stablehlo.reduce_window": _POOLS,
    "stablehlo.select_and_scatter": _POOLS[:3],
    "stablehlo.pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
}


def block_dims(op: mlir.Operation) -> dict[int, int]:
    """Dims of the first operand that XLA does not cut right, with those of the result that each
    becomes: the exporter cuts them, in equal blocks.

    ``bench/truth/partitioner.py`` says which (docs/design/partitioner.md).
    """
    match op.name:
        case "stablehlo.convolution":
            numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            made = numbers.output_spatial_dimensions
            return dict(zip(numbers.input_spatial_dimensions, made, strict=True))
        case "stablehlo.select_and_scatter":
            dims = windowed_dims(op)
        case "stablehlo.reduce_window":
            dims = [dim for dim in windowed_dims(op) if _is_hard_for_pools(op, dim)]
        case "stablehlo.pad":
            # A dim of no elements becomes padding alone.
            sizes, interior = shape_of(op.operands[0]), ints(op, "interior_padding", [])
            dims = [dim for dim in padded_dims(op) if sizes[dim] and interior[dim] > 0]
        case "stablehlo.dynamic_update_slice":
            dims = updated_dims(op)
        case _:
            dims = []
    return dict(zip(dims, dims, strict=True))


def block_factors(op: mlir.Operation, rule: FactorRule) -> frozenset[int]:
    """The factors of these dims."""
    return frozenset(factor for dim in block_dims(op) for factor in rule.operands[0][dim])


def updated_dims(op: mlir.Operation) -> list[int]:
    """Dims of a ``dynamic_update_slice`` of which only a part is written."""
    shapes = zip(shape_of(op.operands[0]), shape_of(op.operands[1]), strict=True)
    return [dim for dim, (whole, part) in enumerate(shapes) if whole != part]


def _convolution(op: mlir.Operation, draft: _Draft) -> None:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    images, kernel = draft.operands
    (results,) = draft.results
    for number, dim in enumerate(numbers.input_spatial_dimensions):
        taps_dim = numbers.kernel_spatial_dimensions[number]
        made_dim = numbers.output_spatial_dimensions[number]
        # An image may have no pixels but padding.
        size = max(1, shape_of(op.operands[0])[dim])
        taps = shape_of(op.operands[1])[taps_dim]
        made = shape_of(op.results[0])[made_dim]
        image = _halo(convolution_window(op, number, _SPLIT, is_contracted=False), size)
        contracted = _halo(convolution_window(op, number, _SPLIT, is_contracted=True), size)
        for tensor, cut in ((images, dim), (kernel, taps_dim), (results, made_dim)):
            tensor[cut] = ()
        # A sum over taps of no elements has no blocks that add up to it.
        if made and taps > 1 and contracted < image and not _is_reversed(op, number):
            units = -(-contracted * taps // size)
            kind = (
                FactorKind.NEED_REPLICATION if contracted > _LONG * size else FactorKind.REDUCTION
            )
            draft.join([(images, dim), (kernel, taps_dim)], taps, kind, units)
        else:
            units = -(-image * made // size)
            kind = FactorKind.NEED_REPLICATION if image > _LONG * size else FactorKind.PERMUTATION
            draft.join([(images, dim), (results, made_dim)], made, kind, units)
            # Contracted by one device: what fills the tiles of its matrix unit.
            draft.join([(kernel, taps_dim)], taps, FactorKind.NEED_REPLICATION, 0)


def convolution_window(
    op: mlir.Operation, number: int, count: int, *, is_contracted: bool
) -> Window:
    """What each of ``count`` devices reads of the images of a convolution.

    Args:
        op: ``stablehlo.convolution``.
        number: Of the spatial dim.
        count: Devices along it.
        is_contracted: They have parts of the kernel, and so parts of a sum; else of the result.
    """
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    ones = [1] * len(numbers.input_spatial_dimensions)
    taps = shape_of(op.operands[1])[numbers.kernel_spatial_dimensions[number]]
    results = shape_of(op.results[0])[numbers.output_spatial_dimensions[number]]
    stride, reach = (ints(op, name, ones)[number] for name in ("window_strides", "rhs_dilation"))
    if is_contracted:
        taps //= count
    else:
        results //= count
    return window_of(
        size=shape_of(op.operands[0])[numbers.input_spatial_dimensions[number]],
        count=count,
        step=taps * reach if is_contracted else results * stride,
        low=pairs_of(op, "padding", len(ones))[number][0],
        extent=max(0, results - 1) * stride + max(0, taps - 1) * reach + 1,
        dilation=ints(op, "lhs_dilation", ones)[number],
    )


def _reduce_window(op: mlir.Operation, draft: _Draft) -> None:
    for dim in windowed_dims(op):
        window = reduce_window_window(op, dim, _SPLIT)
        size, made = shape_of(op.operands[0])[dim], shape_of(op.results[0])[dim]
        halo = _halo(window, size)
        kind = FactorKind.NEED_REPLICATION if halo > _LONG * size else FactorKind.PERMUTATION
        images = draft.operands[: len(op.results)]
        draft.join(
            [(tensor, dim) for tensor in (*images, *draft.results)],
            made,
            kind,
            -(-halo * made // max(1, size)),
        )


def windowed_dims(op: mlir.Operation) -> list[int]:
    """Dims of a pool or its gradient along which a result reads more than its own element."""
    rank = len(shape_of(op.operands[0]))
    names = ("window_dimensions", "window_strides", "base_dilations")
    numbers = [ints(op, name, [1] * rank) for name in names]
    padding = pairs_of(op, "padding", rank)
    return [
        dim
        for dim in range(rank)
        if any(each[dim] != 1 for each in numbers) or padding[dim] != (0, 0)
    ]


def reduce_window_window(op: mlir.Operation, dim: int, count: int) -> Window:
    """What each of ``count`` devices reads of the operands of a ``reduce_window``."""
    shape = shape_of(op.operands[0])
    ones = [1] * len(shape)
    names = ("window_dimensions", "window_strides", "window_dilations", "base_dilations")
    taps, stride, reach, dilation = (ints(op, name, ones)[dim] for name in names)
    made = shape_of(op.results[0])[dim] // count
    return window_of(
        size=shape[dim],
        count=count,
        step=made * stride,
        low=pairs_of(op, "padding", len(shape))[dim][0],
        extent=max(0, made - 1) * stride + (taps - 1) * reach + 1,
        dilation=dilation,
    )


def _is_hard_for_pools(op: mlir.Operation, dim: int) -> bool:
    """Whether XLA may abort where a ``reduce_window`` is cut: it reads fewer elements than made."""
    window = reduce_window_window(op, dim, max(1, shape_of(op.results[0])[dim]))
    padding = pairs_of(op, "padding", dim + 1)[dim]
    return window.dilation != 1 or min(padding) < 0 or not window.has_elements


def _select_and_scatter(op: mlir.Operation, draft: _Draft) -> None:
    """Operand, source and result are cut together, if windows are not padded and sums add up."""
    (images, source, _), (results,) = draft.operands, draft.results
    is_split = _adds(op, 1) and not any(map(any, pairs_of(op, "padding", len(images))))
    for dim in windowed_dims(op):
        stride, taps = (ints(op, n, [])[dim] for n in ("window_strides", "window_dimensions"))
        made = shape_of(op.operands[1])[dim]
        halo = -(-(taps - 1) // stride)
        kind = (
            FactorKind.PERMUTATION
            if is_split and halo <= _LONG * made
            else FactorKind.NEED_REPLICATION
        )
        draft.join([(images, dim), (source, dim), (results, dim)], made, kind, halo)


def _pad(op: mlir.Operation, draft: _Draft) -> None:
    (image, _), (results,) = draft.operands, draft.results
    for dim in padded_dims(op):
        size, made = shape_of(op.operands[0])[dim], shape_of(op.results[0])[dim]
        halo = _halo(pad_window(op, dim, _SPLIT), size)
        units = -1 if halo > _LONG * size else -(-halo * made // max(1, size))
        draft.join([(image, dim), (results, dim)], made, FactorKind.PERMUTATION, units)


def pad_window(op: mlir.Operation, dim: int, count: int) -> Window:
    """What each of ``count`` devices reads of the operand of a ``pad``."""
    made = shape_of(op.results[0])[dim] // count
    return window_of(
        size=shape_of(op.operands[0])[dim],
        count=count,
        step=made,
        low=ints(op, "edge_padding_low", [])[dim],
        extent=made,
        dilation=ints(op, "interior_padding", [])[dim] + 1,
    )


def padded_dims(op: mlir.Operation) -> list[int]:
    """Dims along which a ``pad`` adds or takes elements."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    numbers = [ints(op, name, []) for name in names]
    return [dim for dim in range(len(numbers[0])) if any(each[dim] for each in numbers)]


def _halo(window: Window, size: int) -> int:
    """Elements that a device of ``_SPLIT`` needs from others."""
    return sum(window.halo(size // _SPLIT)) if size >= _SPLIT else size


def _is_reversed(op: mlir.Operation, number: int) -> bool:
    return bool(ints(op, "window_reversal", [0] * (number + 1))[number])


def _adds(op: mlir.Operation, region: int) -> bool:
    """Whether a region of an op adds its two arguments."""
    first, *rest = op.regions[region].blocks[0].operations
    if first.operation.name != "stablehlo.add" or len(rest) != 1:
        return False
    arguments = list(op.regions[region].blocks[0].arguments)
    returned = list(rest[0].operation.operands)
    return list(first.operation.operands) in (arguments, arguments[::-1]) and returned == list(
        first.operation.results
    )


_CHANGES: dict[str, Callable[[mlir.Operation, _Draft], None]] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.pad": _pad,
}
