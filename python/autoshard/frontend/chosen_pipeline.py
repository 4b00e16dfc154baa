"""``pipeline="auto"``: stages and micro-batches whose step is the fastest that fits, or no stages.

The step on all devices at once is planned first. Then, for each number of stages on which the
devices fall equally, micro-batches near four for each stage, and on from there by the next divisor
of the batch as long as the step gets shorter. Two numbers of stages in a row that are slower than
what was there before end it.
"""

from __future__ import annotations

import math
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from autoshard.cluster.stages import numbers_of_stages
from autoshard.errors import AutoshardError, DoesNotFitError
from autoshard.frontend.batch_arrays import batch_of_source, no_batch, rows_of
from autoshard.frontend.lower import Source, Traced, whole_cluster
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.pipeline.options import Pipeline
from autoshard.planned.summary import PlanSummary, TriedPipeline, bytes_text
from autoshard.progress import running
from autoshard.search.micro_batches import divisors

_PER_STAGE = 4
"""Micro-batches for each stage that are tried first: a bubble of about a fifth."""
_SLOWER = 2
"""Numbers of stages in a row without a faster plan, after which no more are tried."""

PlanSource = Callable[[Source, Request, Traced], Plan]


def with_chosen_pipeline(traced: Traced, request: Request, plan_source: PlanSource) -> Plan:
    """The fastest plan that fits of all that are tried; ``summary.tried_pipelines`` says which.

    Args:
        traced: The function, to be lowered for the devices of a stage.
        request: Says ``pipeline="auto"``; a number of micro-batches in it is kept.
        plan_source: Plans for a request with a pipeline, or with none.

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
    tried: list[TriedPipeline] = field(default_factory=list[TriedPipeline])
    best: Plan | None = None
    said: list[Warning | str] = field(default_factory=list[Warning | str])
    """Warnings of the best plan, which are shown; not those of the others."""
    deadline: float = math.inf
    """Time of ``time.monotonic()``."""

    def run(self) -> Plan:
        if self.request.time_limit is not None:
            self.deadline = time.monotonic() + self.request.time_limit
        alone = replace(self.request, pipeline=None)
        source = self.traced.source(alone)
        failed = self._plan(1, source, alone)
        slower, examples = 0, self._examples(source)
        if not examples:
            why = no_batch(source, self.request)
            self.tried.append(TriedPipeline(2, 0, "refused", reason=why))
        for stages in numbers_of_stages(whole_cluster(self.request)):
            if not examples or self._is_over() or slower == _SLOWER:
                break
            before = self.best
            try:
                refused = self._plan_stages(stages, self._counts(examples, stages))
            except KeyboardInterrupt:
                if self.best is None:
                    raise
                break
            slower = 0 if self.best is not before or before is None else slower + 1
            if refused:
                break
        if self.best is None:
            assert failed is not None
            raise self._does_not_fit(failed)
        for message in self.said:
            warnings.warn(message, stacklevel=2)
        summary = replace(cast(PlanSummary, self.best.summary), tried_pipelines=tuple(self.tried))
        return replace(self.best, summary=summary)

    def _is_over(self) -> bool:
        return running().is_interrupted or time.monotonic() >= self.deadline

    def _examples(self, source: Source) -> int:
        """How many the batch has; 0: nobody knows the batch."""
        held = batch_of_source(source, self.request.batch_argnums)
        return math.gcd(*rows_of(source, held)) if held else 0

    def _counts(self, examples: int, stages: int) -> list[int]:
        """Numbers of micro-batches that divide the batch, as many as stages or more."""
        asked = self.request.micro_batches
        counts = divisors(examples) if asked in (1, "auto") else [asked]
        return [count for count in counts if count >= stages]

    def _plan_stages(self, stages: int, counts: Sequence[int]) -> bool:
        """Plan so many stages; is it refused, whatever the number of micro-batches?"""
        if not counts:
            why = f"no number of micro-batches from {stages} on divides the batch"
            self.tried.append(TriedPipeline(stages, 0, "refused", reason=why))
            return True
        request = self._staged(stages, counts[0])
        try:
            source = self.traced.source(request)
        except AutoshardError as error:
            self.tried.append(TriedPipeline(stages, counts[0], "refused", reason=str(error)))
            return False
        first = min(bisect_left(counts, _PER_STAGE * stages), len(counts) - 1)
        for numbers in (range(first, len(counts)), range(first - 1, -1, -1)):
            for count in self._improving(counts[n] for n in numbers):
                self._plan(stages, source, self._staged(stages, count), count)
                if self.tried[-1].outcome == "refused":
                    return False
        return False

    def _improving(self, counts: Iterator[int]) -> Iterator[int]:
        """The numbers up to the first that is no faster than the one before."""
        last = math.inf
        for count in counts:
            if self._is_over():
                return
            yield count
            step = self.tried[-1].step_seconds
            if step is not None and step >= last:
                return
            last = math.inf if step is None else step

    def _staged(self, stages: int, count: int) -> Request:
        limit = self.request.time_limit
        left = None if limit is None else max(self.deadline - time.monotonic(), 1e-3)
        return replace(
            self.request,
            pipeline=Pipeline(stages, count),
            micro_batches=count,
            time_limit=left,
        )

    def _plan(
        self, stages: int, source: Source, request: Request, count: int = 1
    ) -> DoesNotFitError | None:
        """Plan once, and keep it if it is the fastest."""
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                plan = self.plan_source(source, request, self.traced)
        except DoesNotFitError as error:
            found = TriedPipeline(stages, count, "does not fit", None, error.peak_bytes)
            self.tried.append(found)
            return error
        except AutoshardError as error:
            if stages == 1:
                raise
            self.tried.append(TriedPipeline(stages, count, "refused", reason=str(error)))
            return None
        if stages == 1 and plan.batch is not None:
            count = plan.batch.micro_batches
        self.tried.append(TriedPipeline(stages, count, "fits", plan.step_seconds, plan.peak_bytes))
        if self.best is None or plan.step_seconds < self.best.step_seconds:
            self.best, self.said = plan, [one.message for one in said]
        return None

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
