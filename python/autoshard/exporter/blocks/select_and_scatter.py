"""``select_and_scatter``, the gradient of a max pool, on blocks."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.exporter.blocks.block_op import Form, same_op, shardings
from autoshard.exporter.blocks.emitter import Axes, Emitter, local_type
from autoshard.exporter.blocks.windows import read_window
from autoshard.importer.windows import windowed_dims
from autoshard.ir import mlir
from autoshard.ir.reading import ints, shape_of
from autoshard.planned.module import PlannedOp
from autoshard.sharding.window import Window


@dataclass(frozen=True, slots=True)
class _Scattered:
    """Along one cut dim: the windows that touch a device's block, and what they read."""

    axes: Axes
    sources: Window
    """Results of the pool, one for each window."""
    images: Window
    """What these windows cover."""
    starts: tuple[int, ...]
    """Start of each device's own block in what the windows cover."""
    missing: int
    """Elements of own blocks behind the last window."""


def select_and_scatter_form(planned: PlannedOp) -> Form:
    """How ``planned``, a ``select_and_scatter`` without padding, is computed on equal blocks.

    Each device computes all windows that touch its block, those of its neighbours included, and
    keeps its block of the result. Windows that do not exist scatter zeros.
    """
    op = planned.op
    result = shardings(planned.computed)[0]
    cuts = {
        dim: _scattered(op, dim, result.dims[dim], result.num_shards(dim))
        for dim in windowed_dims(op)
        if result.dims[dim]
    }
    block = local_type(op.results[0].type, result)

    def compute(emit: Emitter, blocks: list[mlir.Value]) -> list[mlir.Value]:
        images, source, initial = blocks
        for dim, cut in cuts.items():
            images = read_window(emit, images, dim, cut.axes, cut.images)
            source = read_window(emit, source, dim, cut.axes, cut.sources)
        (made,) = same_op(op, emit, [images, source, initial], [images.type])
        for dim, cut in cuts.items():
            made = emit.padded(made, dim, 0, cut.missing, fill=initial)
            own = mlir.RankedTensorType(block).shape[dim]
            if len(set(cut.starts)) == 1:
                made = emit.slice(made, dim, cut.starts[0], cut.starts[0] + own)
            else:
                start = emit.looked_up(cut.starts, emit.index(cut.axes))
                made = emit.slice_at(made, dim, start, own)
        assert made.type == block
        return [made]

    return Form(compute)


def _scattered(op: mlir.Operation, dim: int, axes: Axes, count: int) -> _Scattered:
    size, sources = shape_of(op.operands[0])[dim], shape_of(op.operands[1])[dim]
    ones = [1] * len(shape_of(op.operands[0]))
    taps, stride = (ints(op, name, ones)[dim] for name in ("window_dimensions", "window_strides"))
    own = size // count
    firsts = [number * own // stride - -(-(taps - 1) // stride) for number in range(count)]
    ends = [((number + 1) * own - 1) // stride + 1 for number in range(count)]
    length = max(end - first for first, end in zip(firsts, ends, strict=True))
    covered = (length - 1) * stride + taps
    starts = tuple(number * own - first * stride for number, first in enumerate(firsts))
    offsets = (0,) * count
    return _Scattered(
        axes,
        Window(sources, tuple(firsts), length, 1, offsets, length),
        Window(size, tuple(first * stride for first in firsts), covered, 1, offsets, covered),
        starts,
        max(0, max(starts) + own - covered),
    )
