"""``pipeline="auto"``: stages and micro-batches whose step is the fastest that fits, or no stages.

The step on all devices at once is planned first. Then, for each number of stages on which the
devices fall equally, micro-batches near four for each stage, and on from there by the next divisor
of the batch as long as the step gets shorter; with the fastest of these, several parts of the model
on each stage; and with as many micro-batches one program of all stages, which run it in lockstep.
Two numbers of stages in a row that are slower than what was there before end it. What the cut into
stages alone shows to be slower than the best so far is not planned.
"""

from __future__ import annotations

import math
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from autoshard.cluster.stages import numbers_of_stages
from autoshard.errors import AutoshardError, DoesNotFitError, SlowerPlanError
from autoshard.frontend.batch_arrays import batch_of_source, no_batch, rows_of
from autoshard.frontend.lower import Source, Traced, whole_cluster
from autoshard.frontend.pipeline_bounds import (
    PipelineBounds,
    pipeline_bounds,
    seconds_by_chunks,
)
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.frontend.staged_planning import LEAST_SECONDS
from autoshard.pipeline.options import Execution, Pipeline
from autoshard.planned.summary import PlanSummary, TriedMicroBatches, bytes_text
from autoshard.progress import running
from autoshard.search.micro_batches import divisors

_PER_STAGE = 4
"""Micro-batches for each stage that are tried first: a bubble of about a fifth."""
_SLOWER = 2
"""Numbers of stages in a row without a faster plan, after which no more are tried."""

_LEAST_BUBBLE = 0.005
"""Share of a step in which stages wait: no more parts on a stage are tried than leave so little."""

PlanSource = Callable[[Source, Request, Traced, float], Plan]


def with_chosen_pipeline(traced: Traced, request: Request, plan_source: PlanSource) -> Plan:
    """The fastest plan that fits of all that are tried; ``summary.tried_pipelines`` says which.

    Args:
        traced: The function, to be lowered for the devices of a stage.
        request: Says ``pipeline="auto"``; a number of micro-batches in it is kept.
        plan_source: Plans for a request with a pipeline, or with none; slower steps than so many
            seconds are of no use.

    Raises:
        DoesNotFitError: Nothing that was tried fits; it says what.
        PlanError: The step cannot be planned without stages either.
    """
    return _Choice(traced, request, plan_source).run()


@dataclass
class _Choice:
    traced: Traced
    request: Request
    plan_source: PlanSource
    tried: list[TriedMicroBatches] = field(default_factory=list[TriedMicroBatches])
    best: Plan | None = None
    newest: Plan | None = None
    """What was planned last; None: it does not fit."""
    said: list[Warning | str] = field(default_factory=list[Warning | str])
    """Warnings of the best plan, which are shown; not those of the others."""
    failed: DoesNotFitError | None = None
    """Error of the step without stages, where that does not fit."""
    may_be_lockstep: bool = True
    """Has no program of all stages been refused?"""
    deadline: float = math.inf
    """Time of ``time.monotonic()``."""

    def run(self) -> Plan:
        if self.request.time_limit is not None:
            self.deadline = time.monotonic() + self.request.time_limit
        alone = replace(self.request, pipeline=None)
        source = self.traced.source(alone)
        self._plan(1, 1, source, alone)
        examples = self._examples(source)
        if examples:
            self._plan_all_stages(examples)
        else:
            self._refuse(2, no_batch(source, self.request))
        if self.best is None:
            assert self.failed is not None
            raise self._does_not_fit(self.failed)
        for message in self.said:
            warnings.warn(message, stacklevel=2)
        summary = replace(cast(PlanSummary, self.best.summary), tried_pipelines=tuple(self.tried))
        return replace(self.best, summary=summary)

    def _examples(self, source: Source) -> int:
        """How many the batch has; 0: nobody knows the batch."""
        held = batch_of_source(source, self.request.batch_argnums)
        return math.gcd(*rows_of(source, held)) if held else 0

    def _plan_all_stages(self, examples: int) -> None:
        slower = 0
        for stages in numbers_of_stages(whole_cluster(self.request)):
            counts = self._counts(examples, stages)
            if not counts:
                self._refuse(stages, f"no number of micro-batches from {stages} on divides it")
                return
            before = self.best
            try:
                self._plan_stages(stages, counts)
            except KeyboardInterrupt:
                if self.best is None:
                    raise
            slower = 0 if self.best is not before or before is None else slower + 1
            if slower == _SLOWER or self._is_over():
                return

    def _counts(self, examples: int, stages: int) -> list[int]:
        """Numbers of micro-batches that divide the batch, as many as stages or more."""
        asked = self.request.micro_batches
        counts = divisors(examples) if asked in (1, "auto") else [asked]
        return [count for count in counts if count >= stages]

    def _plan_stages(self, stages: int, counts: Sequence[int]) -> None:
        """Plan so many stages, with more micro-batches and with fewer while that pays."""
        try:
            fewest = self._staged(stages, counts[0])
            source = self.traced.source(fewest)
            bounds = pipeline_bounds(source, fewest)
        except AutoshardError as error:
            self._refuse(stages, str(error))
            return
        first = min(bisect_left(counts, _PER_STAGE * stages), len(counts) - 1)
        steps: dict[int, float] = {}
        for numbers in (counts[first:], counts[:first][::-1]):
            last = math.inf
            for count in numbers:
                if self._is_over():
                    return
                if self._is_hopeless(stages, count, bounds):
                    continue
                found = self._plan(stages, count, source, self._staged(stages, count))
                if found.outcome == "refused":
                    return
                steps[count] = _seconds(found)
                bounds = bounds.with_known(count, self.newest)
                if steps[count] >= last < math.inf:
                    break
                last = steps[count]
        known = steps or {count: bounds.seconds(count) for count in counts}
        fastest = min(known, key=lambda count: known[count])
        self._plan_chunks(stages, fastest, source, known[fastest])
        if steps and not self._is_hopeless(stages, fastest, bounds, execution="lockstep"):
            self._plan_lockstep(stages, fastest, source)

    def _is_hopeless(
        self,
        stages: int,
        count: int,
        bounds: PipelineBounds,
        execution: Execution = "stages",
    ) -> bool:
        """Is no plan with one part of the model on each stage expected to be the fastest?"""
        seconds = bounds.seconds(count) if execution == "lockstep" else bounds.expected(count)
        if seconds < self._most_seconds:
            return False
        self._tell(stages, count, "bounded", step_seconds=seconds, execution=execution)
        return True

    @property
    def _most_seconds(self) -> float:
        """A slower step is of no use."""
        return math.inf if self.best is None else self.best.step_seconds

    def _plan_chunks(self, stages: int, count: int, source: Source, known: float) -> None:
        """Plan several parts of the model on each stage: what shall be fastest first.

        How much faster than with one part is told by the cut alone: how even it is, how long stages
        wait while the pipeline fills, and for what is sent. What is planned tells what each part
        takes besides.

        Args:
            stages: How many.
            count: Micro-batches.
            source: The step, lowered for the devices of a stage.
            known: Seconds with one part, or that these take at least.
        """
        most = math.ceil((stages - 1) / (_LEAST_BUBBLE * count))
        if not math.isfinite(known) or self._is_over():
            return
        request = self._staged(stages, count, 2)
        link = whole_cluster(request).dims[0]
        try:
            seconds = seconds_by_chunks(source, request, most, known, link)
        except AutoshardError as error:
            self._tell(stages, count, "refused", chunks=2, reason=str(error))
            return
        best = min(known, self._most_seconds)
        more = 0.0  # of the newest plan than expected, for each part
        for chunks in sorted(seconds, key=lambda n: (seconds[n] // (_LEAST_BUBBLE * known), n)):
            expected = seconds[chunks]
            if expected + chunks * more >= (1 - _LEAST_BUBBLE) * best or self._is_over():
                return
            found = self._plan(stages, count, source, self._staged(stages, count, chunks))
            if found.outcome == "refused":
                return
            if found.step_seconds is not None:
                more = max(0.0, found.step_seconds - expected) / chunks
                best = min(best, found.step_seconds)

    def _plan_lockstep(self, stages: int, count: int, source: Source) -> None:
        """Plan one program of all stages, unless the step has no such program."""
        if self.may_be_lockstep and not self._is_over():
            request = self._staged(stages, count, execution="lockstep")
            found = self._plan(stages, count, source, request)
            self.may_be_lockstep = found.outcome != "refused"

    def _is_over(self) -> bool:
        return running().is_interrupted or time.monotonic() >= self.deadline

    def _staged(
        self, stages: int, count: int, chunks: int = 1, execution: Execution = "stages"
    ) -> Request:
        limit = self.request.time_limit
        left = None if limit is None else max(self.deadline - time.monotonic(), LEAST_SECONDS)
        return replace(
            self.request,
            pipeline=Pipeline(stages, count, chunks=chunks, execution=execution),
            micro_batches=count,
            time_limit=left,
        )

    def _plan(self, stages: int, count: int, source: Source, request: Request) -> TriedMicroBatches:
        """Plan once, and keep it if it is the fastest."""
        asked = request.stages
        how: dict[str, Any] = {}
        self.newest = None
        if asked is not None:
            how = {"chunks": asked.chunks, "execution": asked.execution}
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                plan = self.plan_source(source, request, self.traced, self._most_seconds)
        except SlowerPlanError:
            return self._tell(stages, count, "bounded", **how, step_seconds=self._most_seconds)
        except DoesNotFitError as error:
            self.failed = self.failed or error
            return self._tell(stages, count, "does not fit", **how, peak_bytes=error.peak_bytes)
        except AutoshardError as error:
            if stages == 1:
                raise
            return self._tell(stages, count, "refused", **how, reason=str(error))
        self.newest = plan
        if self.best is None or plan.step_seconds < self.best.step_seconds:
            self.best, self.said = plan, [one.message for one in said]
        if stages == 1 and plan.batch is not None:
            count = plan.batch.micro_batches
        costs = {"step_seconds": plan.step_seconds, "peak_bytes": plan.peak_bytes}
        return self._tell(stages, count, "fits", **how, **costs)

    def _refuse(self, stages: int, reason: str) -> TriedMicroBatches:
        return self._tell(stages, 0, "refused", reason=reason)

    def _tell(self, stages: int, count: int, outcome: str, **more: Any) -> TriedMicroBatches:
        tried = TriedMicroBatches(count, outcome, stages=stages, **more)
        self.tried.append(tried)
        return tried

    def _does_not_fit(self, error: DoesNotFitError) -> DoesNotFitError:
        others = [
            f"{one.stages} stages and {one.micro_batches} micro-batches need"
            f" {bytes_text(one.peak_bytes or 0.0)}"
            if one.outcome == "does not fit"
            else f"{one.stages} stages: {one.reason}"
            for one in self.tried
            if one.stages > 1
        ]
        advice = f"Tried as a pipeline, too: {'; '.join(others)}." if others else ""
        return DoesNotFitError(
            error.found,
            error.location,
            error.peak_bytes,
            error.memory_limit,
            advice=f"{advice} {error.advice}".strip(),
        )


def _seconds(tried: TriedMicroBatches) -> float:
    """Seconds of its step; infinite where nothing fits."""
    return math.inf if tried.step_seconds is None else tried.step_seconds
