"""The frontier of time and memory as a picture: step over peak, a point a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from autoshard.explain.headline_text import TextTable
from autoshard.planned.summary import PlanSummary, bytes_text, seconds_text

if TYPE_CHECKING:
    from autoshard.explain.frontier import Frontier, FrontierPoint

_WIDTH, _HEIGHT = 1000, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 60, 24, 44
_LINES = 4
"""Lines of the grid, each way."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and what stands below it for a plan."""

    heading: str
    cell: Callable[[FrontierPoint], str]


def frontier_columns(found: Frontier) -> list[Column]:
    """What is told of plans: of what they let go where some do.

    The last one says which is the plan, and what does not fit.
    """
    columns = [
        Column("step", lambda point: seconds_text(point.step_seconds)),
        Column("compute", lambda point: seconds_text(point.compute_seconds)),
        Column("communication", lambda point: seconds_text(point.communication_seconds)),
    ]
    again = any(point.recomputed_bytes for point in found.points)
    sends = any(point.host_transfer_bytes for point in found.points)
    columns += [Column("recomputed", _recomputed)] * again
    columns += [Column("host link", _sent)] * sends
    columns.append(Column("peak", lambda point: bytes_text(point.peak_bytes)))
    if not (again or sends):  # else no price alone leads to them
        columns.append(Column("mem_coeff", lambda point: f"{point.mem_coeff:.3g}"))
    return [*columns, Column("", _said)]


def _recomputed(point: FrontierPoint) -> str:
    return seconds_text(point.recompute_seconds) if point.recomputed_bytes else ""


def _sent(point: FrontierPoint) -> str:
    return bytes_text(point.host_transfer_bytes) if point.host_transfer_bytes else ""


def _said(point: FrontierPoint) -> str:
    return "the plan" if point.is_plan else "" if point.fits else "does not fit"


def frontier_text(found: Frontier) -> TextTable:
    """A row a plan, fastest first."""
    columns = frontier_columns(found)
    mesh = f" of mesh {found.mesh}" if found.is_of_one_mesh else ""
    return TextTable(
        f"Plans{mesh} that no other beats in time and memory",
        ("", *(column.heading for column in columns)),
        tuple(
            (str(number), *(column.cell(point) for column in columns))
            for number, point in enumerate(found.points, start=1)
        ),
    )


def frontier_svg(found: Frontier, summary: PlanSummary) -> str:
    """The plans of a frontier with their prices of memory, and the plan that was asked."""
    picture = _Picture(found, summary)
    label = f"Step over peak of memory of {len(found.points)} plans; the table has the numbers"
    return "\n".join(
        [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">',
            *picture.grid(),
            *picture.limit(),
            *picture.points(),
            "</svg>",
        ]
    )


class _Picture:
    """Parts of the picture."""

    def __init__(self, found: Frontier, summary: PlanSummary) -> None:
        self.found = found
        self.plan = summary.peak_bytes_per_device, summary.step_seconds
        self.places = [(point.peak_bytes, point.step_seconds) for point in found.points]
        (self.least, self.fastest), (self.most, self.slowest) = (
            tuple(pick(column) for column in zip(*self.places, self.plan, strict=True))
            for pick in (min, max)
        )

    def x(self, size: float) -> float:
        """Where so many bytes are."""
        part = (size - self.least) / (self.most - self.least or 1.0)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(self, seconds: float) -> float:
        """Where a step of so many seconds is."""
        part = (seconds - self.fastest) / (self.slowest - self.fastest or 1.0)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> Iterator[str]:
        """Lines with their bytes and seconds."""
        for size in _marks(self.least, self.most):
            x = f"{self.x(size):.1f}"
            yield (
                f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
                f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 24}" text-anchor="middle">'
                f"{bytes_text(size)}</text>"
            )
        for seconds in _marks(self.fastest, self.slowest):
            y = f"{self.y(seconds):.1f}"
            yield (
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
                f'<text x="{_LEFT - 14}" y="{y}" dy="4" text-anchor="end">'
                f"{seconds_text(seconds)}</text>"
            )

    def limit(self) -> Iterator[str]:
        """What is allowed, where that is between the plans."""
        allowed = self.found.memory_limit
        if self.least <= allowed <= self.most:
            x = f"{self.x(allowed):.1f}"
            yield (
                f'<line class="limit" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}">'
                f"<title>allowed: {bytes_text(allowed)}</title></line>"
            )

    def points(self) -> Iterator[str]:
        """The plans, and steps between them."""
        placed = [(self.x(peak), self.y(seconds)) for peak, seconds in self.places]
        path = f"M{placed[0][0]:.1f} {placed[0][1]:.1f}"
        path += "".join(f"H{x:.1f}V{y:.1f}" for x, y in placed[1:])
        yield f'<path class="front" d="{path}"/>'
        for (x, y), point in zip(placed, self.found.points, strict=True):
            lets_go = point.recomputed_bytes or point.host_transfer_bytes
            label = "" if lets_go else f"{point.mem_coeff:.3g}"
            title = _title(point)
            kind = "point" if point.fits else "point out"
            kind += " letting-go" if lets_go else ""
            yield (
                f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5">'
                f"<title>{escape(title)}</title></circle>"
                f'<text x="{x + 8:.1f}" y="{y - 8:.1f}">{label}</text>'
            )
        x, y = self.x(self.plan[0]), self.y(self.plan[1])
        side, anchor = (14, "start") if x < _WIDTH / 2 else (-14, "end")
        yield (
            f'<circle class="plan" cx="{x:.1f}" cy="{y:.1f}" r="10"><title>the plan</title>'
            f'</circle><text class="plan" x="{x + side:.1f}" y="{y + 4:.1f}"'
            f' text-anchor="{anchor}">the plan</text>'
        )


def _title(point: FrontierPoint) -> str:
    """What a point says when the mouse is on it."""
    again, sent = _recomputed(point), _sent(point)
    parts = (
        seconds_text(point.step_seconds),
        bytes_text(point.peak_bytes),
        f"{again} of computing values again" if again else "",
        f"{sent} over the host link" if sent else "",
        f"mem_coeff {point.mem_coeff:.3g}",
        _said(point),
    )
    return ", ".join(part for part in parts if part)


def _marks(least: float, most: float) -> list[float]:
    """What the lines of one way stand for."""
    if least == most:
        return [least]
    return [least + (most - least) * line / _LINES for line in range(_LINES + 1)]
