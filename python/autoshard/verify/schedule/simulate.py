"""Runs a program's lines against streams that do one thing at a time.

Compute goes line by line. A transfer begins when compute comes to its line and all streams that it
takes are free, and takes them until its end; compute waits for that end where a line says so. While
a collective runs, compute takes ``slowdown`` times as long, the collective does not. So

    step = compute, slowed down + what it waits for transfers

A loop is run trip by trip until a trip begins as an earlier one did: with the same streams taken
for as long, the same transfers in flight. From there on its trips repeat, and are counted without
being run; what is in flight over the end of a trip is in that steady state.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.verify.schedule.lines import Begin, Compute, Line, Repeat, Wait
from autoshard.verify.schedule.schedule import (
    HOST_STREAMS,
    Event,
    Schedule,
    ScheduledTransfer,
    Stream,
    Transfer,
)

_DIGITS = 12
"""Seconds are the same where they are to a picosecond."""

_State = tuple[tuple[object, ...], ...]


def simulate(lines: Sequence[Line], slowdown: float) -> Schedule:
    """The schedule of a program.

    Args:
        lines: Of its entry.
        slowdown: Times as long that compute takes while a collective runs beside it.

    Example: with a slowdown of 1, a transfer of 5 s that begins before 3 s of compute and is waited
    for behind them takes 5 s, of which 2 are exposed; with 1.25 the same, and compute is busy for
    3.75 s.
    """
    run = _Simulation(slowdown)
    run.run(lines)
    run.finish()
    totals = run.totals
    transfers = [
        ScheduledTransfer(one, times, totals.exposed[one], run.slack[one])
        for one, times in totals.runs.items()
    ]
    return Schedule(
        scheduled_seconds=run.now,
        compute_seconds=totals.compute,
        busy_seconds=dict(totals.busy),
        slowdown=slowdown,
        transfers=tuple(sorted(transfers, key=lambda one: -one.exposed_seconds)),
        events=tuple(run.events),
    )


@dataclass
class _Flight:
    """A run of a transfer that nobody has waited for yet."""

    number: int
    """In the order of their beginning."""
    end: float


@dataclass
class _Totals:
    """Sums over the step so far."""

    compute: float = 0.0
    busy: defaultdict[Stream, float] = field(default_factory=lambda: defaultdict(float))
    exposed: defaultdict[Transfer, float] = field(default_factory=lambda: defaultdict(float))
    runs: defaultdict[Transfer, int] = field(default_factory=lambda: defaultdict(int))

    def copy(self) -> _Totals:
        return _Totals(self.compute, self.busy.copy(), self.exposed.copy(), self.runs.copy())

    def repeat_since(self, earlier: _Totals, times: int) -> None:
        """Add what came since ``earlier`` so many times more."""
        self.compute += times * (self.compute - earlier.compute)
        for stream in self.busy:
            self.busy[stream] += times * (self.busy[stream] - earlier.busy[stream])
        for one in self.exposed:
            self.exposed[one] += times * (self.exposed[one] - earlier.exposed[one])
        for one in self.runs:
            self.runs[one] += times * (self.runs[one] - earlier.runs[one])


class _Simulation:
    """The streams at one moment of the step."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self.now = 0.0
        self.free: defaultdict[Stream, float] = defaultdict(float)
        """When the last transfer of each stream ends."""
        self.in_flight: dict[Transfer, deque[_Flight]] = {}
        self.begun = 0
        self.totals = _Totals()
        self.slack: dict[Transfer, float] = {}
        self.events: list[Event] = []

    def run(self, lines: Sequence[Line]) -> None:
        """One line after the other."""
        for line in lines:
            match line:
                case Compute():
                    self._compute(line)
                case Begin(transfer):
                    self._begin(transfer)
                case Wait(transfers):
                    self._wait(transfers)
                case Repeat():
                    self._repeat(line)

    def finish(self) -> None:
        """The step ends with its last transfer."""
        for transfer in list(self.in_flight):
            while self.in_flight.get(transfer):
                self._wait((transfer,))

    def _compute(self, line: Compute) -> None:
        beside = max(
            (end for stream, end in self.free.items() if stream not in HOST_STREAMS), default=0.0
        )
        # From now until then some collective runs without a pause.
        beside = max(0.0, beside - self.now)
        done = min(line.seconds, beside / self.slowdown)
        taken = line.seconds + done * (self.slowdown - 1)
        self._add_event(Stream.COMPUTE, line.name, self.now, taken, line.place, line.op_name)
        self.now += taken
        self.totals.compute += line.seconds
        self.totals.busy[Stream.COMPUTE] += taken

    def _begin(self, transfer: Transfer) -> None:
        start = max([self.now, *(self.free[stream] for stream in transfer.streams)])
        end = start + transfer.seconds
        for stream in transfer.streams:
            self.free[stream] = end
            self.totals.busy[stream] += transfer.seconds
            name = f"{transfer.what} ({transfer.name})"
            self._add_event(stream, name, start, transfer.seconds, transfer.place, transfer.op_name)
        self.begun += 1
        self.in_flight.setdefault(transfer, deque()).append(_Flight(self.begun, end))
        self.totals.runs[transfer] += 1

    def _wait(self, transfers: Sequence[Transfer]) -> None:
        """For the one that began first, of those that are in flight."""
        flying = [one for one in transfers if self.in_flight.get(one)]
        if not flying:
            return
        transfer = min(flying, key=lambda one: self.in_flight[one][0].number)
        flight = self.in_flight[transfer].popleft()
        if not self.in_flight[transfer]:
            del self.in_flight[transfer]
        slack = max(0.0, self.now - flight.end)
        self.slack[transfer] = min(slack, self.slack.get(transfer, slack))
        exposed = max(0.0, flight.end - self.now)
        self._add_event(
            Stream.COMPUTE, f"wait for {transfer.name}", self.now, exposed, is_wait=True
        )
        self.now += exposed
        self.totals.exposed[transfer] += exposed

    def _repeat(self, loop: Repeat) -> None:
        begun, trip = self.begun, 0
        seen: dict[_State, tuple[int, float, _Totals]] | None = {}
        while trip < loop.times:
            if seen is not None:
                state = self._state()
                if state in seen:
                    first, then, totals = seen[state]
                    times = (loop.times - trip) // (trip - first)
                    self._skip(loop.name, times * (trip - first), times, then, totals, begun)
                    trip += times * (trip - first)
                    seen = None
                    continue
                seen[state] = (trip, self.now, self.totals.copy())
            self.run(loop.lines)
            trip += 1

    def _state(self) -> _State:
        """What the rest of the step depends on, relative to now."""
        taken = sorted(
            (stream, round(end - self.now, _DIGITS))
            for stream, end in self.free.items()
            if end > self.now
        )
        flying = sorted(
            (id(one), *(round(max(0.0, flight.end - self.now), _DIGITS) for flight in flights))
            for one, flights in self.in_flight.items()
        )
        return (*taken, *flying)

    def _skip(
        self, name: str, trips: int, times: int, then: float, totals: _Totals, begun: int
    ) -> None:
        """Repeat what came since a moment, without running it."""
        if not times:
            return
        seconds = times * (self.now - then)
        self.totals.repeat_since(totals, times)
        for stream, end in self.free.items():
            if end > self.now:
                self.free[stream] = end + seconds
        for flights in self.in_flight.values():
            for flight in flights:
                if flight.number > begun:
                    flight.end += seconds
        self._add_event(Stream.COMPUTE, f"{name}: {trips} trips more", self.now, seconds)
        self.now += seconds

    def _add_event(
        self,
        stream: Stream,
        name: str,
        start: float,
        seconds: float,
        place: str | None = None,
        op_name: str = "",
        is_wait: bool = False,
    ) -> None:
        if seconds > 0:
            self.events.append(Event(stream, name, start, seconds, place, op_name, is_wait))
