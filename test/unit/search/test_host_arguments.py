"""How many arguments go to the memory of the host: few plans are made to find out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.errors import DoesNotFitError, PlanError
from autoshard.frontend import planning
from autoshard.passes.recompute import FittedPlans, Recompute
from autoshard.search import host_arguments
from autoshard.search.host_arguments import plan_with_host
from autoshard.search.host_candidates import Candidate

LIMIT = 100.0


@dataclass
class Job:
    """One device, and no recomputation."""

    name: str = "step"
    num_devices: int = 1
    memory_limit: float = LIMIT
    recomputing: None = None
    most_seconds: float = inf
    insists: bool = True
    searches: Any = None


def planned_with(fewest: int, count: int, over: float = 1.0) -> tuple[int, list[int]]:
    """Arguments on the host, and numbers that were tried, where nothing less than ``fewest`` of
    ``count`` arguments of 10 bytes relieves anything."""
    tried: list[int] = []

    def plan(job: Any, on_host: Sequence[int]) -> Any:
        tried.append(len(on_host))
        if len(on_host) < fewest:
            raise DoesNotFitError("too much", None, LIMIT + over, LIMIT)
        summary = SimpleNamespace(
            peak_bytes_per_device=LIMIT, step_seconds=float(len(on_host)), decided=()
        )
        return SimpleNamespace(summary=summary, count=len(on_host), free_seconds=0.0)

    waiting = [Candidate(number, 10.0, 1) for number in range(count)]
    job: Any = Job()
    found: Any = plan_with_host(job, plan, lambda: waiting, "argument {}".format)
    return found.count, tried


def test_nothing_goes_where_the_step_fits() -> None:
    assert planned_with(0, 30) == (0, [0])


def test_as_many_go_as_free_what_is_missing() -> None:
    assert planned_with(4, 30, over=35.0) == (4, [0, 4])


@pytest.mark.parametrize("fewest", range(1, 41))
def test_the_fewest_that_fit_are_found_in_few_plans(fewest: int) -> None:
    count, tried = planned_with(fewest, 40)
    assert count == fewest
    assert len(tried) <= 10


def test_as_many_more_go_as_free_what_is_missing_if_they_do_what_those_before_did() -> None:
    """A byte of an argument frees half a byte: of 30 that are missing 15 are left, for which it
    takes three more arguments and not nine."""
    tried: list[int] = []

    def plan(job: Any, on_host: Sequence[int]) -> Any:
        tried.append(len(on_host))
        missing = 30.0 - 5.0 * len(on_host)
        if missing > 0:
            raise DoesNotFitError("too much", None, LIMIT + missing, LIMIT)
        summary = SimpleNamespace(peak_bytes_per_device=LIMIT, step_seconds=1.0, decided=())
        return SimpleNamespace(summary=summary, free_seconds=0.0)

    waiting = [Candidate(number, 10.0, 1) for number in range(40)]
    job: Any = Job()
    plan_with_host(job, plan, lambda: waiting, "argument {}".format)
    assert tried == [0, 3, 6, 5]


@pytest.mark.parametrize(("with_four", "numbers"), [(2.0, [0, 1, 4]), (3.0, [0, 1, 4, 3])])
def test_fewer_are_tried_as_long_as_that_may_save_something(
    with_four: float, numbers: list[int]
) -> None:
    """The search finds a step of 2 s, and what does not fit adds 2 s, with fewer arguments no less.

    With four it finds one of 2 or 3 s: only then may fewer save a second, which three do.
    """
    tried: list[int] = []

    def plan(job: Any, on_host: Sequence[int]) -> Any:
        tried.append(len(on_host))
        free_seconds = with_four if len(on_host) >= 4 else 2.0
        if len(on_host) < 2:
            error = DoesNotFitError("too much", None, LIMIT + 1, LIMIT)
            error.free_seconds = free_seconds
            raise error
        summary = SimpleNamespace(
            peak_bytes_per_device=LIMIT, step_seconds=free_seconds + 2.0, decided=()
        )
        return SimpleNamespace(summary=summary, free_seconds=free_seconds)

    waiting = [Candidate(number, 10.0, 1) for number in range(8)]
    job: Any = Job()
    plan_with_host(job, plan, lambda: waiting, "argument {}".format)
    assert tried == numbers


def test_what_never_fits_is_told_with_all_arguments_on_the_host() -> None:
    with pytest.raises(DoesNotFitError, match=r"\(40 arguments: argument 0, .*\)"):
        planned_with(41, 40)


WITHOUT: dict[str, Any] = {
    "bytes_without_host": LIMIT + 20.0,
    "bytes_without": None,
    "rewritten_with": None,
}


@dataclass
class SendingJob(Job):
    """Values may go to the host as well."""

    recomputing: Any = None


def test_arguments_alone_are_tried_beyond_those_that_do_not_suffice() -> None:
    """With values on the host one argument suffices; without 20 bytes are missing then. Plans of
    slower steps are of no use."""
    tried: list[tuple[bool, int, float]] = []

    def plan(job: Any, on_host: Sequence[int]) -> Any:
        sends, count = job.recomputing.host_offload, len(on_host)
        tried.append((sends, count, job.most_seconds))
        missing = 10.0 * ((1 if sends else 3) - count)
        if missing > 0:
            raise DoesNotFitError("too much", None, LIMIT + missing, LIMIT)
        decided = (SimpleNamespace(decision="host"),) if sends else ()
        summary = SimpleNamespace(
            peak_bytes_per_device=LIMIT, step_seconds=5.0 - sends, decided=decided
        )
        return SimpleNamespace(summary=summary, free_seconds=0.0, **WITHOUT)

    waiting = [Candidate(number, 10.0, 1) for number in range(8)]
    job: Any = SendingJob(recomputing=Recompute(host_offload=True))
    found: Any = plan_with_host(job, plan, lambda: waiting, "argument {}".format)
    assert tried == [(True, 0, inf), (True, 1, inf), (False, 4, 4.0), (False, 3, 4.0)]
    assert found.summary.step_seconds == 4.0


def test_a_plan_is_kept_where_arguments_alone_cannot_be_on_the_host() -> None:
    """They would need a collective there."""

    def plan(job: Any, on_host: Sequence[int]) -> Any:
        if on_host:
            raise PlanError("a collective on the host")
        summary = SimpleNamespace(
            peak_bytes_per_device=LIMIT,
            step_seconds=1.0,
            decided=(SimpleNamespace(decision="host"),),
        )
        return SimpleNamespace(summary=summary, free_seconds=0.0, **WITHOUT)

    job: Any = SendingJob(recomputing=Recompute(host_offload=True))
    waiting = [Candidate(number, 10.0, 1) for number in range(8)]
    found: Any = plan_with_host(job, plan, lambda: waiting, "argument {}".format)
    assert found.summary.step_seconds == 1.0


@pytest.mark.parametrize("fewest", [1, 7, 39])
def test_a_plan_that_does_not_fit_says_how_many_have_to_go(fewest: int) -> None:
    """The largest arguments may free nothing where memory is fullest, which the plan knows."""
    tried: list[int] = []

    def plan(job: Any, on_host: Sequence[int]) -> Any:
        tried.append(len(on_host))
        if len(on_host) < fewest:
            error = DoesNotFitError("too much", None, LIMIT + 1, LIMIT)
            there = set(on_host)
            error.bytes_without = lambda more: LIMIT + fewest - len(there | set(more))
            raise error
        summary = SimpleNamespace(
            peak_bytes_per_device=LIMIT, step_seconds=float(len(on_host)), decided=()
        )
        return SimpleNamespace(summary=summary, count=len(on_host), free_seconds=0.0)

    waiting = [Candidate(number, 10.0, 1) for number in range(40)]
    job: Any = Job()
    found: Any = plan_with_host(job, plan, lambda: waiting, "argument {}".format)
    assert found.count == fewest
    assert tried == [0, fewest]


@pytest.mark.parametrize(("cluster", "limit"), [("v5p:1x1x1", 16), ("v5e:2x2", 6)])
def test_what_a_plan_needs_with_arguments_on_the_host_is_known_before_it_is_rewritten(
    cluster: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Momenta of eight layers: each is there while its own weight is updated, the largest four are
    fetched before."""

    def step(weights: Any, momenta: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            h = x
            for weight in weights:
                h = jnp.sin(h @ weight)
            return jnp.sum(h * h)

        gradients = jax.grad(loss)(weights)
        momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
        return [w - m for w, m in zip(weights, momenta, strict=True)], momenta

    size = 1024 * 1024 * 4
    arrays = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 8
    x = jax.ShapeDtypeStruct((8192, 1024), jnp.float32)
    monkeypatch.setattr(planning, "with_switches", lambda error, *_: error)
    # What is decided stays.
    monkeypatch.setattr(FittedPlans, "_may_fit_with", lambda *_: False)
    with pytest.raises(DoesNotFitError) as error:
        autoshard.plan(
            step,
            *(arrays, arrays, x),
            cluster=cluster,
            donate_argnums=(0, 1),
            recompute="auto",
            memory_limit=limit * size,
        )
    bytes_without, rewritten_with = error.value.bytes_without, error.value.rewritten_with
    assert bytes_without is not None
    assert rewritten_with is not None
    assert bytes_without(()) == error.value.peak_bytes
    momenta = range(8, 16)
    least_without = error.value.least_without
    assert least_without is not None
    assert least_without(()) == pytest.approx(error.value.peak_bytes)
    told = [least_without(momenta[:count]) for count in range(9)]
    assert told[0] > told[8]
    # Where all that waits is gone, a momentum that goes frees no less than in the plan.
    assert told[8] <= 1.001 * bytes_without(momenta)
    for count in (3, 5):
        rewritten = rewritten_with(momenta[:count], inf)
        needed = rewritten.summary.peak_bytes_per_device
        assert needed <= bytes_without(momenta[:count]) <= 1.02 * needed


@dataclass
class RewritingJob(Job):
    """What is rewritten is as useful as it is."""

    most_free_seconds: float = inf

    def useful(self, planned: Any) -> Any:
        return planned

    def reduced_once(self, planned: Any) -> Any:
        return planned


@pytest.mark.parametrize(
    ("free_seconds", "sent", "is_searched"),
    [(3.5, 20.0, False), (3.0, 20.0, False), (3.4, 20.0, True), (3.5, 21.0, True)],
)
def test_a_search_follows_what_was_rewritten_only_where_it_may_be_faster(
    free_seconds: float, sent: float, is_searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 4 seconds, of which half a second is computed again and half a second waits for the
    host, where one argument of 10 bytes is; it goes there and back."""
    searched: list[int] = []
    summary = SimpleNamespace(
        peak_bytes_per_device=LIMIT,
        step_seconds=4.0,
        recompute_seconds=0.5,
        host_exposed_seconds=0.5,
        host_transfer_bytes=sent,
        decided=(),
    )
    found = SimpleNamespace(summary=summary, free_seconds=free_seconds)

    def plan(job: Any, on_host: Sequence[int]) -> Any:
        if on_host:
            searched.append(len(on_host))
            raise DoesNotFitError("no faster", None, LIMIT + 1, LIMIT)
        error = DoesNotFitError("too much", None, LIMIT + 1, LIMIT)
        error.free_seconds = free_seconds
        error.bytes_without = lambda more: LIMIT + 1 - len(more)
        rewritten: Any = found
        error.rewritten_with = lambda arguments, limit: rewritten
        raise error

    monkeypatch.setattr(host_arguments, "planned_of", lambda made: made)
    waiting = [Candidate(number, 10.0, 2) for number in range(4)]
    job: Any = RewritingJob()
    assert plan_with_host(job, plan, lambda: waiting, "argument {}".format) is found
    assert searched == [1] * is_searched
