"""The searches of one pipeline, with a search and a clock of the test's own."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

import autoshard
from autoshard.errors import SlowerPlanError
from autoshard.frontend import staged_planning
from autoshard.frontend.request import Request
from autoshard.frontend.staged_planning import StagedSearch
from autoshard.frontend.switches import with_switches

STAGES, LIMIT = 4, 1000


@dataclass(frozen=True)
class Summary:
    memory_limit: float = 0
    peak_bytes_per_device: float = math.inf
    """Bytes of one stage that does all."""
    mem_coeff: float = 0


@dataclass(frozen=True)
class Schedules:
    """Those of one plan, by what their worst stage needs; the first one is the fastest."""

    peaks: tuple[float, ...]
    fastest_seconds: float = 0
    flights: float = math.inf

    def within(self, limit):
        fitting = [peak for peak in self.peaks if peak <= limit]
        return Schedules((fitting[0] if fitting else min(self.peaks),), flights=self.flights)


@dataclass(frozen=True)
class Found:
    pipeline: Schedules
    summary: Summary = Summary()

    @property
    def peak_bytes(self):
        return self.pipeline.peaks[0]

    step_seconds: float = 1


def of(peak):
    """A plan with one schedule."""
    return Found(Schedules((peak,)), Summary(LIMIT))


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(staged_planning, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def searches(clock, found, time_limit=None):
    """Whose results are ``found``, one after the other: plans, or bytes, negative ones of no plan.

    Returns:
        The searches, the request, and a list of the requests that the search gets; each takes two
        seconds.
    """
    asked = []
    results = iter(found)

    def plan_once(_, request):
        asked.append(request)
        clock.now += 2
        found = next(results)
        if isinstance(found, Found):
            return found
        if found < 0:
            raise autoshard.DoesNotFitError("no plan", None, -found, request.memory_limit)
        return of(found)

    request = Request(cluster="cpu:8", memory_limit=LIMIT, time_limit=time_limit)
    source = SimpleNamespace(name="step", cluster=autoshard.Cluster.parse("cpu:8"))
    return StagedSearch.of(source, request, STAGES, plan_once), request, asked


def test_each_search_gets_less_memory_until_the_worst_stage_fits(clock):
    search, request, asked = searches(clock, [2000, 1250, 900])
    found = search.plan(request)
    assert found == of(900)
    first = STAGES * LIMIT
    second = first * 0.95 / 2
    assert [each.memory_limit for each in asked] == pytest.approx(
        [first, second, second * 0.95 / 1.25], abs=1
    )
    assert [each.time_limit for each in asked] == [None] * 3


def test_the_next_search_gets_less_than_what_did_not_fit(clock):
    """A plan that leaves most of its memory would be found once more."""
    summary = Summary(peak_bytes_per_device=1500)
    search, request, asked = searches(clock, [Found(Schedules((1250,)), summary), 900])
    assert search.plan(request) == of(900)
    wanted = [STAGES * LIMIT, 1500 * 0.95 / 1.25]
    assert [each.memory_limit for each in asked] == pytest.approx(wanted, abs=1)


def test_a_slower_schedule_that_fits_comes_before_another_search(clock):
    search, request, asked = searches(clock, [Found(Schedules((1250, 950)))])
    assert search.plan(request) == of(950)
    assert len(asked) == 1


def test_the_next_search_gets_as_much_less_as_a_stage_needs_where_that_is_searched_by(clock):
    """The plan takes 1,500 bytes, and the search knows that stages share all but 500 of them."""
    summary = Summary(peak_bytes_per_device=1500)
    search, request, asked = searches(clock, [Found(Schedules((1250,)), summary), 900])
    found = SimpleNamespace(stages=STAGES, limited_bytes=STAGES * 750)
    search.last_search = SimpleNamespace(found=found)
    assert search.plan(request) == of(900)
    wanted = [STAGES * LIMIT, STAGES * 750 * 0.98 / 1.25]
    assert [each.memory_limit for each in asked] == pytest.approx(wanted, abs=1)


def held_back(peak, used, seconds):
    """A plan that memory made slower."""
    return Found(Schedules((peak,)), Summary(LIMIT, used, mem_coeff=8), step_seconds=seconds)


def test_what_the_worst_stage_leaves_is_given_to_a_plan_that_memory_held_back(clock):
    search, request, asked = searches(
        clock, [2000, held_back(600, 1500, 3), held_back(900, 2000, 2)]
    )
    assert search.plan(request).step_seconds == 2
    wanted = [STAGES * LIMIT, STAGES * LIMIT * 0.95 / 2, 1500 * 0.95 / 0.6]
    assert [each.memory_limit for each in asked] == pytest.approx(wanted, abs=1)


@pytest.mark.parametrize("more", [held_back(1100, 2000, 1), held_back(900, 2000, 4), -2500])
def test_more_memory_never_makes_a_plan_that_is_slower_or_does_not_fit(clock, more):
    search, request, asked = searches(clock, [2000, held_back(600, 1500, 3), more])
    assert search.plan(request).step_seconds == 3
    assert len(asked) == 3


def test_a_plan_that_nothing_held_back_is_searched_once(clock):
    search, request, asked = searches(clock, [Found(Schedules((100,)), Summary(LIMIT, 500))])
    assert search.plan(request).peak_bytes == 100
    assert len(asked) == 1


def test_where_no_plan_needs_as_little_the_leanest_is_tried(clock):
    """A stage may need a smaller share of it."""
    search, request, asked = searches(clock, [2500, -2000, 900])
    assert search.plan(request) == of(900)
    wanted = [STAGES * LIMIT, STAGES * LIMIT * 0.95 / 2.5, 2000 * 1.001]
    assert [each.memory_limit for each in asked] == pytest.approx(wanted, abs=1)


def test_the_leanest_plan_is_not_tried_where_no_stage_can_save_enough(clock):
    """It needs 2,000 of 3,000 bytes; a stage that keeps one micro-batch saves 1,000 of 2,500."""
    first = Found(Schedules((2500,), flights=1), Summary(LIMIT, 3000))
    search, request, asked = searches(clock, [first, -2000])
    with pytest.raises(autoshard.DoesNotFitError, match=r"worst of 4 stages needs 1\.465 KiB"):
        search.plan(request)
    assert len(asked) == 2


def test_the_leanest_plan_is_tried_once(clock):
    search, request, asked = searches(clock, [2500, -2000, -2000, -2000])
    with pytest.raises(autoshard.DoesNotFitError, match=r"worst of 4 stages needs 2\.441 KiB"):
        search.plan(request)
    assert len(asked) == 3


def test_a_plan_that_does_not_fit_and_is_slow_already_gets_no_less_memory(clock):
    search, request, asked = searches(clock, [Found(Schedules((1250,), fastest_seconds=3))])
    search.most_seconds = 3
    with pytest.raises(SlowerPlanError, match="no plan is faster than one that is known"):
        search.plan(request)
    assert len(asked) == 1
    search, request, asked = searches(clock, [Found(Schedules((950,), fastest_seconds=3))])
    search.most_seconds = 3
    assert search.plan(request).peak_bytes == 950, "what fits is compared by who asks"


def test_one_time_limit_bounds_all_searches(clock):
    search, request, asked = searches(clock, [2000] * 9, time_limit=5)
    with pytest.raises(autoshard.DoesNotFitError, match="time_limit is over, too"):
        search.plan(request)
    assert [each.time_limit for each in asked] == [5, 3, 1]


def test_nothing_is_tried_behind_the_time_limit_but_the_first_search(clock):
    search, request, asked = searches(clock, [2000] * 9, time_limit=1)
    with pytest.raises(autoshard.DoesNotFitError) as caught:
        search.plan(request)
    assert len(asked) == 1
    found = with_switches(caught.value, request, search.plan_switched, search.is_over)
    assert found is caught.value
    assert len(asked) == 1


def test_switches_get_one_search_each_where_the_last_one_ended(clock):
    search, request, asked = searches(clock, [2000, -5000, -2850, 1600])
    with pytest.raises(
        autoshard.DoesNotFitError, match=r"worst of 4 stages needs 1\.953 KiB"
    ) as caught:
        search.plan(request)
    tried = len(asked)
    said = str(
        with_switches(
            caught.value,
            Request(memory_limit=LIMIT, host_offload="auto", micro_batches=2),
            search.plan_switched,
        )
    )
    assert len(asked) == tried + 2
    assert {each.memory_limit for each in asked[tried:]} == {asked[tried - 1].memory_limit}
    assert "recompute='auto' needs 1.465 KiB; optimizer_parallel=3 needs 1.562 KiB" in said
