"""What no plan of a pipeline falls below: its stages as they are cut, computing alone.

Ops take the seconds of one device over the devices of a stage, nothing is sent, and a micro-batch
of fewer examples takes no longer an example. So one cut bounds all numbers of micro-batches that
are larger than its own, without a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import cast

from autoshard.cluster import Cluster
from autoshard.cluster.topology import Dim
from autoshard.frontend.batch_arrays import into_micro_batches
from autoshard.frontend.layer_parts import InParts
from autoshard.frontend.lower import Source
from autoshard.frontend.micro_batched import micro_batched
from autoshard.frontend.request import Request
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.boundary import say_trips
from autoshard.passes.pipeline_stages import PipelineStages
from autoshard.pipeline.options import Pipeline
from autoshard.planned.stage_works import works_of
from autoshard.rewrites.stages import Parts, TimedStep, parts_of
from autoshard.schedule.rules import Rule, seconds_of_works
from autoshard.schedule.work import StageSeconds, Work, lower_bound, training_works


@dataclass(frozen=True, slots=True)
class PipelineBounds:
    """Bounds of all pipelines of so many stages."""

    micro_batches: int
    """Those of the cut; bounds hold for as many or more."""
    works: tuple[Work, ...]
    """Those of a micro-batch, with seconds of one device of the cluster."""
    devices: int
    """Devices of one stage."""
    rules: Sequence[Rule] = ("1f1b",)
    """Schedules to choose from."""
    known: Mapping[int, Known] = field(default_factory=dict[int, "Known"])
    """What searches found, by micro-batches."""

    def seconds(self, micro_batches: int) -> float:
        """Seconds of a step that no schedule with one part of the model on a stage is under."""
        share = self.micro_batches / micro_batches / self.devices
        works = [replace(work, seconds=work.seconds * share) for work in self.works]
        return lower_bound(works, micro_batches)

    def share(self, micro_batches: int) -> float:
        """Seconds of a step, over those of one stage that does all stages' work: about what a plan
        of the pipeline comes to whose ops take as many times the seconds of one device each.

        Example: 2 stages, 8 micro-batches of 3 seconds on each: 27 seconds of 48 in all.
        """
        stages = 1 + max(work.stage for work in self.works)
        whole = micro_batches * sum(work.seconds for work in self.works)

        def seconds(rule: Rule) -> float:
            return _seconds_of_many(
                lambda count: _seconds_of_works(rule, self.works, stages, count),
                stages,
                micro_batches,
            )

        return min(map(seconds, self.rules)) / whole

    @property
    def ways(self) -> StageSeconds:
        """Shares of the way forward, and of gradients, in what the first stage does."""
        own = [work for work in self.works if not work.stage]
        whole = sum(work.seconds for work in own)
        deferred = sum(work.seconds for work in own if work.is_deferred)
        forward = sum(work.seconds for work in own if work.ahead > 0)
        rest = max(whole - forward - deferred, 0.0)
        return StageSeconds(forward / whole, rest / whole, deferred / whole)

    def with_known(self, micro_batches: int, known: Known) -> PipelineBounds:
        """With what a search for so many micro-batches found."""
        return replace(self, known={**self.known, micro_batches: known})

    def least_whole(self, micro_batches: int) -> float:
        """What one stage that does all is expected to take at least, as with other numbers.

        What it takes besides computing (what is sent, weights that are read for each micro-batch)
        is no less with more micro-batches, unless they had too little memory, and with fewer at
        best as much less as these are fewer.
        """
        computing = self.micro_batches / self.devices * sum(work.seconds for work in self.works)
        found = computing
        for count, plan in self.known.items():
            kept = min(micro_batches / count, 1)
            if micro_batches > count and plan.is_held_back:
                kept = 0
            found = max(found, computing + kept * (plan.seconds - computing))
        return found


@dataclass(frozen=True, slots=True)
class Known:
    """What a search found for one stage that does all."""

    seconds: float
    """Those of a step."""
    is_held_back: bool
    """Is it slower than with more memory?"""


_MORE = 4
"""So many more numbers of parts on a stage are looked at behind the last one whose stages wait less
than those of fewer."""
_WAITS_LESS = 0.001
"""Share of a step by which stages wait less with more parts, so that still more are looked at."""


class StepTimes:
    """Steps in micro-batches with the seconds of their ops on one device: the newest one stays.

    Programs that are one for all numbers of stages are timed once, in the micro-batches of the
    first: in more of them an example takes no less, and what is asked of the seconds is how they
    fall to the stages.
    """

    def __init__(self) -> None:
        self._known: tuple[bytes, TimedStep] | None = None
        self._parts: dict[tuple[int, int, bool], Parts | None] = {}
        self._cut: InParts | None = None
        """The newest step, where loops over layers are cut."""

    def of(self, source: Source, request: Request) -> TimedStep:
        """The step of a request, maybe in fewer micro-batches or more, loops over layers cut for
        stages of one part each.

        Raises:
            PlanError: Loops over layers cannot be cut for its stages, or it has no micro-batches.
        """
        asked = cast(Pipeline, request.stages)
        parts = InParts.of(source, replace(request, pipeline=replace(asked, chunks=1)))
        self._cut = parts
        source = source if parts is None else parts.source
        is_kept = request.policy == "keep"
        bytecode = source.program.bytecode if is_kept else source.without_checkpoints
        if self._known is None or self._known[0] != bytecode:
            self._known = None  # it goes before there is another one
            self._parts.clear()
            self._known = bytecode, self._timed(source, request, bytecode)
        return self._known[1]

    def parts(
        self, step: TimedStep, stages: int, chunks: int, *, is_exact: bool = True
    ) -> Parts | None:
        """The parts of the model with so many on each of so many stages; None: it has none.

        Args:
            step: The newest one.
            stages: How many.
            chunks: Likewise.
            is_exact: As for ``parts_of``.
        """
        key = stages, chunks, is_exact
        if key not in self._parts:
            cut = self._cut if chunks > 1 else None
            once = chunks if cut is None else 1
            found = parts_of(step, stages, once, PipelineStages.slack, is_exact=is_exact)
            if cut is not None:
                is_equal = any(rows % (stages * chunks) == 0 for rows in cut.rows)
                found = in_more_parts(found, chunks) if found and is_equal else None
            self._parts[key] = found
        return self._parts[key]

    @property
    def is_cut(self) -> bool:
        """Are loops over layers of the newest step cut by their trips?"""
        return self._cut is not None

    def moving_seconds(self, stages: int, devices: int, link: Dim) -> float:
        """Seconds to move rows of the newest step to the stages that work on them, and back, where
        stages have several parts of the model.

        Args:
            stages: How many.
            devices: Of one of them.
            link: Between them.
        """
        if self._cut is None:
            return 0.0
        moved = self._cut.row_bytes / devices / stages * (1 - 1 / stages)
        return 2 * (stages - 1) * link.latency.value + moved / link.bandwidth.value

    @staticmethod
    def _timed(source: Source, request: Request, bytecode: bytes) -> TimedStep:
        module = parse_bytes(bytecode, new_context(), source.name)
        step = into_micro_batches(source, request, module)
        bytecode = micro_batched(step, None, request.trip_count, bytecode, source.name)
        module = parse_bytes(bytecode, new_context(), source.name)
        say_trips(module, request.trip_count)  # seconds of stages count them
        with module.context, mlir.Location.unknown():
            cluster = cast(Cluster, source.cluster)
            return TimedStep.of(module, request.micro_batch_count, cluster, "stage")


def in_more_parts(parts: Parts, chunks: int) -> Parts:
    """Stages of one part of the model each, whose loops over layers are cut further.

    Layers are what all stages have alike; what some have besides is at their outer ends.

    Args:
        parts: Of the stages.
        chunks: Parts of the model that each is to have.
    """
    layers, last = min(parts.seconds), len(parts.seconds) - 1
    found: list[float] = []
    for stage, seconds in enumerate(parts.seconds):
        own = [layers / chunks] * chunks
        own[-1 if stage == last else 0] += seconds - layers
        found += own
    return Parts(tuple(found), parts.bytes)


def pipeline_bounds(source: Source, request: Request, times: StepTimes) -> PipelineBounds:
    """The bounds of pipelines of a step.

    Args:
        source: The step, lowered for the devices of a stage.
        request: With a pipeline of the fewest micro-batches.
        times: Of steps.

    Raises:
        PlanError: The step has no such stages.
    """
    asked, cluster = cast(Pipeline, request.stages), cast(Cluster, source.cluster)
    step = times.of(source, request)
    found = step.core.works(step.cut(asked.stages, 1, PipelineStages.slack))
    works = works_of(found, 1, splits_gradients=True)
    return PipelineBounds(step.micro_batches, tuple(works), cluster.num_devices, asked.rules)


def filled_seconds(parts: Sequence[float], stages: int, micro_batches: int) -> float:
    """What a step takes at least whose stages take turns: until one has something to do, its work,
    and what the ones before it still have to do then.

    Args:
        parts: Seconds of a micro-batch by part of the model; part ``n`` is on stage ``n % stages``.
        stages: How many.
        micro_batches: Likewise.

    Example: 2 stages of 2 parts of a second each, 4 micro-batches: stage 1 waits for one part on
    its way forward and one on its way back, which take a second together: 1 + 4 * 2 = 9 seconds.
    """
    works = [sum(parts[stage::stages]) for stage in range(stages)]
    waits = accumulate(parts[:stages], initial=0.0)
    return max(wait + micro_batches * work for wait, work in zip(waits, works, strict=False))


def seconds_by_chunks(
    source: Source,
    request: Request,
    most: int,
    whole: float,
    ways: StageSeconds,
    link: Dim,
    times: StepTimes,
    useful: float = math.inf,
) -> dict[int, float]:
    """What a step is expected to take with several parts of the model on each stage.

    Parts share what one stage takes that does all, as they share the seconds of one device; the
    schedule is that of a few micro-batches, and longer by what each more takes. No numbers are
    looked at far behind the last one whose stages wait less than those of fewer parts: what is
    finer is less even, and sends more. The fastest one is cut exactly.

    Args:
        source: The step, lowered for the devices of a stage.
        request: With a pipeline.
        most: Parts on a stage.
        whole: Seconds of one stage that does all.
        ways: Shares of the way forward, and of gradients, in the seconds of a part.
        link: Between stages.
        times: Of steps.
        useful: Steps whose slowest stage works as long or longer are of no use.

    Returns:
        By number of parts on a stage, those that can be and are of use.

    Raises:
        PlanError: Stages cannot have several parts of this model.
    """
    asked = cast(Pipeline, request.stages)
    step = times.of(source, request)
    stages, count = asked.stages, asked.micro_batches
    found: dict[int, Parts] = {}
    least = math.inf
    misses = 0
    for chunks in range(1, most + 1):
        if misses == _MORE:
            break
        parts = times.parts(step, stages, chunks, is_exact=False)
        if parts is None:
            continue
        misses += 1
        found[chunks] = parts
        filled = filled_seconds(parts.seconds, stages, count)
        if filled < (1 - _WAITS_LESS) * least:
            misses, least = 0, filled

    def is_useful(parts: Parts) -> bool:
        slowest = max(sum(parts.seconds[stage::stages]) for stage in range(stages))
        return whole * slowest < useful * sum(parts.seconds)

    devices = cast(Cluster, source.cluster).num_devices
    moving = times.moving_seconds(stages, devices, link)

    def known(chunks: int, parts: Parts) -> float:
        found = _seconds_of_parts(source, request, step, whole, ways, link, asked.rules, parts)
        return found + (moving if chunks > 1 else 0.0)

    told = {chunks: known(chunks, parts) for chunks, parts in found.items() if is_useful(parts)}
    exact = set[int]()
    while told and (fastest := min(told, key=lambda chunks: told[chunks])) not in exact:
        exact.add(fastest)
        parts = times.parts(step, stages, fastest)
        if parts is not None and is_useful(parts):
            told[fastest] = known(fastest, parts)
        else:
            del told[fastest]
    return told


def seconds_with_rules(
    source: Source,
    request: Request,
    whole: float,
    bounds: PipelineBounds,
    link: Dim,
    times: StepTimes,
    rules: Sequence[Rule],
) -> float:
    """What a step is expected to take by the fastest of some schedules.

    Args:
        source: The step, lowered for the devices of a stage.
        request: With a pipeline that can be.
        whole: Seconds of one stage that does all.
        bounds: Of so many stages.
        link: Between stages.
        times: Of steps.
        rules: Of the schedules.
    """
    asked = cast(Pipeline, request.stages)
    alone = whole * replace(bounds, rules=rules).share(asked.micro_batches)
    if asked.chunks == 1:
        return alone
    step = times.of(source, request)
    parts = times.parts(step, asked.stages, asked.chunks)
    if parts is None:
        return alone
    moving = times.moving_seconds(asked.stages, bounds.devices, link)
    ways = bounds.ways
    return moving + _seconds_of_parts(source, request, step, whole, ways, link, rules, parts)


def _seconds_of_parts(
    source: Source,
    request: Request,
    step: TimedStep,
    whole: float,
    ways: StageSeconds,
    link: Dim,
    rules: Sequence[Rule],
    parts: Parts,
) -> float:
    """What a step takes whose stages take turns with parts of the model."""
    asked, cluster = cast(Pipeline, request.stages), cast(Cluster, source.cluster)
    count = asked.micro_batches
    bytes_share = step.micro_batches / count / cluster.num_devices
    sent = link.latency.value + parts.bytes / 2 * bytes_share / link.bandwidth.value
    scale = whole / (count * sum(parts.seconds))
    works = [
        StageSeconds(
            each * scale * ways.forward,
            each * scale * ways.input_gradient,
            each * scale * ways.weight_gradient,
        )
        for each in parts.seconds
    ]
    return interleaved_seconds(works, asked.stages, count, sent, rules)


@lru_cache(maxsize=64)
def _seconds_of_works(rule: Rule, works: tuple[Work, ...], stages: int, count: int) -> float:
    """Seconds of a schedule; one of few micro-batches tells of several numbers of them."""
    return seconds_of_works(rule, works, stages, count)


def interleaved_seconds(
    parts: Sequence[StageSeconds],
    stages: int,
    micro_batches: int,
    transfer_seconds: float,
    rules: Sequence[Rule] = ("1f1b",),
) -> float:
    """Seconds of the fastest of some interleaved schedules.

    Args:
        parts: Seconds of a micro-batch by part of the model.
        stages: How many.
        micro_batches: Likewise.
        transfer_seconds: From stage to stage.
        rules: Those of the schedules.
    """
    chunks = len(parts) // stages

    def of_rule(rule: Rule) -> float:
        works = training_works(parts, stages, splits_gradients=rule == "zero_bubble")

        def seconds(count: int) -> float:
            return seconds_of_works(rule, works, stages, count, chunks, transfer_seconds)

        return _seconds_of_many(seconds, stages, micro_batches)

    return min(map(of_rule, rules))


def _seconds_of_many(seconds: Callable[[int], float], stages: int, micro_batches: int) -> float:
    """Seconds of a schedule of many micro-batches by those of few: each more takes as long as the
    last ones of these.

    Args:
        seconds: Of so many micro-batches.
        stages: How many.
        micro_batches: Likewise.
    """
    few = [min(micro_batches, 2 * stages), min(micro_batches, 3 * stages)]
    found = [seconds(count) for count in few]
    if few[1] == micro_batches:
        return found[1]
    each = (found[1] - found[0]) / (few[1] - few[0])
    return found[1] + (micro_batches - few[1]) * each
