"""How many micro-batches: the number whose fastest plan that fits is fastest of all.

More micro-batches need less memory. They do not make a step faster by themselves: cut alike, the
parts compute and send together what the whole batch does, read the weights anew and add gradients
up each time; and as ``d`` parts are whole parts of any multiple of ``d``, whatever cuts a part of
many cuts one of few. So with ``free(d)``, the fastest step of ``d`` parts without a limit of
memory,

    seconds(n) >= free(n) >= free(d)    for every d that divides n

and a number is planned only as long as its ``free`` is under the best step so far. That ends at the
first number whose plan no limit holds back, which is 1 where the whole batch fits.

As long as all devices can share a part, more parts need no more memory: whatever cuts a part of few
cuts one of many. So where three numbers do not fit, the largest of that kind is next; if it does
not, none that divides it does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from autoshard.errors import DoesNotFitError, PlanError, ShardingError, StrategyError
from autoshard.planned.summary import PlanSummary, TriedMicroBatches, bytes_text, seconds_text
from autoshard.progress import running

T = TypeVar("T")

_FAILURES = 3
"""Numbers that do not fit, after which the largest that devices can share is tried."""


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """The best of several numbers of micro-batches."""

    plan: T
    count: int
    tried: tuple[TriedMicroBatches, ...]


def divisors(size: int, pieces: int = 1) -> list[int]:
    """Numbers of equal parts of a batch, each of which falls into ``pieces``; 1 is always one.

    Args:
        size: Examples.
        pieces: What cuts the batch whatever the plan.

    Example:
        ``divisors(24, 4)`` is ``[1, 2, 3, 6]``.
    """
    return [n for n in range(1, max(1, size) + 1) if n == 1 or not size % (n * pieces)]


def choose_micro_batches(
    counts: Sequence[int],
    shared: Sequence[int],
    plan: Callable[[int], T],
    costs: Callable[[T], PlanSummary],
    free_seconds: Callable[[int], float],
    time_limit: float = math.inf,
) -> Chosen[T]:
    """Try numbers of micro-batches until no other one can be better.

    Args:
        counts: What there is to choose from, 1 among them, ascending.
        shared: Those whose parts all devices can share, likewise.
        plan: The fastest plan of so many that fits.
        costs: What a plan costs.
        free_seconds: The fastest step of so many without a limit of memory.
        time_limit: Seconds after which no other number is tried, once there is a plan.

    Raises:
        DoesNotFitError: None fits: that of the plan that needs least, with what was tried.
        PlanError: What ``plan`` raises of one micro-batch.
    """
    ends = time.monotonic() + time_limit
    return _Search(shared, plan, costs, free_seconds, ends).over(counts)


class _Search(Generic[T]):
    def __init__(
        self,
        shared: Sequence[int],
        plan: Callable[[int], T],
        costs: Callable[[T], PlanSummary],
        free_seconds: Callable[[int], float],
        ends: float,
    ) -> None:
        self.shared = shared
        self.plan = plan
        self.costs = costs
        self.free_seconds = free_seconds
        self.ends = ends
        self.best: tuple[float, int, T] | None = None
        """Seconds, the number and its plan."""
        self.least: tuple[DoesNotFitError, int] | None = None
        """What does not fit, and needs least."""
        self.bounds: dict[int, float] = {}
        """Seconds that no plan of these numbers and their multiples falls below."""
        self.tried: list[TriedMicroBatches] = []

    def over(self, counts: Sequence[int]) -> Chosen[T]:
        for number, count in enumerate(_chain(counts)):
            if number == _FAILURES and self.best is None:
                self._try(self.shared[-1])
            self._try(count)
        for count in counts:
            self._try(count)
        if self.best is None:
            assert self.least is not None
            raise _none_fits(*self.least, self.tried) from self.least[0]
        _, taken, plan = self.best
        tried = (
            replace(one, outcome="taken") if one.micro_batches == taken else one
            for one in self.tried
        )
        return Chosen(plan, taken, tuple(tried))

    def _try(self, count: int) -> None:
        if self._is_over() or self._is_out(count):
            return
        try:
            if (
                self.best is not None
                and self.best[1] < count
                and self._bound(count) >= self.best[0]
            ):
                self.tried.append(TriedMicroBatches(count, "bounded", self.bounds[count]))
                return
            found = self.plan(count)
        except DoesNotFitError as error:
            self.tried.append(TriedMicroBatches(count, "does not fit", None, error.peak_bytes))
            if self.least is None or error.peak_bytes < self.least[0].peak_bytes:
                self.least = error, count
        except (PlanError, ShardingError, StrategyError) as error:
            if count == 1:
                raise
            self.tried.append(TriedMicroBatches(count, "refused", reason=str(error)))
        else:
            self._take(count, found)

    def _is_over(self) -> bool:
        is_late = self.best is not None and time.monotonic() > self.ends
        return is_late or (bool(self.tried) and running().is_interrupted)

    def _is_out(self, count: int) -> bool:
        """Is it known already, or from others, that it cannot be, fit or be faster?"""
        for one in self.tried:
            if one.micro_batches == count:
                return True
            if one.outcome == "refused" and count % one.micro_batches == 0:
                return True
            is_least = one.outcome == "does not fit" and one.micro_batches in self.shared
            if is_least and one.micro_batches % count == 0:
                return True
        known = [seconds for number, seconds in self.bounds.items() if count % number == 0]
        return self.best is not None and max(known, default=0.0) >= self.best[0]

    def _bound(self, count: int) -> float:
        if count not in self.bounds:
            self.bounds[count] = self.free_seconds(count)
        return self.bounds[count]

    def _take(self, count: int, found: T) -> None:
        summary = self.costs(found)
        self.tried.append(
            TriedMicroBatches(count, "fits", summary.step_seconds, summary.peak_bytes_per_device)
        )
        step = free_step(summary)
        if is_free(summary):
            self.bounds[count] = step
        if self.best is None or (step, count) < self.best[:2]:
            self.best = step, count, found
            running().says(f"{count} micro-batches, best a step of {seconds_text(step)}")


def is_free(summary: PlanSummary) -> bool:
    """Did no limit of memory hold a plan back? It then is the fastest without one, too."""
    is_moved = any(one.decision != "keep" for one in summary.decided)
    return summary.mem_coeff == 0 and not summary.recomputed and not is_moved


def free_step(summary: PlanSummary) -> float:
    """Seconds of a step, without what inputs that are cut alike add to it."""
    return summary.step_seconds - summary.inputs_seconds


def _chain(counts: Iterable[int]) -> list[int]:
    """1, and always the next number that the last one divides: 1, 2, 4, 8, .."""
    found: list[int] = []
    for count in counts:
        if not found or count % found[-1] == 0:
            found.append(count)
    return found


def _none_fits(
    error: DoesNotFitError, count: int, tried: Sequence[TriedMicroBatches]
) -> DoesNotFitError:
    needed = [
        f"{bytes_text(one.peak_bytes)} with {one.micro_batches}"
        for one in tried
        if one.peak_bytes is not None
    ]
    said = f"micro_batches='auto' does not make it fit: it needs {', '.join(needed)}"
    said += "".join(f"; {one.reason}" for one in tried if one.outcome == "refused")
    return DoesNotFitError(
        error.found,
        error.location,
        error.peak_bytes,
        error.memory_limit,
        advice=f"{said.rstrip('.')}. {error.advice}".rstrip(),
        micro_batches=count,
    )
