"""The order in which pipelines are searched and planned, with a search of the test's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import autoshard
from autoshard.errors import DoesNotFitError, SlowerPlanError
from autoshard.frontend import chosen_pipeline, pipeline_looks
from autoshard.frontend.chosen_pipeline import with_chosen_pipeline
from autoshard.frontend.pipeline_bounds import PipelineBounds
from autoshard.frontend.request import Request
from autoshard.frontend.whole_step import WholeStep
from autoshard.planned.summary import PlanSummary
from autoshard.schedule.work import StageSeconds, training_works


@dataclass
class Searches:
    """What searches and plans come to, by stages and micro-batches, and what was asked of them."""

    whole: dict[tuple[int, int], WholeStep]
    """The step of one stage that does all."""
    planned: dict[tuple[int, int], float]
    """Seconds of the pipeline; missing ones do not fit."""
    own: dict[tuple[int, int], float] = field(default_factory=dict)
    """Seconds of a plan's own step of one stage that does all, where that is of interest."""
    asked: list[tuple[int, int]] = field(default_factory=list)
    """Stages and micro-batches of what was planned."""
    limits: dict[str, list[float | None]] = field(
        default_factory=lambda: {"searched": [], "planned": []}
    )
    """``time_limit`` of what was asked."""

    def whole_step(
        self, _source: Any, request: Request, _cut_before: int, _useful: float
    ) -> WholeStep:
        self.limits["searched"].append(request.time_limit)
        return self.whole[asked_of(request)]

    def plan_source(self, source: Any, request: Request, _traced: Any, effort: Any) -> Any:
        if request.stages is None:
            raise DoesNotFitError("no stages", None, 3.0, 1.0)
        if request.stages.execution == "lockstep":
            raise autoshard.PlanError("not in lockstep")
        point = asked_of(request)
        self.asked.append(point)
        self.limits["planned"].append(request.time_limit)
        if self.whole[point].seconds >= effort.most_whole_seconds:
            raise SlowerPlanError("slower")
        seconds = self.planned.get(point)
        if seconds is None:
            raise DoesNotFitError("too much", None, 2.0, 1.0)
        own, origin = self.own.get(point, seconds), Origin(source, request)
        return Planned(seconds, summary_of(own), request.stages, origin=origin)


@dataclass(frozen=True)
class Origin:
    source: Any
    request: Request


@dataclass(frozen=True)
class Program:
    """What a step is lowered to."""

    text: str

    def is_same(self, other: Program) -> bool:
        return self == other


@dataclass
class Lowering:
    """A step that is lowered, to a program that may ask for how many devices."""

    asks: bool
    lowered: list[int] = field(default_factory=list[int])
    """Stages, of each time."""

    def source(self, request: Request, program: Program | None = None) -> Any:
        stages = 1 if request.stages is None else request.stages.stages
        if program is None:
            self.lowered.append(stages)
            program = Program(f"for {stages} stages" if self.asks else "for any")
        return SimpleNamespace(has_mesh=False, program=program)


@dataclass(frozen=True)
class Planned:
    step_seconds: float
    summary: PlanSummary
    pipeline: Any
    peak_bytes: float = 1.0
    batch: Any = None
    origin: Any = None


def summary_of(seconds: float) -> Any:
    return Summary(seconds)


@dataclass(frozen=True)
class Summary:
    step_seconds: float
    tried_pipelines: Any = ()


def asked_of(request: Request) -> tuple[int, int]:
    assert request.stages is not None
    return request.stages.stages, request.stages.micro_batches


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    searches: Searches,
    time_limit: float | None = None,
    traced: Any = None,
    by_chunks: dict[int, dict[int, float]] | None = None,
    as_kept: dict[int, float] | None = None,
) -> Any:
    """The plan of a step of 16 examples on two devices, of which only two stages can be made.

    ``by_chunks``: by micro-batches and parts on each stage, seconds over those of one part.
    ``as_kept``: by parts on each stage, seconds of the schedule that keeps least.
    """

    def bounds(_source: Any, request: Request, _times: Any) -> PipelineBounds:
        stages, count = asked_of(request)
        works = training_works([StageSeconds(0.1, 0.1, 0.1)] * stages, stages)
        return PipelineBounds(count, works, 1)

    def seconds_by_chunks(_source: Any, asked: Request, _most: int, whole: float, *_: Any) -> Any:
        assert asked.stages is not None
        count = asked.stages.micro_batches
        alone = whole * bounds(None, asked, None).share(count)
        shares = (by_chunks or {}).get(count, {})
        return {chunks: share * alone for chunks, share in shares.items()}

    def seconds_with_rules(_source: Any, asked: Request, *_: Any) -> float:
        assert asked.stages is not None
        return (as_kept or {}).get(asked.stages.chunks, 0.0)

    monkeypatch.setattr(pipeline_looks.InParts, "of", lambda *_: None)
    monkeypatch.setattr(pipeline_looks, "seconds_with_rules", seconds_with_rules)
    monkeypatch.setattr(pipeline_looks, "pipeline_bounds", bounds)
    monkeypatch.setattr(chosen_pipeline, "batch_of_source", lambda *_: [0])
    monkeypatch.setattr(chosen_pipeline, "rows_of", lambda *_: [16])
    monkeypatch.setattr(pipeline_looks, "seconds_by_chunks", seconds_by_chunks)
    monkeypatch.setattr(chosen_pipeline, "source_of", lambda _, source: source)
    traced = traced or Lowering(asks=False)
    request = Request(cluster="h100:2", pipeline="auto", time_limit=time_limit)
    return with_chosen_pipeline(traced, request, searches.plan_source, searches.whole_step)


def of(seconds: float, held_back: bool = False) -> WholeStep:
    return WholeStep(seconds, held_back)


COUNTS = (2, 4, 8, 16)


def test_what_is_expected_to_be_slower_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {(2, 2): of(20), (2, 4): of(20), (2, 8): of(20), (2, 16): of(40)}
    searches = Searches(whole, {(2, 8): 11.5})
    plan = chosen(monkeypatch, searches)
    assert plan.step_seconds == 11.5
    assert searches.asked == [(2, 8)]
    in_stages = [one for one in plan.summary.tried_pipelines if one.execution == "stages"]
    tried = {one.micro_batches: one.outcome for one in in_stages}
    assert tried[8] == "fits"
    assert tried[4] == tried[16] == "bounded"


@pytest.mark.parametrize(
    ("first", "asked"),
    [
        (11.25, [(2, 8)]),  # as expected, and 11.31 s are expected of the other one
        (11.10, [(2, 8)]),
        (11.60, [(2, 8), (2, 4)]),
    ],
)
def test_plans_are_not_expected_to_gain_more_than_those_before(
    monkeypatch: pytest.MonkeyPatch, first: float, asked: list[tuple[int, int]]
) -> None:
    whole = {(2, 2): of(40), (2, 4): of(18.1), (2, 8): of(20), (2, 16): of(40)}
    searches = Searches(whole, {(2, 8): first, (2, 4): 11.4})
    assert chosen(monkeypatch, searches).step_seconds == min(first, 11.4)
    assert searches.asked == asked


def test_parts_of_a_model_are_not_planned_where_others_were_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two parts are expected to take 10.5 s, and take longer than 10.7; four take 0.1 s more."""

    @dataclass
    class Slower(Searches):
        def plan_source(self, source: Any, request: Request, _traced: Any, effort: Any) -> Any:
            if request.stages is None:
                return Planned(10.7, summary_of(10.7), None)
            self.asked.append(asked_of(request))
            raise SlowerPlanError("slower")

    seconds = {2: 40, 4: 20, 8: 20, 16: 40}
    whole = {(2, count): of(seconds[count], held_back=True) for count in COUNTS}
    searches = Slower(whole, {})
    shares = {8: {2: 10.5 / 11.25, 4: 10.6 / 11.25}}
    plan = chosen(monkeypatch, searches, by_chunks=shares)
    assert plan.step_seconds == 10.7
    assert searches.asked == [(2, 8), (2, 8)]  # in stages, and in lockstep


def test_several_parts_on_a_stage_are_looked_at_for_each_number_of_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one part on each stage 8 micro-batches are faster than 4, with three parts slower."""
    whole = {(2, 2): of(40), (2, 4): of(18.3), (2, 8): of(20), (2, 16): of(40)}
    searches = Searches(whole, {(2, 4): 9.8})
    plan = chosen(monkeypatch, searches, by_chunks={4: {3: 0.85}, 8: {3: 0.93}})
    assert plan.step_seconds == 9.8
    assert (plan.pipeline.micro_batches, plan.pipeline.chunks) == (4, 3)
    assert searches.asked[0] == (2, 4)


def test_others_are_planned_until_most_of_what_plans_took_besides_makes_them_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10.46 s with three parts and 4 micro-batches take 12.1, so 10.5 of others take 11.3."""
    whole = {(2, 2): of(40), (2, 4): of(18.3), (2, 8): of(20), (2, 16): of(40)}
    searches = Searches(whole, {(2, 4): 12.1, (2, 8): 11.3})
    plan = chosen(monkeypatch, searches, by_chunks={4: {3: 0.9144}, 8: {3: 0.9333}})
    assert searches.asked[:2] == [(2, 4), (2, 8)]
    assert plan.step_seconds == 11.3


def test_what_one_stage_that_does_all_takes_besides_is_not_what_parts_of_the_model_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """8 micro-batches, held back by memory, are expected to take 11.25 s and take 12.1, as one
    stage takes 21.5 s in place of 20. 8 parts and 4 micro-batches, expected at 11.4 s, are no
    slower for that; 16, held back as well and expected at 11.9, are."""
    held = {(2, 8): of(20, held_back=True), (2, 16): of(22.4, held_back=True)}
    own = {(2, 8): 21.5, (2, 4): 19.0}
    searches = Searches(
        {(2, 4): of(19), **held}, {(2, 8): 12.1, (2, 4): 12.0, (2, 16): 11.8}, own=own
    )
    plan = chosen(monkeypatch, searches, by_chunks={4: {8: 0.96}})
    assert list(dict.fromkeys(searches.asked)) == [(2, 8), (2, 4)]
    assert plan.step_seconds == 12.0
    assert plan.pipeline.chunks == 8


def test_another_is_planned_where_the_fastest_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {(2, count): of(20 if count == 8 else 30, held_back=True) for count in COUNTS}
    searches = Searches(whole, {(2, 4): 60.0})
    plan = chosen(monkeypatch, searches)
    assert plan.step_seconds == 60.0
    assert searches.asked[0] == (2, 8)
    assert plan.pipeline.micro_batches == 4
    assert math.isfinite(plan.peak_bytes)


def test_half_of_a_time_limit_is_for_searches_that_plan_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = Searches({(2, count): of(20) for count in COUNTS}, {(2, 8): 11.5})
    assert chosen(monkeypatch, searches, time_limit=100.0).step_seconds == 11.5
    searched, planned = (searches.limits[which] for which in ("searched", "planned"))
    assert searched
    assert planned
    assert all(limit is not None and 40 < limit <= 50 for limit in searched)
    assert all(limit is not None and 90 < limit <= 100 for limit in planned)


def test_nothing_is_searched_when_half_of_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = Searches({(2, count): of(20) for count in COUNTS}, {(2, 8): 11.5})
    with pytest.raises(DoesNotFitError):
        chosen(monkeypatch, searches, time_limit=1e-6)
    assert searches.limits == {"searched": [], "planned": []}


def test_fewer_micro_batches_are_searched_while_that_is_expected_to_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = {(2, 8): of(20), (2, 16): of(22), (2, 4): of(20)}
    searches = Searches(whole, {(2, 8): 11.5})  # no search for (2, 2): (2, 4) is slower already
    assert chosen(monkeypatch, searches).step_seconds == 11.5


def test_the_step_is_lowered_once_and_what_is_taken_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = Searches({(2, count): of(20) for count in COUNTS}, {(2, 8): 11.5})
    lowering = Lowering(asks=False)
    plan = chosen(monkeypatch, searches, traced=lowering)
    assert lowering.lowered == [1, 2]
    assert plan.origin.source.program == Program("for any")


def test_a_step_that_asks_for_how_many_devices_it_is_is_lowered_for_each_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = Searches({(2, count): of(20) for count in COUNTS}, {(2, 8): 11.5})
    lowering = Lowering(asks=True)
    plan = chosen(monkeypatch, searches, traced=lowering)
    assert lowering.lowered == [1, 2, 1, 2]
    assert searches.asked == [(2, 16), (2, 8)]  # nothing is planned twice
    assert plan.origin.source.program == Program("for 2 stages")


@dataclass
class Bounding(Searches):
    """Searches that end with their first plan where that is too slow."""

    alone: float = math.inf
    """Seconds of the plan without stages."""
    ended: list[tuple[int, int]] = field(default_factory=list)
    """Stages and micro-batches of those that were searched to the end."""

    def whole_step(
        self, source: Any, request: Request, cut_before: int, useful: float
    ) -> WholeStep:
        found = super().whole_step(source, request, cut_before, useful)
        if found.seconds > useful:
            return WholeStep(0.95 * found.seconds, is_held_back=False, is_bound=True)
        self.ended.append(asked_of(request))
        return found

    def plan_source(self, source: Any, request: Request, _traced: Any, effort: Any) -> Any:
        if request.stages is None:
            return Planned(self.alone, summary_of(self.alone), None)
        return super().plan_source(source, request, _traced, effort)


def test_where_memory_is_short_schedules_that_keep_more_are_not_hoped_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = {2: 40, 4: 20, 8: 20, 16: 40}
    whole = {(2, count): of(seconds[count], held_back=True) for count in COUNTS}
    shares = {8: {2: 10.5 / 11.25, 4: 10.6 / 11.25}}
    searches = Bounding(whole, {(2, 8): 10.65}, alone=10.7)
    plan = chosen(monkeypatch, searches, by_chunks=shares, as_kept={2: 10.9, 4: 10.6})
    assert plan.step_seconds == 10.65
    assert plan.pipeline.chunks == 4
    assert searches.asked == [(2, 8)]
    told = {one.chunks: one.outcome for one in plan.summary.tried_pipelines if one.stages > 1}
    assert told[2] == "bounded"


def test_the_first_plan_of_a_search_is_enough_where_others_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = Bounding({(2, count): of(20) for count in COUNTS}, {(2, 16): 10.65}, alone=10.7)
    assert chosen(monkeypatch, searches).step_seconds == 10.65
    assert set(searches.ended) == {(2, 16)}


def test_a_search_that_ended_early_goes_on_before_its_pipeline_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four micro-batches take 21 s on one stage, of which a first plan tells that they are 19.95 or
    more: a step might take less than 12.6 s, and takes 13.1."""
    whole = {(2, count): of(20) for count in COUNTS} | {(2, 4): of(21)}
    searches = Bounding(whole, {}, alone=12.6)
    assert chosen(monkeypatch, searches).step_seconds == 12.6
    assert searches.ended[-1] == (2, 4)
    assert (2, 4) not in searches.asked
