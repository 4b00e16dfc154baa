"""Memory over a step as a picture: SVG, with what runs at each point in its titles."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from autoshard.explain.record import MemoryPoint, Record
from autoshard.planned.summary import bytes_text

_WIDTH, _HEIGHT = 1000, 300
_LEFT, _BOTTOM, _TOP = 70, 24, 12
_LINES = 4
"""Lines of the grid."""


def memory_svg(record: Record) -> str:
    """The fullest point of each stretch of the program, and the limit; empty if none is known."""
    points = record.memory
    if not points:
        return ""
    limit = None if record.summary is None else record.summary.memory_limit
    most = max(point.bytes for point in points)
    top = limit if limit is not None and limit < most * 4 else most
    scale = (_HEIGHT - _BOTTOM - _TOP) / (top or 1.0)

    def y(size: float) -> float:
        return _HEIGHT - _BOTTOM - size * scale

    step = (_WIDTH - _LEFT) / len(points)
    label = f"Memory over the step, at most {bytes_text(most)} on a device"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">',
        *_phases(points, step),
    ]
    for line in range(_LINES + 1):
        size = top * line / _LINES
        at = f"{y(size):.1f}"
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{at}" y2="{at}"/>'
            f'<text x="{_LEFT - 6}" y="{at}" dy="4" text-anchor="end">{bytes_text(size)}</text>'
        )
    outline = " ".join(
        f"{_LEFT + step * (at + side):.1f},{y(point.bytes):.1f}"
        for at, point in enumerate(points)
        for side in (0, 1)
    )
    floor = y(0)
    parts.append(
        f'<polygon class="area" points="{_LEFT},{floor:.1f} {outline} {_WIDTH},{floor:.1f}"/>'
    )
    if limit is not None and top == limit:
        parts.append(
            f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH}" y1="{y(limit):.1f}"'
            f' y2="{y(limit):.1f}"><title>allowed: {bytes_text(limit)}</title></line>'
        )
    for at, point in enumerate(points):
        place = "" if point.location is None else f" ({point.location.rpartition('/')[2]})"
        title = escape(f"op {point.op}: {point.name}{place}, {bytes_text(point.bytes)}")
        parts.append(
            f'<rect class="at" x="{_LEFT + step * at:.1f}" y="{_TOP}" width="{step:.1f}"'
            f' height="{_HEIGHT - _BOTTOM - _TOP}"><title>{title}</title></rect>'
        )
    return "\n".join([*parts, "</svg>"])


def _phases(points: tuple[MemoryPoint, ...], step: float) -> Iterator[str]:
    """Every other phase on another ground, with its name below."""
    at = 0
    for number, (phase, group) in enumerate(groupby(points, key=lambda point: point.phase)):
        count = len(list(group))
        x, width = _LEFT + step * at, step * count
        if number % 2 == 0:
            yield (
                f'<rect class="phase" x="{x:.1f}" y="{_TOP}" width="{width:.1f}"'
                f' height="{_HEIGHT - _BOTTOM - _TOP}"/>'
            )
        if width > 60:
            yield f'<text x="{x + 4:.1f}" y="{_HEIGHT - 8}">{escape(phase)}</text>'
        at += count
