"""``pipeline="auto"``: stages and micro-batches whose step is the fastest that fits, or no stages.

The step on all devices at once is planned first. It is taken to be the same program for the devices
of each stage; the ones of what is planned first and of what is taken are lowered again, and where
one is another program, as of a step that asks how many devices there are, all is done anew, lowered
for each number of stages.

Then a search looks, for each number of stages on which the devices fall equally, at micro-batches
near four for each stage, and on from there at the next divisor of the batch as long as the step is
expected to get shorter; with the best of these, at several parts of the model on each stage. Two
numbers of stages in a row that are expected to be slower than what was there before end it. What a
step takes is told by the seconds of one stage that does all, which a search finds before anything
is written, and by the schedule of the stages as they are cut.

What is expected to be fastest is then planned, one after the other, until no other is expected to
be faster: written, split into tasks, within the memory of each stage. With as many micro-batches
one program of all stages is planned, which run it in lockstep.
"""

from __future__ import annotations

import math
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from autoshard.cluster.stages import numbers_of_stages
from autoshard.errors import AutoshardError, DoesNotFitError, SlowerPlanError
from autoshard.frontend.batch_arrays import batch_of_source, no_batch, rows_of
from autoshard.frontend.device_order import source_of
from autoshard.frontend.lower import Source, Traced, whole_cluster
from autoshard.frontend.pipeline_bounds import (
    Known,
    PipelineBounds,
    StepTimes,
    pipeline_bounds,
    seconds_by_chunks,
)
from autoshard.frontend.plan import Plan
from autoshard.frontend.refining import Origin
from autoshard.frontend.request import Request
from autoshard.frontend.stage_sources import StageSources
from autoshard.frontend.staged_planning import FULL_EFFORT, LEAST_SECONDS, Effort
from autoshard.frontend.whole_step import WholeStep
from autoshard.ir.garbage import no_collection
from autoshard.pipeline.options import Execution, Pipeline
from autoshard.planned.summary import PlanSummary, TriedMicroBatches, bytes_text
from autoshard.progress import running
from autoshard.schedule.rules import limits_of
from autoshard.search.automatic import end_if_interrupted
from autoshard.search.micro_batches import divisors

_PER_STAGE = 4
"""Micro-batches for each stage that are tried first: a bubble of about a fifth."""
_SLOWER = 2
"""Numbers of stages in a row without a faster plan, after which no more are tried."""

_SAME = 0.01
"""Share of a step by which plans are faster than expected at most: the cost model is no finer. Once
some are planned, no more than these were."""

_LIKE_OTHERS = 0.8
"""Share of what all pipelines that were planned took besides what was expected, and of what one
stage that does all took; others take it, too."""

_LEAST_BUBBLE = 0.005
"""Share of a step in which stages wait: no more parts on a stage are tried than leave so little."""

PlanSource = Callable[[Source, Request, Traced, Effort], Plan]
SearchWhole = Callable[[Source, Request, int, float], WholeStep]


def with_chosen_pipeline(
    traced: Traced, request: Request, plan_source: PlanSource, whole_step: SearchWhole
) -> Plan:
    """The fastest plan that fits of all that are tried; ``summary.tried_pipelines`` says which.

    Args:
        traced: The function, to be lowered for the devices of a stage.
        request: Says ``pipeline="auto"``; a number of micro-batches in it is kept.
        plan_source: Plans for a request with a pipeline, or with none.
        whole_step: Searches for one stage that does all.

    Raises:
        DoesNotFitError: Nothing that was tried fits; it says what.
        PlanError: The step cannot be planned without stages either.
    """
    choice = _Choice(StageSources(traced), request, plan_source, whole_step)
    plan = choice.run()
    if plan is not None:
        plan = choice.for_its_devices(plan)
    if plan is None:
        sources = StageSources(traced, lowers_each=True)
        plan = _Choice(sources, request, plan_source, whole_step).run()
        assert plan is not None, "it was lowered for the devices of each number of stages"
    return plan


@dataclass
class _Candidate:
    """A pipeline, and what is known of it before it is planned."""

    stages: int
    micro_batches: int
    source: Source
    bounds: PipelineBounds
    whole: WholeStep
    share: float
    """Seconds of a step, over those of one stage that does all."""
    chunks: int = 1
    more: float = 0.0
    """Seconds that others of as many micro-batches took besides what was expected."""

    @property
    def expected(self) -> float:
        """Seconds of a step that are expected."""
        return self.whole.seconds * self.share + self.more

    @property
    def parts(self) -> int:
        """How many the model is cut into."""
        return self.stages * self.chunks

    def is_refused_with(self, other: _Candidate) -> bool:
        """Has one no such stages where the other has none?"""
        return self.stages == other.stages and (self.chunks > 1) <= (other.chunks > 1)

    def is_like(self, other: _Candidate) -> bool:
        """Are these the same but for the parts of the model on each stage?"""
        return (self.stages, self.micro_batches) == (other.stages, other.micro_batches)


@dataclass
class _Besides:
    """What pipelines that were planned took besides what was expected of them."""

    least: float = math.inf
    """A share of that, for each part of the model; below 0: the most that one of them took less.
    Infinite: none was planned."""
    whole: dict[bool, float] = field(default_factory=dict[bool, float])
    """By whether memory holds one stage back that does all: what plans of it took besides what the
    searches told, as a share of that, at least."""

    def learn(self, one: _Candidate, seconds: float, whole: float | None) -> None:
        """One took so many seconds, or more; ``whole``: its plan, where one stage does all."""
        expected, told = one.expected, one.whole.seconds
        if whole is not None:
            expected = max(expected, whole * one.share)
            more, held = max(0.0, whole / told - 1), one.whole.is_held_back
            self.whole[held] = min(self.whole.get(held, more), more)
        more = seconds / expected - 1
        self.least = min(self.least, more / one.parts if more > 0 else more)

    def seconds(self, one: _Candidate) -> float:
        """What a plan takes at least."""
        more = _LIKE_OTHERS * self.whole.get(one.whole.is_held_back, 0.0)
        return self.factor(one) * max(one.expected, (1 + more) * one.whole.seconds * one.share)

    def factor(self, one: _Candidate) -> float:
        """The same, over what is expected with the seconds of one stage that does all: most of what
        those that were planned took besides for each part of the model, or as much less as one of
        them."""
        if math.isinf(self.least):
            return 1 - _SAME
        if self.least <= 0:
            return max(1 - _SAME, 1 + self.least)
        return 1 + _LIKE_OTHERS * self.least * one.parts


@dataclass
class _Choice:
    sources: StageSources
    request: Request
    plan_source: PlanSource
    whole_step: SearchWhole
    tried: list[TriedMicroBatches] = field(default_factory=list[TriedMicroBatches])
    candidates: list[_Candidate] = field(default_factory=list[_Candidate])
    """Those that are still to be planned."""
    best: Plan | None = None
    expected: float = math.inf
    """The least seconds of a step that are expected of any."""
    said: list[Warning | str] = field(default_factory=list[Warning | str])
    """Warnings of the best plan, which are shown; not those of the others."""
    failed: DoesNotFitError | None = None
    """Error of the step without stages, where that does not fit."""
    besides: _Besides = field(default_factory=_Besides)
    may_be_lockstep: bool = True
    """Has no program of all stages been refused?"""
    deadline: float = math.inf
    """Time of ``time.monotonic()``."""
    look_until: float = math.inf
    """When searches end that come before anything is planned."""
    times: StepTimes = field(default_factory=StepTimes)

    def run(self) -> Plan | None:
        """Choose; None: the step is another program for the devices of a stage."""
        if self.request.time_limit is not None:
            now = time.monotonic()
            self.deadline = now + self.request.time_limit
            self.look_until = now + self.request.time_limit / 2
        alone = replace(self.request, pipeline=None)
        source = self.sources.alone(alone)
        self._plan(1, 1, source, alone, FULL_EFFORT)
        if self.best is not None:
            self.expected = self.best.step_seconds
        examples = _examples(source, self.request)
        if examples:
            self._look_at_all_stages(examples)
            if not self._is_one_program():
                return None
            self._plan_candidates()
        else:
            self._refuse(2, no_batch(source, self.request))
        if self.best is None:
            assert self.failed is not None
            raise self._does_not_fit(self.failed)
        for message in self.said:
            warnings.warn(message, stacklevel=2)
        tried = tuple(sorted(self.tried, key=lambda one: one.stages))
        summary = replace(cast(PlanSummary, self.best.summary), tried_pipelines=tried)
        return replace(self.best, summary=summary)

    def for_its_devices(self, plan: Plan) -> Plan | None:
        """A plan that was made, of the step as it is lowered for the devices of a stage.

        Returns:
            None: There it is another program, as one that asks how many devices there are.
        """
        if self.sources.program is None or plan.pipeline is None:
            return plan
        origin = cast(Origin, plan.origin)
        own = self.sources.own(origin.request)
        if own is None:
            return None
        return replace(plan, origin=replace(origin, source=source_of(plan, own)))

    def _is_one_program(self) -> bool:
        """Is the step the same program for the devices of what is planned first?"""
        if self.sources.program is None or not self.candidates:
            return True
        one = min(self.candidates, key=self._order)
        request = self._staged(one.stages, one.micro_batches, one.chunks)
        return self._is_beaten(one) or self.sources.own(request) is not None

    def _look_at_all_stages(self, examples: int) -> None:
        slower = 0
        for stages in numbers_of_stages(whole_cluster(self.request)):
            counts = self._counts(examples, stages)
            if not counts:
                self._refuse(stages, f"no number of micro-batches from {stages} on divides it")
                return
            before = self.expected
            self._look_at_stages(stages, counts)
            slower = 0 if self.expected < before or before == math.inf else slower + 1
            if slower == _SLOWER or self._is_over(self.look_until):
                return

    def _counts(self, examples: int, stages: int) -> list[int]:
        """Numbers of micro-batches that divide the batch, as many as stages or more."""
        asked = self.request.micro_batches
        counts = divisors(examples) if asked in (1, "auto") else [asked]
        return [count for count in counts if count >= stages]

    @no_collection()
    def _look_at_stages(self, stages: int, counts: Sequence[int]) -> None:
        """Search with so many stages, with more micro-batches and with fewer while that pays."""
        try:
            fewest = self._staged(stages, counts[0])
            source = self.sources.of(fewest)
            bounds = pipeline_bounds(source, fewest, self.times)
        except AutoshardError as error:
            self._refuse(stages, str(error))
            return
        first = min(bisect_left(counts, _PER_STAGE * stages), len(counts) - 1)
        fastest = math.inf
        """With the number of micro-batches that was looked at first."""
        for numbers in (counts[first:], counts[:first][::-1]):
            last = fastest
            for count in numbers:
                if self._is_over(self.look_until):
                    break
                least = bounds.least_whole(count)
                shares = self._shares(stages, count, source, bounds)
                if self._is_hopeless(stages, count, least, shares):
                    continue
                try:
                    useful = self.expected / min(shares.values())
                    whole = self._whole(stages, count, source, bounds, useful)
                except DoesNotFitError as error:
                    self._tell(stages, count, "does not fit", peak_bytes=error.peak_bytes / stages)
                    continue
                except AutoshardError as error:
                    self._tell(stages, count, "refused", reason=str(error))
                    return
                bounds = bounds.with_known(count, Known(whole.seconds, whole.is_held_back))
                found = [
                    _Candidate(stages, count, source, bounds, whole, share, chunks)
                    for chunks, share in shares.items()
                ]
                self.candidates += found
                now = min(one.expected for one in found)
                fastest = min(fastest, now)
                if now >= last:
                    break
                last = now
        self.expected = min([self.expected, *(one.expected for one in self.candidates)])

    def _whole(
        self, stages: int, count: int, source: Source, bounds: PipelineBounds, useful: float
    ) -> WholeStep:
        left = self.look_until - time.monotonic() if math.isfinite(self.look_until) else None
        request = self._staged(stages, count)
        if left is not None:
            request = replace(request, time_limit=max(left, LEAST_SECONDS))
        return self.whole_step(source, request, bounds.micro_batches, useful)

    def _is_hopeless(
        self, stages: int, count: int, whole: float, shares: Mapping[int, float]
    ) -> bool:
        """Is no plan expected to be the fastest, as none is of any number of parts?

        Args:
            stages: How many.
            count: Of micro-batches.
            whole: What one stage that does all takes at least.
            shares: Of that, by number of parts of the model on each stage.
        """
        if whole * min(shares.values()) < self.expected:
            return False
        self._tell(stages, count, "bounded", step_seconds=whole * shares[1])
        return True

    def _shares(
        self, stages: int, count: int, source: Source, bounds: PipelineBounds
    ) -> dict[int, float]:
        """Seconds of a step over those of one stage that does all, by number of parts on a stage.

        How much faster than with one part is told by the cut alone: how even it is, how long stages
        wait while the pipeline fills, and for what is sent.
        """
        share, whole = bounds.share(count), bounds.least_whole(count)
        if whole / stages >= (1 - _LEAST_BUBBLE) * self.expected:
            return {1: share}
        most = math.ceil((stages - 1) / (_LEAST_BUBBLE * count))
        request = self._staged(stages, count, 2)
        link = whole_cluster(request).dims[0]
        try:
            seconds = seconds_by_chunks(
                source, request, most, whole, bounds.ways, link, self.times, self.expected
            )
        except AutoshardError as error:
            if not any((one.stages, one.chunks) == (stages, 2) for one in self.tried):
                self._tell(stages, count, "refused", chunks=2, reason=str(error))
            return {1: share}
        shares = {chunks: each / whole for chunks, each in seconds.items()}
        return shares | {1: max(share, shares.get(1, 0.0))}

    def _plan_candidates(self) -> None:
        """Plan what is expected to be fastest first, while that is faster than what there is."""
        in_lockstep: set[int] = set()
        try:
            while self.candidates and not self._is_over(self.deadline):
                one = min(self.candidates, key=self._order)
                if self._is_beaten(one):
                    break
                self.candidates.remove(one)
                self._plan_candidate(one)
                if one.stages not in in_lockstep:
                    in_lockstep.add(one.stages)
                    self._plan_lockstep(one)
            if self.best is None:
                end_if_interrupted()
        except KeyboardInterrupt:
            if self.best is None:
                raise
        for one in filter(self._is_beaten, self.candidates):
            if one.chunks == 1:
                least = self.besides.seconds(one)
                self._tell(one.stages, one.micro_batches, "bounded", step_seconds=least)

    def _order(self, one: _Candidate) -> tuple[float, int, float]:
        """Fastest first; where that is the same but for the bubble, fewer parts of the model."""
        seconds = self.besides.seconds(one)
        return seconds // (_LEAST_BUBBLE * self.expected), one.chunks, seconds

    def _is_beaten(self, one: _Candidate) -> bool:
        """Is it not expected to be faster than the best plan?"""
        seconds = self.besides.seconds(one)
        if one.chunks > 1:
            return max(seconds, one.expected) >= (1 - _LEAST_BUBBLE) * self._most_seconds
        return seconds >= self._most_seconds

    @property
    def _most_seconds(self) -> float:
        """A slower step is of no use."""
        return math.inf if self.best is None else self.best.step_seconds

    def _plan_candidate(self, one: _Candidate) -> None:
        most = self._most_seconds
        effort = Effort(most, most / self.besides.factor(one) / one.share)
        request = self._staged(one.stages, one.micro_batches, one.chunks)
        found, plan = self._plan(one.stages, one.micro_batches, one.source, request, effort)
        if found.outcome == "refused":
            self.candidates = [each for each in self.candidates if not one.is_refused_with(each)]
        elif found.step_seconds is not None:  # it takes that, or more if it is slower than others
            whole = None if plan is None else cast(PlanSummary, plan.summary).step_seconds
            self.besides.learn(one, found.step_seconds, whole)
            self._learn(one, found.step_seconds)

    def _learn(self, one: _Candidate, seconds: float) -> None:
        """What a plan takes besides, others with parts of the model take, too: as many times the
        seconds where memory is short, else what each part takes. ``seconds``: at least."""
        more = max(0.0, seconds - one.expected)
        others = [each for each in self.candidates if each.chunks > 1 and one.is_like(each)]
        for each in others:
            if one.chunks == 1 or one.whole.is_held_back:
                each.more += each.expected * more / one.expected
            else:
                each.more += each.chunks / one.chunks * more

    def _plan_lockstep(self, one: _Candidate) -> None:
        """Plan one program of all stages, unless the step has no such program."""
        if not self.may_be_lockstep or self._is_over(self.deadline):
            return
        stages, count = one.stages, one.micro_batches
        if one.bounds.seconds(count) >= self._most_seconds:
            return
        request = self._staged(stages, count, execution="lockstep")
        found, _ = self._plan(stages, count, one.source, request, Effort(self._most_seconds))
        self.may_be_lockstep = found.outcome != "refused"

    def _is_over(self, until: float) -> bool:
        return running().is_interrupted or time.monotonic() >= until

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

    def _plan(
        self, stages: int, count: int, source: Source, request: Request, effort: Effort
    ) -> tuple[TriedMicroBatches, Plan | None]:
        """Plan once, and keep it if it is the fastest; None: there is no plan."""
        asked = request.stages
        how: dict[str, Any] = {}
        if asked is not None:
            how = {"chunks": asked.chunks, "execution": asked.execution}
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                plan = self.plan_source(source, request, self.sources.traced, effort)
        except SlowerPlanError:
            most = effort.most_seconds
            return self._tell(stages, count, "bounded", **how, step_seconds=most), None
        except DoesNotFitError as error:
            self.failed = self.failed or error
            if asked is not None and asked.execution == "stages":
                self.candidates = [one for one in self.candidates if _may_fit(one, asked, error)]
            peak = error.peak_bytes
            return self._tell(stages, count, "does not fit", **how, peak_bytes=peak), None
        except AutoshardError as error:
            if stages == 1:
                raise
            return self._tell(stages, count, "refused", **how, reason=str(error)), None
        if self.best is None or plan.step_seconds < self.best.step_seconds:
            self.best, self.said = plan, [one.message for one in said]
        if stages == 1 and plan.batch is not None:
            count = plan.batch.micro_batches
        costs = {"step_seconds": plan.step_seconds, "peak_bytes": plan.peak_bytes}
        return self._tell(stages, count, "fits", **how, **costs), plan

    def _refuse(self, stages: int, reason: str) -> TriedMicroBatches:
        return self._tell(stages, 0, "refused", reason=reason)

    def _tell(self, stages: int, count: int, outcome: str, **more: Any) -> TriedMicroBatches:
        """Say what became of a pipeline; of what is tried once more, what is better."""
        tried = TriedMicroBatches(count, outcome, stages=stages, **more)
        before = next((n for n, one in enumerate(self.tried) if _is_same(one, tried)), None)
        if before is None:
            self.tried.append(tried)
        elif outcome == "fits" and not _is_as_good(self.tried[before], tried):
            self.tried[before] = tried
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


def _examples(source: Source, request: Request) -> int:
    """How many the batch has; 0: nobody knows the batch."""
    held = batch_of_source(source, request.batch_argnums)
    return math.gcd(*rows_of(source, held)) if held else 0


def _may_fit(one: _Candidate, other: Pipeline, error: DoesNotFitError) -> bool:
    """May a pipeline fit where another one does not?

    One of as many stages and micro-batches needs as much as that, or less as its stages keep fewer
    micro-batches of their parts.
    """
    if (one.stages, one.micro_batches) != (other.stages, other.micro_batches):
        return True
    share = _kept(one.stages, one.chunks) / _kept(other.stages, other.chunks)
    return error.peak_bytes * min(share, 1.0) <= error.memory_limit


def _kept(stages: int, chunks: int) -> float:
    """Micro-batches of which a stage keeps something, counted by the parts of the model on it."""
    ahead = limits_of("1f1b", stages, chunks).ahead
    return max(ahead or (stages,)) / chunks


def _is_same(one: TriedMicroBatches, other: TriedMicroBatches) -> bool:
    """Are these one pipeline?"""
    asked = one.stages, one.micro_batches, one.chunks, one.execution
    return asked == (other.stages, other.micro_batches, other.chunks, other.execution)


def _is_as_good(one: TriedMicroBatches, other: TriedMicroBatches) -> bool:
    """Does ``one`` fit, and is it as fast as ``other``, which does?"""
    return one.outcome == "fits" and (one.step_seconds or 0.0) <= (other.step_seconds or 0.0)
