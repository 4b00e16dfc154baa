"""One schedule from a rule: each stage takes the best of what it can start.

Micro-batches are alike, so the k-th time that a work is done it is done for micro-batch k: any
schedule can be renumbered so. What tells schedules apart is which work comes first, and how many
micro-batches a stage keeps something of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard import _core
from autoshard.errors import PlanError
from autoshard.schedule.work import Work, check_works


@dataclass(frozen=True, slots=True)
class Rank:
    """What is done first, of all that a stage can start at the same time."""

    works: tuple[int, ...]
    """A number for each work, the smallest is first. Of equal ones earlier groups of micro-batches
    are, then earlier works, then earlier micro-batches."""
    together: int = 1
    """How many micro-batches are a group."""


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
    listed = Listing(works, rank, limits, transfer_seconds).runs(micro_batches, patience)
    return schedule_of(works, micro_batches, listed)


def schedule_of(works: Sequence[Work], micro_batches: int, listed: _core.ListedRuns) -> Schedule:
    """The schedule of works whose runs the core has listed."""
    return Schedule(tuple(works), micro_batches, tuple(Run(*it) for it in listed.all()))


class Listing:
    """Works as the core takes them, to be scheduled in several ways."""

    def __init__(
        self, works: Sequence[Work], rank: Rank, limits: Limits | None, transfer_seconds: float
    ) -> None:
        """As for ``list_schedule``.

        Raises:
            PlanError: The works are in no order.
        """
        check_works(works)
        self._limits, self._together = limits or Limits(), rank.together
        names = {
            name: number for number, name in enumerate(dict.fromkeys(work.name for work in works))
        }
        self._works = [
            _core.ListWork(
                stage=work.stage,
                name=names[work.name],
                rank=of_work,
                seconds=work.seconds,
                after=work.after,
                ways=[moved for _, moved in work.after_seconds(works, transfer_seconds)],
                ahead=work.ahead,
                kept=work.kept,
                is_deferred=work.is_deferred,
            )
            for work, of_work in zip(works, rank.works, strict=True)
        ]

    def runs(self, micro_batches: int, patience: float = 0) -> _core.ListedRuns:
        """The runs of so many micro-batches.

        Raises:
            PlanError: A limit that is not raised lets nothing begin.
        """
        if micro_batches < 1:
            raise PlanError(f"{micro_batches} micro-batches: give 1 or more.")
        limits = self._limits
        found = _core.list_schedule(
            self._works,
            micro_batches=micro_batches,
            together=self._together,
            ahead=limits.ahead or (),
            kept=limits.kept or (),
            are_raised=limits.are_raised,
            patience=patience,
        )
        if found is None:
            raise PlanError(f"{limits} let no stage go on. Give larger ones.")
        return found
