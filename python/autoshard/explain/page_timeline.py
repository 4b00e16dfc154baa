"""A step as a picture: a lane for compute and one for each kind of links, a bar for what runs."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from math import floor, log10

from autoshard.explain.headline import SLICES, Headline
from autoshard.explain.record import Record
from autoshard.explain.timeline import Timeline, TimelineBar
from autoshard.planned.summary import seconds_text
from autoshard.verify.schedule.schedule import Stream

_WIDTH, _LEFT, _RIGHT = 1000, 100, 10
_LANE, _GAP = 34, 8
_BRACKET = 18
"""Height of a line of stretches."""
_AXIS, _PHASES = 22, 18
"""Height of the lines of text below the lanes."""
_LETTER = 6.5
"""Width of a letter."""
_LEAST_LETTERS = 8
"""A bar with room for less has no text."""
_BETWEEN = 0.3
"""Room between bars, and the least width of one."""
_LEAST_PART = 1e-6
"""Part of a step below which nothing is said of seconds: they are rounded."""
_TICKS = 8
"""Most marks of the axis."""


def timeline_svg(timeline: Timeline, seconds: float) -> str:
    """The step; empty if nothing is known of it.

    Args:
        timeline: What it does.
        seconds: Of the whole step; what no bar shows is left open at its end.
    """
    whole = max(seconds, timeline.seconds)
    if not timeline.bars or whole <= 0:
        return ""
    drawing = _Drawing(timeline, whole)
    label = f"Timeline of a step of {seconds_text(seconds)}; arrow keys go from bar to bar"
    return "\n".join(
        [
            f'<svg class="timeline" viewBox="0 0 {_WIDTH} {drawing.height}" role="group"'
            f' aria-label="{escape(label)}">',
            *drawing.phases(),
            *drawing.axis(),
            *drawing.repeats(),
            *(part for lane in timeline.lanes for part in drawing.lane(lane)),
            "</svg>",
        ]
    )


def not_drawn(record: Record, headline: Headline) -> str:
    """What of a step the bars do not show, in sentences; empty if they show all of it."""
    summary = headline.summary
    said: list[str] = []
    hidden = sum(bar.hidden_seconds for bar in record.timeline.bars)
    if hidden > summary.step_seconds * _LEAST_PART:
        said.append(
            f"{seconds_text(hidden)} of communication hide behind compute; the plan does not know"
            " where, and a bar of a link is what the step waits for."
        )
    slices = next((one for one in headline.shares if one.what == SLICES), None)
    if slices is not None and slices.seconds > summary.step_seconds * _LEAST_PART:
        said.append(f"Not drawn are {seconds_text(slices.seconds)} of {SLICES}.")
    if summary.host_exposed_seconds > 0:
        waited = seconds_text(summary.host_exposed_seconds)
        said.append(f"That a step waits {waited} for the host is not drawn, either.")
    return " ".join(said)


class _Drawing:
    """Parts of the picture."""

    def __init__(self, timeline: Timeline, whole: float) -> None:
        self.timeline = timeline
        self.whole = whole
        self.scale = (_WIDTH - _LEFT - _RIGHT) / whole
        depths = [one.depth for one in timeline.repeats]
        self.top = 6 + _BRACKET * (max(depths, default=-1) + 1)
        self.floor = self.top + len(timeline.lanes) * (_LANE + _GAP)
        has_phases = any(bar.phase for bar in timeline.bars)
        self.height = self.floor + _AXIS + (_PHASES if has_phases else 0)

    def x(self, seconds: float) -> float:
        """Where a moment of the step is."""
        return _LEFT + seconds * self.scale

    def phases(self) -> Iterator[str]:
        """Every other phase on another ground, with its name below."""
        bars = [bar for bar in self.timeline.bars if bar.phase]
        groups = [list(group) for _, group in groupby(bars, key=lambda bar: bar.phase)]
        ends = [group[0].start for group in groups[1:]] + [self.timeline.seconds]
        for number, (group, end) in enumerate(zip(groups, ends, strict=False)):
            start, phase = group[0].start, group[0].phase
            width = (end - start) * self.scale
            if number % 2 == 0:
                yield (
                    f'<rect class="phase" x="{self.x(start):.1f}" y="{self.top}"'
                    f' width="{width:.1f}" height="{self.floor - self.top}"/>'
                )
            if width > (len(phase) + 2) * _LETTER:
                x = self.x(start) + 2
                yield f'<text x="{x:.1f}" y="{self.floor + 32}">{escape(phase)}</text>'

    def axis(self) -> Iterator[str]:
        """Seconds since the step began."""
        for seconds in _ticks(self.whole):
            at = f"{self.x(seconds):.1f}"
            yield f'<line class="grid" x1="{at}" x2="{at}" y1="{self.top}" y2="{self.floor}"/>'
            is_last = self.x(seconds) > _WIDTH - 3 * _RIGHT
            anchor = "start" if seconds == 0 else "end" if is_last else "middle"
            yield (
                f'<text x="{at}" y="{self.floor + 14}" text-anchor="{anchor}">'
                f"{seconds_text(seconds) if seconds else '0'}</text>"
            )

    def repeats(self) -> Iterator[str]:
        """A bracket over each stretch."""
        for one in self.timeline.repeats:
            left, right = self.x(one.start), self.x(one.start + one.seconds)
            y = 6 + _BRACKET * one.depth
            times = f"× {one.times:g}"
            kind = "a loop" if one.is_loop else "layers that are alike"
            long = f"{times}, {seconds_text(one.seconds / one.times)} each: {kind}"
            room = (right - left) / _LETTER
            said = long if len(long) < room else times if len(times) < room else ""
            yield (
                f'<g class="repeat"><title>{long}, {seconds_text(one.seconds)} together'
                f'</title><path d="M{left:.1f} {y + 16}v-4h{right - left:.1f}v4"/>'
                f'<text x="{(left + right) / 2:.1f}" y="{y + 8}" text-anchor="middle">{said}'
                "</text></g>"
            )

    def lane(self, lane: str) -> Iterator[str]:
        """A lane with its bars."""
        top = self.top + self.timeline.lanes.index(lane) * (_LANE + _GAP) + _GAP / 2
        bars = [bar for bar in self.timeline.bars if lane in bar.lanes]
        taken = seconds_text(sum(bar.seconds for bar in bars))
        yield f'<g role="group" aria-label="{lane}: {taken}, {len(bars)} bars">'
        yield f'<text x="{_LEFT - 6}" y="{top + 14:g}" text-anchor="end">{lane}</text>'
        yield f'<text x="{_LEFT - 6}" y="{top + 28:g}" text-anchor="end">{taken}</text>'
        kind = "run" if lane == Stream.COMPUTE.value else "run link"
        for bar in bars:
            left, width = self.x(bar.start), bar.seconds * self.scale
            drawn = max(width - _BETWEEN if width > 2 else width, _BETWEEN)
            yield (
                f'<rect class="{kind}" x="{left:.2f}" y="{top:g}" width="{drawn:.2f}"'
                f' height="{_LANE}" tabindex="-1" role="img"><title>{escape(self._said(bar))}'
                "</title></rect>"
            )
            room = int((width - 6) / _LETTER)
            if room >= _LEAST_LETTERS:
                said = escape(_short(bar.name, room))
                yield f'<text class="on" x="{left + 3:.1f}" y="{top + 21:g}">{said}</text>'
        yield "</g>"

    def _said(self, bar: TimelineBar) -> str:
        """``layers/*/dot_general@mlp.py:41: 12 ms, 3.1% of the step, 80 runs``."""
        line = (bar.location or "").rpartition("/")[2]
        place = f" ({line})" if line and line not in bar.name else ""
        others = f" and {bar.count - 1} more" if bar.count > 1 else ""
        parts = [seconds_text(bar.seconds), f"{bar.seconds / self.whole:.2%} of the step"]
        if bar.hidden_seconds > self.whole * _LEAST_PART:
            parts.append(f"{seconds_text(bar.hidden_seconds)} more are hidden")
        if bar.runs != 1:
            parts.append(f"{bar.runs:,.0f} runs")
        parts += [bar.phase] if bar.phase else []
        return f"{bar.name}{place}{others}: {', '.join(parts)}"


def _ticks(whole: float) -> Iterator[float]:
    """Round numbers from 0 on, ``_TICKS`` at most between it and the end."""
    least = whole / _TICKS
    power = floor(log10(least))
    step = next(digit for digit in (1, 2, 5, 10) if digit * 10.0**power >= least)
    for tick in range(int(whole / (step * 10.0**power)) + 1):
        yield float(f"{tick * step}e{power}")


def _short(name: str, room: int) -> str:
    """The op of a name, ``dot_general``, as far as there is room."""
    word = name.partition(" of ")[0].partition("@")[0].rpartition("/")[2]
    return word if len(word) <= room else word[: room - 1] + "…"
