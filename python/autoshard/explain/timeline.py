"""What a device does when in a step: bars on the lanes of its compute and of its links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autoshard.explain.record_names import scope_of
from autoshard.verify.schedule.schedule import Schedule, Stream

PARTS = 1000
"""Bars that take less than this part of a step are one with their neighbours."""


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """An op, a collective or a transfer, or several that are short."""

    lanes: tuple[str, ...]
    """Values of ``Stream``: all that it takes while it runs."""
    name: str
    """What it is, with its line; of several that which takes longest. With stars where it stands
    for equal layers."""
    location: str | None
    """``file:line``."""
    phase: str
    """A value of ``Phase``; empty if none is known."""
    start: float
    """Seconds since the step began."""
    seconds: float
    """Seconds of all its runs, without hidden ones."""
    hidden_seconds: float
    """What of a collective hides behind compute: the plan knows how much, not when."""
    runs: float
    """Runs in a step, all together."""
    count: int
    """How many bars were put together."""
    repeat: int
    """Number of the innermost stretch in which it repeats; -1: none."""


@dataclass(frozen=True, slots=True)
class TimelineRepeat:
    """A stretch that runs several times and is there once, as long as all of its rounds."""

    start: float
    seconds: float
    """All rounds together."""
    times: float
    is_loop: bool
    """A loop of the program; else equal layers that are written out."""
    depth: int
    """How many others are around it."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step."""

    bars: tuple[TimelineBar, ...]
    """In the order in which they start."""
    repeats: tuple[TimelineRepeat, ...]
    """Outer ones before those in them."""

    @property
    def seconds(self) -> float:
        """When the last bar ends."""
        return max((bar.start + bar.seconds for bar in self.bars), default=0.0)

    @property
    def lanes(self) -> list[str]:
        """Those that are used, compute first."""
        used = {lane for bar in self.bars for lane in bar.lanes}
        return [stream.value for stream in Stream if stream.value in used]


def joined(bars: Iterable[TimelineBar], seconds: float) -> tuple[TimelineBar, ...]:
    """Bars in order, the short ones as one with their neighbours on the same lanes.

    Args:
        bars: In the order in which they start.
        seconds: Of the whole step; a bar below a ``PARTS``-th of it is short.
    """
    short = seconds / PARTS
    found: list[TimelineBar] = []
    waiting: dict[tuple[tuple[str, ...], int], list[TimelineBar]] = {}
    for bar in bars:
        key = bar.lanes, bar.repeat
        for other in [key for key, kept in waiting.items() if bar.start - kept[0].start >= short]:
            found.append(_as_one(waiting.pop(other)))
        if bar.seconds < short:
            waiting.setdefault(key, []).append(bar)
        else:
            found.append(bar)
    found += map(_as_one, waiting.values())
    return tuple(sorted(found, key=lambda bar: bar.start))


def _as_one(bars: Sequence[TimelineBar]) -> TimelineBar:
    longest = max(bars, key=lambda bar: bar.seconds)
    return replace(
        longest,
        start=bars[0].start,
        seconds=sum(bar.seconds for bar in bars),
        hidden_seconds=sum(bar.hidden_seconds for bar in bars),
        runs=sum(bar.runs for bar in bars),
        count=sum(bar.count for bar in bars),
    )


def timeline_of_schedule(schedule: Schedule) -> Timeline:
    """The step of a compiled program as it was simulated.

    A loop is there until its trips repeat; one bar stands for all others. What compute waits for is
    left open.
    """
    bars = [
        TimelineBar(
            lanes=(event.stream.value,),
            name=": ".join(part for part in (event.name, scope_of(event.op_name).path) if part),
            location=event.place,
            phase="",
            start=event.start,
            seconds=event.seconds,
            hidden_seconds=0.0,
            runs=1,
            count=1,
            repeat=-1,
        )
        for event in schedule.events
        if not event.is_wait
    ]
    bars.sort(key=lambda bar: bar.start)
    return Timeline(joined(bars, schedule.scheduled_seconds), ())
