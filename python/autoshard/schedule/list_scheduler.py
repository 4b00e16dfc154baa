"""One schedule from a rule: each stage takes the best of what it can start.

Micro-batches are alike, so the k-th time that a work is done it is done for micro-batch k: any
schedule can be renumbered so. What tells schedules apart is which work comes first, and how many
micro-batches a stage keeps something of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

from autoshard.errors import PlanError
from autoshard.schedule.work import Work, check_works

Rank = Callable[[int, int], tuple[float, ...]]
"""From the number of a work and a micro-batch; the smallest is done first."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far each stage may run ahead, in micro-batches; those of its chunks add up."""

    ahead: tuple[int, ...] | None = None
    """Begun there, while another stage still waits for something of them. None: all."""
    kept: tuple[int, ...] | None = None
    """Something is kept of them there. None: all."""
    are_raised: bool = False
    """Where they let no stage go on, all of them are raised by one, until one can."""


@dataclass(frozen=True, slots=True)
class Run:
    """A work, done for one micro-batch."""

    work: int
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """When every work is done for every micro-batch."""

    works: tuple[Work, ...]
    micro_batches: int
    runs: tuple[Run, ...]
    """By their start, then by stage."""

    @property
    def stages(self) -> int:
        """How many there are."""
        return 1 + max(work.stage for work in self.works)

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max(run.end for run in self.runs)

    @property
    def idle_seconds(self) -> float:
        """For all stages together."""
        return self.stages * self.seconds - sum(run.end - run.start for run in self.runs)

    @property
    def bubble(self) -> float:
        """The share of all stages' time in which they wait."""
        return self.idle_seconds / (self.stages * self.seconds) if self.seconds else 0.0

    def in_flight(self) -> tuple[int, ...]:
        """For how many micro-batches each stage keeps something at once, at most; chunks count."""
        kept, most = [0] * self.stages, [0] * self.stages
        for run in self.runs:  # one after the other on each stage
            work = self.works[run.work]
            kept[work.stage] += max(work.kept, 0)
            most[work.stage] = max(most[work.stage], kept[work.stage])
            kept[work.stage] += min(work.kept, 0)
        return tuple(most)


def list_schedule(
    works: Sequence[Work],
    micro_batches: int,
    rank: Rank,
    *,
    limits: Limits | None = None,
    transfer_seconds: float = 0,
    patience: float = 0,
) -> Schedule:
    """The schedule in which no stage waits while it could do something.

    Works of one name on a stage, as those of its chunks, are done in the order of their rank; among
    the next ones of each name a stage takes what it can start first.

    Args:
        works: Each behind those that it is after.
        micro_batches: 1 or more.
        rank: What is done first, of all that a stage can start at the same time.
        limits: None: no limits.
        transfer_seconds: Between the end of a work and the start of one that reads it on another
            stage, where works do not say what that takes.
        patience: Deferred work is not begun if other work can start before this share of it is
            done.

    Raises:
        PlanError: The works are in no order, or a limit that is not raised lets nothing begin.
    """
    check_works(works)
    if micro_batches < 1:
        raise PlanError(f"{micro_batches} micro-batches: give 1 or more.")
    state = _State(works, micro_batches, rank, limits or Limits(), transfer_seconds, patience)
    runs: list[Run] = []
    waiting = set(state.queues)
    following: dict[int, _Next | None] = {}
    while len(runs) < len(works) * micro_batches:
        following.update((stage, state.first(stage)) for stage in waiting)
        found = [it for it in following.values() if it is not None]
        if not found and state.limits.are_raised and state.raised < len(works) * micro_batches:
            state.raised += 1
            waiting = set(state.queues)
            continue
        if not found:
            raise PlanError(f"{limits} let no stage go on. Give larger ones.")
        start, _, stage, number = min(found)
        runs.append(state.run(number, start))
        waiting = {stage, *state.readers[number]}  # what the others do next is the same
    return Schedule(tuple(works), micro_batches, tuple(runs))


_Next = tuple[float, bool, int, int]
"""Its start, whether it is deferred, the stage and the work: what is done first in time, and what
others wait for before what nobody waits for."""


_Queue = list[tuple[tuple[float, ...], int]]
"""A heap of works, by the rank of the next micro-batch of each."""


class _State:
    """A schedule that is being made."""

    def __init__(
        self,
        works: Sequence[Work],
        micro_batches: int,
        rank: Rank,
        limits: Limits,
        transfer_seconds: float,
        patience: float,
    ) -> None:
        self.works = works
        self.micro_batches = micro_batches
        self.rank = rank
        self.limits = limits
        self.raised = 0
        """By how much all limits have been raised."""
        self.ways = [list(work.after_seconds(works, transfer_seconds)) for work in works]
        """What each work waits for, and the seconds on the way from it."""
        self.patience = patience
        self.queues: dict[int, dict[str, _Queue]] = {}
        """The works of each stage that are left, by name."""
        for number, work in enumerate(works):
            queue = self.queues.setdefault(work.stage, {}).setdefault(work.name, [])
            heappush(queue, (rank(number, 0), number))
        self.readers: list[set[int]] = [set() for _ in works]
        """The stages that read what a work makes."""
        for work in works:
            for it in work.after:
                self.readers[it].add(work.stage)
        self.free: dict[int, float] = dict.fromkeys(self.queues, 0)
        self.ahead = dict.fromkeys(self.queues, 0)
        self.kept = dict.fromkeys(self.queues, 0)
        self.ends: list[list[float]] = [[] for _ in works]

    def first(self, stage: int) -> _Next | None:
        """What a stage does next; None: it has to wait."""
        options: list[tuple[float, tuple[float, ...], int]] = []
        for queue in self.queues[stage].values():
            if not queue:
                continue
            rank, number = queue[0]
            ready = self._ready(number)
            if ready is not None:
                options.append((max(ready, self.free[stage]), rank, number))
        if not options:
            return None
        start, _, number = min(options)
        if self.patience and self.works[number].is_deferred:
            end = start + self.patience * self.works[number].seconds
            others = [it for it in options if it[0] < end and not self.works[it[2]].is_deferred]
            start, _, number = min(others, default=(start, (), number))
        return start, self.works[number].is_deferred, stage, number

    def run(self, number: int, start: float) -> Run:
        """Do it."""
        work = self.works[number]
        end = start + work.seconds
        self.ends[number].append(end)
        self.free[work.stage] = end
        self.ahead[work.stage] += work.ahead
        self.kept[work.stage] += work.kept
        queue, done = self.queues[work.stage][work.name], len(self.ends[number])
        if done < self.micro_batches:
            heapreplace(queue, (self.rank(number, done), number))  # it was the first one
        else:
            heappop(queue)
        return Run(number, done - 1, start, end)

    def _ready(self, number: int) -> float | None:
        """When the next micro-batch's may start, but for its stage; None: that is not known yet."""
        work, micro_batch = self.works[number], len(self.ends[number])
        for limit, now, more in (
            (self.limits.ahead, self.ahead[work.stage], work.ahead),
            (self.limits.kept, self.kept[work.stage], work.kept),
        ):
            if limit is not None and more > 0 and now + more > limit[work.stage] + self.raised:
                return None
        ready: float = 0
        for it, moved in self.ways[number]:
            if len(self.ends[it]) <= micro_batch:
                return None
            ready = max(ready, self.ends[it][micro_batch] + moved)
        return ready
