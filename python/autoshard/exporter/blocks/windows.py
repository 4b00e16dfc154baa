"""Reading a window of an operand that is cut: edges come from neighbours, padding is filled in.

``sharding/window.py`` says which elements these are.
"""

from __future__ import annotations

from autoshard.exporter.blocks.emitter import Axes, Emitter
from autoshard.ir import mlir
from autoshard.ir.reading import shape_of
from autoshard.sharding.window import Window


def read_window(
    emit: Emitter,
    block: mlir.Value,
    dim: int,
    axes: Axes,
    window: Window,
    fill: mlir.Value | None = None,
) -> mlir.Value:
    """The elements of this device's window, with ``fill`` (zero if None) for padding.

    Args:
        emit: Where to write.
        block: This device's block of the operand, whose ``dim`` is cut by ``axes``.
        dim: The dim.
        axes: They cut it into as many blocks as ``window`` has starts.
        window: The windows of all devices.
        fill: Scalar of the block's type.
    """
    own = shape_of(block)[dim]
    before, behind = window.halo(own)
    parts = [*_before(emit, block, dim, axes, before), block]
    parts += _behind(emit, block, dim, axes, behind)
    extended = emit.concatenated(parts, dim)
    starts = [start - number * own + before for number, start in enumerate(window.starts)]
    if len(set(starts)) == 1:
        found = emit.slice(extended, dim, starts[0], starts[0] + window.length)
    else:
        start = emit.looked_up(starts, emit.index(axes))
        found = emit.slice_at(extended, dim, start, window.length)
    if fill is None or not window.reaches_outside:
        return found
    return _filled(emit, found, dim, axes, window, fill)


def spread(
    emit: Emitter,
    elements: mlir.Value,
    dim: int,
    axes: Axes,
    window: Window,
    fill: mlir.Value | None = None,
) -> mlir.Value:
    """The ``extent`` positions of the window, padding written out."""
    if window.has_one_offset:
        return emit.padded(elements, dim, window.low, window.high, window.dilation - 1, fill)
    length = (window.length - 1) * window.dilation + 1
    missing = max(0, max(window.offsets) + window.extent - length)
    positions = emit.padded(elements, dim, 0, missing, window.dilation - 1, fill)
    start = emit.looked_up(window.offsets, emit.index(axes))
    return emit.slice_at(positions, dim, start, window.extent)


def _before(
    emit: Emitter, block: mlir.Value, dim: int, axes: Axes, length: int
) -> list[mlir.Value]:
    """The last ``length`` elements before the block, the farthest part first."""
    own = shape_of(block)[dim]
    parts: list[mlir.Value] = []
    for hops in range(1, -(-length // own) + 1):
        taken = min(own, length - (hops - 1) * own)
        part = emit.slice(block, dim, own - taken, own)
        parts.append(emit.shifted(part, axes, hops))
    return parts[::-1]


def _behind(
    emit: Emitter, block: mlir.Value, dim: int, axes: Axes, length: int
) -> list[mlir.Value]:
    """The first ``length`` elements behind the block, the nearest part first."""
    own = shape_of(block)[dim]
    parts: list[mlir.Value] = []
    for hops in range(1, -(-length // own) + 1):
        taken = min(own, length - (hops - 1) * own)
        part = emit.slice(block, dim, 0, taken)
        parts.append(emit.shifted(part, axes, -hops))
    return parts


def _filled(
    emit: Emitter, found: mlir.Value, dim: int, axes: Axes, window: Window, fill: mlir.Value
) -> mlir.Value:
    """``fill`` in place of what lies outside of the operand."""
    int32 = mlir.IntegerType.get_signless(32)
    shape = shape_of(found)
    start = emit.looked_up(window.starts, emit.index(axes))
    place = emit.binary(
        "add", emit.iota([shape[dim]], 0, int32), emit.broadcast(start, [shape[dim]])
    )
    zero, size = (emit.broadcast(emit.scalar(n, int32), [shape[dim]]) for n in (0, window.size))
    inside = emit.value(
        "stablehlo.and",
        emit.compared("GE", place, zero).type,
        [emit.compared("GE", place, zero), emit.compared("LT", place, size)],
    )
    return emit.selected(emit.broadcast(inside, shape, [dim]), found, emit.broadcast(fill, shape))
