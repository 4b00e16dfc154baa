"""What a device does when in a step: bars on the lanes of its compute and of its links."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

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
class Drawn:
    """What a timeline shows."""

    bars: tuple[TimelineBar, ...]
    repeats: tuple[TimelineRepeat, ...]


class Timeline:
    """One step. Of a plan it is drawn when somebody looks at it, as of a page: the text of an
    explanation does without, and drawing takes as long as all else of a record."""

    def __init__(
        self, bars: Sequence[TimelineBar] = (), repeats: Sequence[TimelineRepeat] = ()
    ) -> None:
        self._drawn = Drawn(tuple(bars), tuple(repeats))
        self._draw: Callable[[], Drawn] | None = None

    @classmethod
    def later(cls, draw: Callable[[], Drawn]) -> Timeline:
        """One that is drawn once somebody looks at it."""
        made = cls()
        made._draw = draw
        return made

    @property
    def bars(self) -> tuple[TimelineBar, ...]:
        """In the order in which they start."""
        return self._now().bars

    @property
    def repeats(self) -> tuple[TimelineRepeat, ...]:
        """Outer ones before those in them."""
        return self._now().repeats

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and self._now() == other._now()

    def __hash__(self) -> int:
        return hash(self._now())

    def _now(self) -> Drawn:
        if self._draw is not None:
            self._drawn = self._draw()
            self._draw = None
        return self._drawn

    @property
    def seconds(self) -> float:
        """When the last bar ends."""
        return max((bar.start + bar.seconds for bar in self.bars), default=0.0)

    @property
    def lanes(self) -> list[str]:
        """Those that are used, compute first."""
        used = {lane for bar in self.bars for lane in bar.lanes}
        return [stream.value for stream in Stream if stream.value in used]


Piece = TypeVar("Piece")


def short_together(
    pieces: Iterable[Piece],
    place: Callable[[Piece], tuple[Hashable, float, float]],
    seconds: float,
) -> list[list[Piece]]:
    """What is one bar: a piece, or short ones that start close together.

    Args:
        pieces: In the order in which they start.
        place: What has to be equal of those of one bar, when it starts, and its seconds.
        seconds: Of the whole step; a piece below a ``PARTS``-th of it is short.
    """
    short = seconds / PARTS
    found: list[tuple[float, list[Piece]]] = []
    latest: dict[Hashable, tuple[float, list[Piece]]] = {}
    for piece in pieces:
        key, start, taken = place(piece)
        if taken >= short:
            found.append((start, [piece]))
        elif key in latest and start - latest[key][0] < short:
            latest[key][1].append(piece)
        else:
            latest[key] = (start, [piece])
            found.append(latest[key])
    return [group for _, group in sorted(found, key=lambda one: one[0])]


def as_one(bars: Sequence[TimelineBar]) -> TimelineBar:
    """Several as one, with the name of that which takes longest."""
    longest = max(bars, key=lambda bar: bar.seconds)
    return replace(
        longest,
        start=bars[0].start,
        seconds=sum(bar.seconds for bar in bars),
        runs=sum(bar.runs for bar in bars),
        count=len(bars),
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
    groups = short_together(
        bars, lambda bar: (bar.lanes, bar.start, bar.seconds), schedule.scheduled_seconds
    )
    return Timeline(tuple(map(as_one, groups)))
