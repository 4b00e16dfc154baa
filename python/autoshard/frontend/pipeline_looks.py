"""Looks at pipelines before any is planned: what a step takes with so many stages, micro-batches
and parts of the model on each stage."""

from __future__ import annotations

import contextlib
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.cluster.stages import numbers_of_stages
from autoshard.errors import AutoshardError, DoesNotFitError
from autoshard.frontend.layer_parts import InParts
from autoshard.frontend.lower import Source, whole_cluster
from autoshard.frontend.pipeline_bounds import (
    Known,
    PipelineBounds,
    StepTimes,
    pipeline_bounds,
    seconds_by_chunks,
    seconds_with_rules,
)
from autoshard.frontend.request import Request
from autoshard.frontend.stage_sources import StageSources
from autoshard.frontend.staged_planning import LEAST_SECONDS
from autoshard.frontend.whole_step import WholeStep
from autoshard.ir.garbage import no_collection
from autoshard.pipeline.options import Execution, Pipeline
from autoshard.planned.summary import TriedMicroBatches
from autoshard.progress import running
from autoshard.schedule.rules import Rule
from autoshard.search.micro_batches import divisors

SearchWhole = Callable[[Source, Request, int, float], WholeStep]

_PER_STAGE = 4
"""Micro-batches for each stage that are tried first: a bubble of about a fifth."""
_SLOWER = 2
"""Numbers of stages in a row without a faster plan, after which no more are tried."""
LEAST_BUBBLE = 0.005
"""Share of a step in which stages wait: no more parts on a stage are tried than leave so little."""
_LEAN: Rule = "1f1b"
"""The schedule that keeps least."""


@dataclass
class Candidate:
    """A pipeline, and what is known of it before it is planned."""

    stages: int
    micro_batches: int
    source: Source
    bounds: PipelineBounds
    whole: WholeStep
    share: float
    """Seconds of a step, over those of one stage that does all."""
    chunks: int = 1
    are_parts_equal: bool = False
    """Are parts of the model on a stage those of a loop over layers, cut by its trips?"""
    more: float = 0.0
    """Seconds that others of as many micro-batches took besides what was expected."""

    @property
    def expected(self) -> float:
        """Seconds of a step that are expected."""
        return self.whole.seconds * self.share + self.more

    @property
    def parts(self) -> int:
        """How many the model is cut into; equal ones on a stage count as one."""
        return self.stages * (1 if self.are_parts_equal else self.chunks)

    def is_refused_with(self, other: Candidate) -> bool:
        """Has one no such stages where the other has none?"""
        return self.stages == other.stages and (self.chunks > 1) <= (other.chunks > 1)

    def is_like(self, other: Candidate) -> bool:
        """Are these the same but for the parts of the model on each stage?"""
        return (self.stages, self.micro_batches) == (other.stages, other.micro_batches)


@dataclass
class _Look:
    """A number of stages that is looked at."""

    stages: int
    counts: Sequence[int]
    """Numbers of micro-batches, ascending."""
    first: int
    """Which of these is looked at first."""
    source: Source
    bounds: PipelineBounds
    whole: WholeStep | None = None
    """What is known of one stage that does all, with the first of these numbers."""
    promise: float = math.inf
    """Seconds of a step that no search is expected to find less than."""


@dataclass
class Looks:
    """What was looked at, and what is to be planned."""

    sources: StageSources
    request: Request
    whole_step: SearchWhole
    tried: list[TriedMicroBatches] = field(default_factory=list[TriedMicroBatches])
    candidates: list[Candidate] = field(default_factory=list[Candidate])
    """Those that are still to be planned."""
    expected: float = math.inf
    """The least seconds of a step that are expected of any."""
    deadline: float = math.inf
    """Time of ``time.monotonic()``."""
    look_until: float = math.inf
    """When searches end that come before anything is planned."""
    times: StepTimes = field(default_factory=StepTimes)
    is_shared: bool = True
    """Is what is read and timed for one number of stages that of all?"""

    def look_at_all_stages(self, examples: int) -> None:
        """Look at each number of stages, that of the fastest first plan first, so that searches
        for others end early; where each is a program of its own, in their order."""
        waiting: list[_Look] = []
        least, slower = self.expected, 0
        for stages in numbers_of_stages(whole_cluster(self.request)):
            counts = self._counts(examples, stages)
            if not counts:
                self.refuse(stages, f"no number of micro-batches from {stages} on divides it")
                break
            look = self._first_look(stages, counts)
            if look is not None and not self.is_shared:
                self._look_at_stages(look)
                look.promise = self.expected
            elif look is not None:
                waiting.append(look)
            promise = math.inf if look is None else look.promise
            slower = 0 if promise < least or least == math.inf else slower + 1
            least = min(least, promise)
            if slower == _SLOWER or self.is_over(self.look_until):
                break
        for look in sorted(waiting, key=lambda one: one.promise):
            self._look_at_stages(look)

    def _counts(self, examples: int, stages: int) -> list[int]:
        """Numbers of micro-batches that divide the batch, as many as stages or more."""
        asked = self.request.micro_batches
        counts = divisors(examples) if asked in (1, "auto") else [asked]
        return [count for count in counts if count >= stages]

    @no_collection()
    def _first_look(self, stages: int, counts: Sequence[int]) -> _Look | None:
        """What the first plan of a search promises; None: there are no such stages."""
        try:
            fewest = self.staged(stages, counts[0])
            source = self.sources.of(fewest)
            bounds = pipeline_bounds(source, fewest, self.times)
        except AutoshardError as error:
            self.refuse(stages, str(error))
            return None
        first = min(bisect_left(counts, _PER_STAGE * stages), len(counts) - 1)
        look = _Look(stages, counts, first, source, bounds)
        self.is_shared = self._is_for_any(source, fewest)
        if not self.is_shared:
            return look
        count = counts[first]
        share = min(self._shares(stages, count, source, bounds).values())
        look.promise = bounds.least_whole(count) * share
        if look.promise < self.expected and not self.is_over(self.look_until):
            with contextlib.suppress(AutoshardError):  # it is told where all are looked at
                look.whole = self._whole(stages, count, source, bounds, 0.0)
                look.promise = look.whole.seconds * share
        return look

    def _is_for_any(self, source: Source, request: Request) -> bool:
        """Is a step lowered once, and has it no loops over layers that are cut for its stages?"""
        return self.sources.program is not None and InParts.of(source, request) is None

    @no_collection()
    def _look_at_stages(self, look: _Look) -> None:
        """Search with so many stages, with more micro-batches and with fewer while that pays."""
        stages, counts, first = look.stages, look.counts, look.first
        source, bounds = look.source, look.bounds
        are_equal = self.times.is_cut
        fastest = math.inf
        """With the number of micro-batches that was looked at first."""
        for numbers in (counts[first:], counts[:first][::-1]):
            last = fastest
            for count in numbers:
                if self.is_over(self.look_until):
                    break
                least = bounds.least_whole(count)
                shares = self._shares(stages, count, source, bounds)
                if self._is_hopeless(stages, count, least, shares):
                    continue
                try:
                    useful = self.expected / min(shares.values())
                    whole = look.whole if count == counts[first] else None
                    if whole is None or (whole.is_bound and whole.seconds < useful):
                        whole = self._whole(stages, count, source, bounds, useful)
                except DoesNotFitError as error:
                    self.tell(stages, count, "does not fit", peak_bytes=error.peak_bytes / stages)
                    continue
                except AutoshardError as error:
                    self.tell(stages, count, "refused", reason=str(error))
                    return
                bounds = bounds.with_known(count, Known(whole.seconds, whole.is_held_back))
                found = [
                    Candidate(stages, count, source, bounds, whole, share, chunks, are_equal)
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
        request = self.staged(stages, count)
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
        self.tell(stages, count, "bounded", step_seconds=whole * shares[1])
        return True

    def _shares(
        self, stages: int, count: int, source: Source, bounds: PipelineBounds
    ) -> dict[int, float]:
        """Seconds of a step over those of one stage that does all, by number of parts on a stage.

        How much faster than with one part is told by the cut alone: how even it is, how long stages
        wait while the pipeline fills, and for what is sent.
        """
        share, whole = bounds.share(count), bounds.least_whole(count)
        if whole / stages >= (1 - LEAST_BUBBLE) * self.expected:
            return {1: share}
        most = math.ceil((stages - 1) / (LEAST_BUBBLE * count))
        request = self.staged(stages, count, 2)
        link = whole_cluster(request).dims[0]
        try:
            seconds = seconds_by_chunks(
                source, request, most, whole, bounds.ways, link, self.times, self.expected
            )
        except AutoshardError as error:
            if not any((one.stages, one.chunks) == (stages, 2) for one in self.tried):
                self.tell(stages, count, "refused", chunks=2, reason=str(error))
            return {1: share}
        shares = {chunks: each / whole for chunks, each in seconds.items()}
        return shares | {1: max(share, shares.get(1, 0.0))}

    def look_closer(self, one: Candidate) -> None:
        """Search to the end where a search ended early, as what there was to be faster than was
        expected to be faster than it is."""
        stages, count = one.stages, one.micro_batches
        alike = [each for each in self.candidates if one.is_like(each)]
        try:
            whole = self._whole(stages, count, one.source, one.bounds, math.inf)
        except DoesNotFitError as error:
            self.tell(stages, count, "does not fit", peak_bytes=error.peak_bytes / stages)
        except AutoshardError as error:
            self.tell(stages, count, "refused", reason=str(error))
        else:
            for each in alike:
                each.whole = whole
            return
        self.candidates = [each for each in self.candidates if not one.is_like(each)]

    def seconds_as_kept(self, one: Candidate) -> float:
        """Seconds of a step that are expected where memory is short: a plan fills it with what the
        schedule keeps that keeps least, and others do not fit."""
        if not one.whole.is_held_back:
            return one.expected
        request = self.staged(one.stages, one.micro_batches, one.chunks)
        rules: Sequence[Rule] = (_LEAN,) if _LEAN in one.bounds.rules else one.bounds.rules
        link, whole = whole_cluster(request).dims[0], one.whole.seconds
        return seconds_with_rules(one.source, request, whole, one.bounds, link, self.times, rules)

    def is_over(self, until: float) -> bool:
        """Is a time of ``time.monotonic()``, or has somebody pressed Ctrl-C?"""
        return running().is_interrupted or time.monotonic() >= until

    def staged(
        self, stages: int, count: int, chunks: int = 1, execution: Execution = "stages"
    ) -> Request:
        """The request for one pipeline, in the time that is left."""
        limit = self.request.time_limit
        left = None if limit is None else max(self.deadline - time.monotonic(), LEAST_SECONDS)
        return replace(
            self.request,
            pipeline=Pipeline(stages, count, chunks=chunks, execution=execution),
            micro_batches=count,
            time_limit=left,
        )

    def refuse(self, stages: int, reason: str) -> TriedMicroBatches:
        """Say why there are no such stages."""
        return self.tell(stages, 0, "refused", reason=reason)

    def tell(self, stages: int, count: int, outcome: str, **more: Any) -> TriedMicroBatches:
        """Say what became of a pipeline; of what is tried once more, what is better."""
        tried = TriedMicroBatches(count, outcome, stages=stages, **more)
        before = next((n for n, one in enumerate(self.tried) if _is_same(one, tried)), None)
        if before is None:
            self.tried.append(tried)
        elif outcome == "fits" and not _is_as_good(self.tried[before], tried):
            self.tried[before] = tried
        return tried


def _is_same(one: TriedMicroBatches, other: TriedMicroBatches) -> bool:
    """Are these one pipeline?"""
    asked = one.stages, one.micro_batches, one.chunks, one.execution
    return asked == (other.stages, other.micro_batches, other.chunks, other.execution)


def _is_as_good(one: TriedMicroBatches, other: TriedMicroBatches) -> bool:
    """Does ``one`` fit, and is it as fast as ``other``, which does?"""
    return one.outcome == "fits" and (one.step_seconds or 0.0) <= (other.step_seconds or 0.0)
