"""Plans of pipelines: the search knows one stage that does all, and gets less memory try by try."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

from autoshard.cluster import Cluster
from autoshard.errors import DoesNotFitError, SlowerPlanError
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan
from autoshard.frontend.planned_pipeline import PlannedPipeline
from autoshard.frontend.request import Request
from autoshard.passes.memory_limit import memory_limit_of
from autoshard.planned.summary import PlanSummary, bytes_text
from autoshard.progress import running
from autoshard.search.last_search import LastSearch

_MOST_SEARCHES = 4
"""For what is asked; a switch that is tried where nothing fits gets one."""
_NEARLY = 0.95
"""What the next search gets of the memory by which the worst stage would need all that it has, if
stages needed as much of what it uses as of the last plan."""
_NEARLY_SHARED = 0.98
"""The same where the search knows what stages share."""
_WORTH_MORE = 1.05
"""Times as much memory that a search needs to get for one more where a plan fits."""
_LEAN = 1.001
"""What a search gets that shall find the plan of least memory, over what that needs."""
LEAST_SECONDS = 1e-3
"""What the first search gets of a time limit that is over before it begins."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How far searches go for a pipeline that is one of many."""

    most_seconds: float = math.inf
    """Steps of the pipeline that are slower are of no use."""
    most_whole_seconds: float = math.inf
    """Steps of one stage that does all are of no use if they are slower than this."""
    last_search: LastSearch | None = None
    """The one before, of the same pipeline within more memory."""


FULL_EFFORT = Effort()
"""What is done for the one pipeline that is asked for."""


@dataclass
class StagedSearch:
    """Searches for one pipeline, under one time limit.

    Each stage holds a share of the arguments only, and what it keeps of micro-batches is known when
    the schedule is. So the first search may use as much memory as all stages have, of which each
    has a part for its share and one micro-batch (a search that computes again knows no stages), and
    the next ones less than the plan before, as long as its worst stage needs too much by all
    schedules.
    What a stage needs is no fixed share of what one needs that does all: where no plan needs as
    little as the next one is to, the plan of least memory is tried, unless its worst stage needs
    too much even if all that it saves is kept of micro-batches in flight. Where a plan fits that
    too little memory held back, and its worst stage leaves some, the next search gets that, too.
    """

    source: Source
    stages: int
    limit: float
    """Bytes that a plan may use of a device."""
    plan_once: Callable[[Source, Request], Plan]
    """Searches; ``memory_limit`` of its request is for one stage that does all."""
    most_seconds: float
    """Slower steps are of no use."""
    deadline: float
    """A second of ``time.monotonic()``; infinite without a time limit."""
    last_search: LastSearch = field(default_factory=LastSearch)
    """Whose is the last one of ``plan_once``."""
    allowed: float = field(init=False)
    """Bytes that the next search may use."""

    def __post_init__(self) -> None:
        self.allowed = self.stages * self.limit

    @staticmethod
    def of(
        source: Source,
        request: Request,
        stages: int,
        plan_once: Callable[[Source, Request], Plan],
        effort: Effort = FULL_EFFORT,
    ) -> StagedSearch:
        """The searches for a request, whose time limit begins now."""
        limit = memory_limit_of(cast(Cluster, source.cluster), request.options().memory_limit)
        seconds = math.inf if request.time_limit is None else request.time_limit
        deadline = time.monotonic() + seconds
        most, last = effort.most_seconds, effort.last_search or LastSearch()
        return StagedSearch(source, stages, limit, plan_once, most, deadline, last)

    def first(self, request: Request) -> Request:
        """What the first search is asked."""
        return replace(request, memory_limit=int(self.allowed), time_limit=self._seconds_left())

    def is_over(self) -> bool:
        """Is the time limit?"""
        return time.monotonic() >= self.deadline

    def plan(self, request: Request) -> Plan:
        """The fastest plan of a few searches that fits.

        Raises:
            DoesNotFitError: None does.
            SlowerPlanError: One that does not is too slow already.
            KeyboardInterrupt: None did until Ctrl-C.
        """
        best: Plan | None = None
        peaks: list[float] = []
        allowed, used, flights, is_staged = self.allowed, math.inf, 1.0, False
        for number in range(_MOST_SEARCHES):
            if (number and self.is_over()) or (best is not None and running().is_interrupted):
                break
            try:
                plan = self._search(request, allowed)
            except SlowerPlanError:
                if best is None:
                    raise
                break
            except DoesNotFitError as error:
                if best is not None:
                    break
                if not peaks:
                    peaks.append(self._of_the_worst_stage(error))
                    break
                if error.peak_bytes * _LEAN >= used:
                    break
                saved = (used - error.peak_bytes) / (self.stages if is_staged else 1)
                least = peaks[-1] - flights * saved
                if least > self.limit:
                    peaks.append(least)
                    break
                allowed = used = error.peak_bytes * _LEAN  # its worst stage may fit
                continue
            peaks.append(plan.peak_bytes)
            flights = cast(PlannedPipeline, plan.pipeline).flights
            summary = cast(PlanSummary, plan.summary)
            last = self.last_search.found
            used, is_staged = min(allowed, summary.peak_bytes_per_device), False
            if last is not None and last.stages > 1:
                used, is_staged = min(allowed, last.limited_bytes), True
            nearly = _NEARLY_SHARED if is_staged else _NEARLY
            next_allowed = used * nearly * self.limit / plan.peak_bytes
            if plan.peak_bytes <= self.limit:
                if best is None or plan.step_seconds < best.step_seconds:
                    best = plan
                if summary.mem_coeff == 0 or next_allowed < _WORTH_MORE * allowed:
                    break
            elif best is not None:
                break
            else:
                self.allowed = next_allowed
            allowed = next_allowed
        if best is None:
            raise self._does_not_fit(min(peaks))
        return self._within_limit(best)

    def plan_switched(self, request: Request) -> Plan:
        """What one more search finds in the memory at which ``plan`` ended.

        Raises:
            DoesNotFitError: That does not fit.
        """
        try:
            plan = self._search(request, self.allowed)
        except DoesNotFitError as error:
            raise self._does_not_fit(self._of_the_worst_stage(error)) from error
        if plan.peak_bytes > self.limit:
            raise self._does_not_fit(plan.peak_bytes)
        return self._within_limit(plan)

    def _search(self, request: Request, allowed: float) -> Plan:
        if running().is_interrupted:
            raise KeyboardInterrupt
        asked = replace(request, memory_limit=int(allowed), time_limit=self._seconds_left())
        plan = self.plan_once(self.source, asked)
        pipeline = cast(PlannedPipeline, plan.pipeline)
        found = replace(plan, pipeline=pipeline.within(self.limit))
        is_slow = self.most_seconds < math.inf and pipeline.fastest_seconds >= self.most_seconds
        if is_slow and found.peak_bytes > self.limit:  # with less memory plans only get slower
            raise SlowerPlanError(f"{self.source.name}: no plan is faster than one that is known.")
        return found

    def _seconds_left(self) -> float | None:
        left = max(self.deadline - time.monotonic(), LEAST_SECONDS)
        return left if math.isfinite(left) else None

    def _of_the_worst_stage(self, error: DoesNotFitError) -> float:
        """About what it needs; bytes of the error are those of one stage that does all."""
        return error.peak_bytes / self.allowed * self.limit

    def _within_limit(self, plan: Plan) -> Plan:
        summary = cast(PlanSummary, plan.summary)
        return replace(plan, summary=replace(summary, memory_limit=self.limit))

    def _does_not_fit(self, peak_bytes: float) -> DoesNotFitError:
        advice = "Give more stages or devices, or micro-batches of fewer examples."
        if self.is_over():
            advice += " time_limit is over, too: with more of it other plans are tried."
        return DoesNotFitError(
            f"{self.source.name}: the worst of {self.stages} stages needs {bytes_text(peak_bytes)}"
            f" or more on a device, and {bytes_text(self.limit)} are allowed.",
            None,
            peak_bytes,
            self.limit,
            advice=advice,
        )
