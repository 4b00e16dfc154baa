"""``pipeline="auto"``: stages and micro-batches whose step is the fastest that fits, or no stages.

The step on all devices at once is planned first. It is taken to be the same program for the devices
of each stage; the ones of what is planned first and of what is taken are lowered again, and where
one is another program, as of a step that asks how many devices there are, all is done anew, lowered
for each number of stages.

Then a search looks, for each number of stages on which the devices fall equally, at micro-batches
near four for each stage, and on from there at the next divisor of the batch as long as the step is
expected to get shorter; with the best of these, at several parts of the model on each stage. What a
step takes is told by the seconds of one stage that does all, which a search finds before anything
is written, and by the schedule of the stages as they are cut. Numbers of stages come in the order
of what the first plans of their searches promise; two in a row, from few stages to many, that
promise less than what was there before end it. A search ends with its first plan where that is too
slow already.

What is expected to be fastest is then planned, one after the other, until no other is expected to
be faster: written, split into tasks, within the memory of each stage. Where memory is short no
schedule is hoped for but the one that keeps least. With as many micro-batches one program of all
stages is planned, which run it in lockstep.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from autoshard.errors import AutoshardError, DoesNotFitError, SlowerPlanError
from autoshard.frontend.batch_arrays import batch_of_source, no_batch, rows_of
from autoshard.frontend.device_order import source_of
from autoshard.frontend.lower import Source, Traced
from autoshard.frontend.pipeline_looks import LEAST_BUBBLE, Candidate, Looks, SearchWhole
from autoshard.frontend.plan import Plan
from autoshard.frontend.refining import Origin
from autoshard.frontend.request import Request
from autoshard.frontend.stage_sources import StageSources
from autoshard.frontend.staged_planning import FULL_EFFORT, Effort
from autoshard.pipeline.options import Pipeline
from autoshard.planned.summary import PlanSummary, TriedMicroBatches, bytes_text
from autoshard.schedule.rules import limits_of
from autoshard.search.automatic import end_if_interrupted

_SAME = 0.01
"""Share of a step by which plans are faster than expected at most: the cost model is no finer. Once
some are planned, no more than these were."""

_LIKE_OTHERS = 0.8
"""Share of what all pipelines that were planned took besides what was expected, and of what one
stage that does all took; others take it, too."""

PlanSource = Callable[[Source, Request, Traced, Effort], Plan]


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
    choice = _Choice(Looks(StageSources(traced), request, whole_step), plan_source)
    plan = choice.run()
    if plan is not None:
        plan = choice.for_its_devices(plan)
    if plan is None:
        sources = StageSources(traced, lowers_each=True)
        plan = _Choice(Looks(sources, request, whole_step), plan_source).run()
        assert plan is not None, "it was lowered for the devices of each number of stages"
    return plan


@dataclass
class _Besides:
    """What pipelines that were planned took besides what was expected of them."""

    least: float = math.inf
    """A share of that, for each part of the model; below 0: the most that one of them took less.
    Infinite: none was planned."""
    whole: dict[bool, float] = field(default_factory=dict[bool, float])
    """By whether memory holds one stage back that does all: what plans of it took besides what the
    searches told, as a share of that, at least."""

    def learn(self, one: Candidate, seconds: float, whole: float | None) -> None:
        """One took so many seconds, or more; ``whole``: its plan, where one stage does all."""
        expected, told = one.expected, one.whole.seconds
        if whole is not None:
            expected = max(expected, whole * one.share)
            more, held = max(0.0, whole / told - 1), one.whole.is_held_back
            self.whole[held] = min(self.whole.get(held, more), more)
        more = seconds / expected - 1
        self.least = min(self.least, more / one.parts if more > 0 else more)

    def seconds(self, one: Candidate) -> float:
        """What a plan takes at least."""
        more = _LIKE_OTHERS * self.whole.get(one.whole.is_held_back, 0.0)
        return self.factor(one) * max(one.expected, (1 + more) * one.whole.seconds * one.share)

    def factor(self, one: Candidate) -> float:
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
    looks: Looks
    plan_source: PlanSource
    best: Plan | None = None
    said: list[Warning | str] = field(default_factory=list[Warning | str])
    """Warnings of the best plan, which are shown; not those of the others."""
    failed: DoesNotFitError | None = None
    """Error of the step without stages, where that does not fit."""
    besides: _Besides = field(default_factory=_Besides)
    may_be_lockstep: bool = True
    """Has no program of all stages been refused?"""

    def run(self) -> Plan | None:
        """Choose; None: the step is another program for the devices of a stage."""
        if self.looks.request.time_limit is not None:
            now = time.monotonic()
            self.looks.deadline = now + self.looks.request.time_limit
            self.looks.look_until = now + self.looks.request.time_limit / 2
        alone = replace(self.looks.request, pipeline=None)
        source = self.looks.sources.alone(alone)
        self._plan(1, 1, source, alone, FULL_EFFORT)
        if self.best is not None:
            self.looks.expected = self.best.step_seconds
        examples = _examples(source, self.looks.request)
        if examples:
            self.looks.look_at_all_stages(examples)
            if not self._is_one_program():
                return None
            self._plan_candidates()
        else:
            self.looks.refuse(2, no_batch(source, self.looks.request))
        if self.best is None:
            assert self.failed is not None
            raise self._does_not_fit(self.failed)
        for message in self.said:
            warnings.warn(message, stacklevel=2)
        tried = tuple(sorted(self.looks.tried, key=lambda one: one.stages))
        summary = replace(cast(PlanSummary, self.best.summary), tried_pipelines=tried)
        return replace(self.best, summary=summary)

    def for_its_devices(self, plan: Plan) -> Plan | None:
        """A plan that was made, of the step as it is lowered for the devices of a stage.

        Returns:
            None: There it is another program, as one that asks how many devices there are.
        """
        if self.looks.sources.program is None or plan.pipeline is None:
            return plan
        origin = cast(Origin, plan.origin)
        own = self.looks.sources.own(origin.request)
        if own is None:
            return None
        return replace(plan, origin=replace(origin, source=source_of(plan, own)))

    def _is_one_program(self) -> bool:
        """Is the step the same program for the devices of what is planned first?"""
        if self.looks.sources.program is None or not self.looks.candidates:
            return True
        one = min(self.looks.candidates, key=self._order)
        request = self.looks.staged(one.stages, one.micro_batches, one.chunks)
        return self._is_beaten(one) or self.looks.sources.own(request) is not None

    def _plan_candidates(self) -> None:
        """Plan what is expected to be fastest first, while that is faster than what there is."""
        in_lockstep: set[int] = set()
        try:
            while self.looks.candidates and not self.looks.is_over(self.looks.deadline):
                one = min(self.looks.candidates, key=self._order)
                if self._is_beaten(one):
                    break
                is_open = one.whole.is_bound and self.looks.is_shared
                if is_open and not self.looks.is_over(self.looks.look_until):
                    self.looks.look_closer(one)
                    continue
                self.looks.candidates.remove(one)
                kept = one.expected
                if self.best is not None:
                    kept = self.looks.seconds_as_kept(one)
                if kept >= (1 + _SAME) * self._most_seconds:
                    how = {"chunks": one.chunks, "step_seconds": kept}
                    self.looks.tell(one.stages, one.micro_batches, "bounded", **how)
                    continue
                self._plan_candidate(one)
                if one.stages not in in_lockstep:
                    in_lockstep.add(one.stages)
                    self._plan_lockstep(one)
            if self.best is None:
                end_if_interrupted()
        except KeyboardInterrupt:
            if self.best is None:
                raise
        for one in filter(self._is_beaten, self.looks.candidates):
            if one.chunks == 1:
                least = self.besides.seconds(one)
                self.looks.tell(one.stages, one.micro_batches, "bounded", step_seconds=least)

    def _order(self, one: Candidate) -> tuple[float, int, float]:
        """Fastest first; where that is the same but for the bubble, fewer parts of the model."""
        seconds = self.besides.seconds(one)
        return seconds // (LEAST_BUBBLE * self.looks.expected), one.chunks, seconds

    def _is_beaten(self, one: Candidate) -> bool:
        """Is it not expected to be faster than the best plan?"""
        seconds = self.besides.seconds(one)
        if one.chunks > 1:
            return max(seconds, one.expected) >= (1 - LEAST_BUBBLE) * self._most_seconds
        return seconds >= self._most_seconds

    @property
    def _most_seconds(self) -> float:
        """A slower step is of no use."""
        return math.inf if self.best is None else self.best.step_seconds

    def _plan_candidate(self, one: Candidate) -> None:
        most = self._most_seconds
        effort = Effort(most, most / self.besides.factor(one) / one.share)
        request = self.looks.staged(one.stages, one.micro_batches, one.chunks)
        found, plan = self._plan(one.stages, one.micro_batches, one.source, request, effort)
        if found.outcome == "refused":
            self.looks.candidates = [
                each for each in self.looks.candidates if not one.is_refused_with(each)
            ]
        elif found.step_seconds is not None:  # it takes that, or more if it is slower than others
            whole = None if plan is None else cast(PlanSummary, plan.summary).step_seconds
            self.besides.learn(one, found.step_seconds, whole)
            self._learn(one, found.step_seconds)

    def _learn(self, one: Candidate, seconds: float) -> None:
        """What a plan takes besides, others with parts of the model take, too: as many times the
        seconds where memory is short, else what each part takes. ``seconds``: at least."""
        more = max(0.0, seconds - one.expected)
        others = [each for each in self.looks.candidates if each.chunks > 1 and one.is_like(each)]
        for each in others:
            if one.chunks == 1 or one.whole.is_held_back:
                each.more += each.expected * more / one.expected
            else:
                each.more += each.parts / one.parts * more

    def _plan_lockstep(self, one: Candidate) -> None:
        """Plan one program of all stages, unless the step has no such program."""
        if not self.may_be_lockstep or self.looks.is_over(self.looks.deadline):
            return
        stages, count = one.stages, one.micro_batches
        if one.bounds.seconds(count) >= self._most_seconds:
            return
        request = self.looks.staged(stages, count, execution="lockstep")
        found, _ = self._plan(stages, count, one.source, request, Effort(self._most_seconds))
        self.may_be_lockstep = found.outcome != "refused"

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
                plan = self.plan_source(source, request, self.looks.sources.traced, effort)
        except SlowerPlanError:
            most = effort.most_seconds
            return self.looks.tell(stages, count, "bounded", **how, step_seconds=most), None
        except DoesNotFitError as error:
            self.failed = self.failed or error
            if asked is not None and asked.execution == "stages":
                self.looks.candidates = [
                    one for one in self.looks.candidates if _may_fit(one, asked, error)
                ]
            peak = error.peak_bytes
            return self.looks.tell(stages, count, "does not fit", **how, peak_bytes=peak), None
        except AutoshardError as error:
            if stages == 1:
                raise
            return self.looks.tell(stages, count, "refused", **how, reason=str(error)), None
        if self.best is None or plan.step_seconds < self.best.step_seconds:
            self.best, self.said = plan, [one.message for one in said]
        if stages == 1 and plan.batch is not None:
            count = plan.batch.micro_batches
        costs = {"step_seconds": plan.step_seconds, "peak_bytes": plan.peak_bytes}
        return self.looks.tell(stages, count, "fits", **how, **costs), plan

    def _does_not_fit(self, error: DoesNotFitError) -> DoesNotFitError:
        others = [
            f"{one.stages} stages and {one.micro_batches} micro-batches need"
            f" {bytes_text(one.peak_bytes or 0.0)}"
            if one.outcome == "does not fit"
            else f"{one.stages} stages: {one.reason}"
            for one in self.looks.tried
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


def _may_fit(one: Candidate, other: Pipeline, error: DoesNotFitError) -> bool:
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
