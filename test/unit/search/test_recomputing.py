"""Searches whose plans fit once values are computed again or sent to the host: what is compared,
and what is said of plans that do not fit."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.errors import DoesNotFitError
from autoshard.frontend import planning
from autoshard.passes import fitting, recursive_programming
from autoshard.passes.fitting import Fitting, Outcome, Trial
from autoshard.passes.memory_limit import MEMORY_MARGIN
from autoshard.planned.given_plan import Costed, cost_of_module
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.choice import Choice
from autoshard.rewrites.recomputation.question import Rules
from autoshard.search import automatic, host_arguments


def type_of(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layers_step(weights: Any, x: Any) -> Any:
    """Within little memory the search gathers weights again in the backward half."""

    def loss(weights: Any) -> Any:
        h = x
        for up, down in weights:
            h = jnp.tanh(h @ up) @ down
        return jnp.sum(h * h)

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def planned_layers(layers: int, batch: int, **options: Any) -> autoshard.Plan:
    weights = [(type_of(512, 2048), type_of(2048, 512))] * layers
    return autoshard.plan(layers_step, weights, type_of(batch, 512), donate_argnums=0, **options)


def deep_step(weights: Any, x: Any) -> Any:
    """Many activations wait for the gradient of few weights."""

    def loss(weights: Any) -> Any:
        h = x
        for _ in range(8):
            h = jnp.tanh(h @ weights["w"]) + weights["b"]
        return jnp.sum(h * h)

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def planned_deep(**options: Any) -> autoshard.Plan:
    weights, x = {"w": type_of(64, 64), "b": type_of(64)}, type_of(1 << 14, 64)
    return autoshard.plan(deep_step, weights, x, cluster="cpu:2", **options)


def test_seconds_of_computing_again_are_by_one_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[float, float]] = []
    fitted_plans = automatic.FittedPlans

    def compared(module: Any, cluster: Any, options: Any, costed: Costed) -> Any:
        written = cost_of_module(module, cluster).plan
        steps.append((costed.plan.step_seconds, written.step_seconds))
        return fitted_plans(module, cluster, options, costed)

    monkeypatch.setattr(automatic, "FittedPlans", compared)
    plan = planned_layers(1, 32768, cluster="h100:8", memory_limit="103MiB", recompute="auto")
    ((searched, written),) = steps
    assert searched != pytest.approx(written, rel=1e-4)
    assert plan.summary is not None
    assert plan.summary.recompute_seconds == pytest.approx(plan.step_seconds - written, rel=1e-6)


def test_the_host_for_values_is_compared_with_arguments_alone_in_every_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[bool, int, bool]] = []
    with_more = host_arguments._with_more

    def counted(job: automatic.Job, *ways: Any) -> Any:
        assert job.recomputing is not None
        *_, most, failed = ways
        tried.append((job.recomputing.host_offload, most, failed.missing_bytes > 0))
        return with_more(job, *ways)

    monkeypatch.setattr(host_arguments, "_with_more", counted)
    options = {"memory_limit": "14MiB", "recompute": "auto", "host_offload": "auto"}
    sent = planned_deep(mode="data_parallel", batch_argnums=1, **options)
    assert sent.peak_bytes <= 14 << 20
    assert tried == [(False, 0, True)], "that none suffice alone is known"


def test_what_does_not_fit_is_told_of_the_plan_that_needs_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "with_switches", lambda error, *_: error)
    options = {"cluster": "v5e:2x4", "memory_limit": "14MiB"}
    with pytest.raises(DoesNotFitError) as searched:
        planned_layers(2, 4096, **options)
    with pytest.raises(DoesNotFitError) as recomputed:
        planned_layers(2, 4096, recompute="auto", **options)
    assert recomputed.value.peak_bytes <= searched.value.peak_bytes
    assert recomputed.value.memory_limit == 14 << 20


def test_nothing_is_decided_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Block, float, Rules, frozenset[Any]]] = []
    choose = fitting.choose

    def counted(block: Block, limit: float, rules: Rules, **others: Any) -> Choice:
        dearer = others.get("dearer") or {}
        asked.append((block, limit, rules, frozenset(dearer.items())))
        return choose(block, limit, rules, **others)

    monkeypatch.setattr(fitting, "choose", counted)
    planned_deep(memory_limit="14MiB", recompute="auto", host_offload="auto")
    assert len(asked) > 3
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    ("compiler", "may_send"),
    # A compiler that fetches at once is sent no values of straight-line code.
    [("", False), ("xla-tpu-0.0.42:without=schedule.fetches_at_once", True)],
)
def test_it_is_decided_without_the_host_first(
    monkeypatch: pytest.MonkeyPatch, compiler: str, may_send: bool
) -> None:
    asked: list[Rules] = []
    choose = fitting.choose

    def counted(block: Block, limit: float, rules: Rules, **others: Any) -> Choice:
        asked.append(rules)
        return choose(block, limit, rules, **others)

    monkeypatch.setattr(fitting, "choose", counted)
    # Small programs are improved without the host besides.
    monkeypatch.setattr(fitting, "_MOST_OPS_IMPROVED", 0)
    monkeypatch.setattr(fitting, "_MOST_OPS_COSTED", 0)
    weights, x = {"w": type_of(64, 64), "b": type_of(64)}, type_of(1 << 14, 64)
    step, cluster = (deep_step, weights, x), Cluster.of("v5e:2x2", compiler)
    limit = int(0.7 * autoshard.plan(*step, cluster=cluster).peak_bytes)
    options: dict[str, Any] = {"recompute": "auto", "host_offload": "auto"}
    plan = autoshard.plan(*step, cluster=cluster, memory_limit=limit, **options)
    assert plan.summary is not None
    assert "recompute" in {row.decision for row in plan.summary.decided}
    assert "host" not in {row.decision for row in plan.summary.decided}
    assert not asked[0].host
    assert {rules.host for rules in asked} == {False, may_send}


def test_seconds_of_a_summary_are_among_those_of_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    summarize = recursive_programming.summarize

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return summarize(*arguments)

    monkeypatch.setattr(recursive_programming, "summarize", slow)
    assert planned_deep().planning_seconds["write"] > 0.3


@pytest.mark.parametrize(
    ("excess", "is_first", "is_left_out"),
    [(0.0, False, True), (0.0, True, False), (1.0, True, True)],
)
def test_what_fits_is_written_once_whatever_its_estimate_says(
    excess: float, is_first: bool, is_left_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SimpleNamespace(excess=excess, seconds=2.0)
    choice: Any = SimpleNamespace(
        effect=SimpleNamespace(answer=slow), question=SimpleNamespace(pairs=[()])
    )
    found = object.__new__(Fitting)
    monkeypatch.setattr(Fitting, "best", SimpleNamespace(), raising=False)
    monkeypatch.setattr(Fitting, "_keeps_to_aim", lambda self: True)
    monkeypatch.setattr(Fitting, "_most_seconds", lambda self, others: 1.0)
    assert found._cannot_win(choice, is_first=is_first) is is_left_out


@pytest.mark.parametrize(
    ("cluster", "limit"), [("h100:8", "103MiB"), ("h100:8", "97MiB"), ("v5e:2x4", "110MiB")]
)
def test_with_the_host_no_step_is_slower_than_without(cluster: str, limit: str) -> None:
    options: dict[str, Any] = {"cluster": cluster, "memory_limit": limit, "recompute": "auto"}
    without = planned_layers(1, 32768, host_offload="none", **options).step_seconds
    both = planned_layers(1, 32768, host_offload="auto", **options).step_seconds
    assert without is not None
    assert both is not None
    assert both <= without * (1 + 1e-6)


@pytest.mark.parametrize(
    ("needed", "asked", "best"),
    [
        ({100: 104, 70: 85}, [100, 70], 85),  # 70 bytes are out of reach, but 100 are not
        ({100: 104, 70: 103, 49: 102, 34: 101}, [100, 70, 49, 34], None),
        ({100: 104, 70: 105}, [100, 70], None),  # asking for less does not help
        ({100: 150}, [100], None),  # far off
    ],
)
def test_what_nearly_fits_is_decided_for_much_less(
    needed: dict[int, int], asked: list[int], best: int | None
) -> None:
    written: list[int] = []

    def rewritten(choice: Any, wanted: float, rules: Rules) -> tuple[Trial, bool]:
        written.append(round(wanted))
        costed: Any = SimpleNamespace(peak_bytes=needed[round(wanted)], step_seconds=1.0)
        return Trial(module=costed, costed=costed), False

    def chosen(wanted: float, rules: Rules, **_: Any) -> Any:
        answer = SimpleNamespace(excess=0.0, seconds=0.0)
        return SimpleNamespace(written=frozenset([wanted]), effect=SimpleNamespace(answer=answer))

    first: Any = SimpleNamespace(peak_bytes=200.0, step_seconds=1.0)
    copies: Any = SimpleNamespace(
        without=200.0,
        has_loops=False,
        choice=chosen,
        rewritten=rewritten,
        first=Trial(module=first, costed=first),
    )
    found = Fitting(copies, 100.0, 100.0)
    found.write(found.choice(100.0, Rules()), 100.0, Rules())
    found.reach(Rules())
    assert written == asked
    assert (None if found.best is None else found.best.peak_bytes) == best


def test_a_larger_limit_tries_all_that_a_smaller_one_does_for_less() -> None:
    written: dict[float, list[int]] = {}

    def tried(limit: float) -> list[int]:
        """Bytes that are asked for where values of loops are decided, and little fits."""

        def rewritten(choice: Any, wanted: float, rules: Rules) -> tuple[Trial, bool]:
            written.setdefault(limit, []).append(round(wanted))
            costed: Any = SimpleNamespace(peak_bytes=1.05 * limit, step_seconds=1.0)
            return Trial(module=costed, costed=costed), False

        copies.rewritten = rewritten
        found = Fitting(copies, limit, limit)
        found.write(found.choice(limit, Rules()), limit, Rules())
        found.reach(Rules())
        return written[limit][1:]

    def chosen(wanted: float, rules: Rules, **_: Any) -> Any:
        answer = SimpleNamespace(excess=1.0, seconds=0.0)
        return SimpleNamespace(written=frozenset([wanted]), effect=SimpleNamespace(answer=answer))

    first: Any = SimpleNamespace(peak_bytes=200.0, step_seconds=1.0)
    copies: Any = SimpleNamespace(
        without=200.0, has_loops=True, choice=chosen, first=Trial(module=first, costed=first)
    )
    more, less = tried(180.0), tried(100.0)
    assert more == [*(one for one in more if one >= 100), *less]
    assert len(more) > len(less) > 3


@pytest.mark.parametrize(("excess", "pairs", "times"), [(0.0, 0, 1), (1.0, 0, 2), (0.0, 1, 2)])
def test_what_suffices_in_main_is_written_once_for_all_rules_of_loops(
    excess: float, pairs: int, times: int
) -> None:
    written: list[Rules] = []

    def rewritten(choice: Any, wanted: float, rules: Rules) -> tuple[Trial, bool]:
        written.append(rules)
        costed: Any = SimpleNamespace(peak_bytes=90.0, step_seconds=1.0)
        return Trial(module=costed, costed=costed), False

    first: Any = SimpleNamespace(peak_bytes=200.0, step_seconds=1.0)
    copies: Any = SimpleNamespace(
        has_loops=True, rewritten=rewritten, first=Trial(module=first, costed=first)
    )
    choice: Any = SimpleNamespace(
        written=frozenset([1]),
        effect=SimpleNamespace(answer=SimpleNamespace(excess=excess, seconds=0.0)),
        question=SimpleNamespace(pairs=[()] * pairs),
    )
    found = Fitting(copies, 100.0, 100.0)
    for rules in (Rules(), Rules(host=True)):
        assert found.write(choice, 100.0, rules).peak_bytes == 90.0
    assert len(written) == times


@pytest.mark.parametrize(("least", "tried"), [(40.0, 2), (60.0, 1)])
def test_what_needs_far_more_than_estimated_is_not_tried_in_other_ways(
    least: float, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Rules] = []

    def chosen(_: Fitting, wanted: float, rules: Rules, most_seconds: float = 0.0) -> Any:
        asked.append(rules)
        answer = SimpleNamespace(excess=5.0, seconds=0.0)
        effect = SimpleNamespace(answer=answer, live=[])
        return SimpleNamespace(effect=effect, peak_bytes=90.0, least_bytes=least)

    def written(self: Fitting, *_: Any) -> tuple[Outcome, bool]:
        self.least = SimpleNamespace(peak_bytes=190.0, step_seconds=1.0)  # type: ignore[assignment]
        return Outcome(190.0, 1.0), True

    monkeypatch.setattr(Fitting, "choice", chosen)
    monkeypatch.setattr(Fitting, "_write", written)
    first: Any = SimpleNamespace(peak_bytes=200.0, step_seconds=1.0)
    copies: Any = SimpleNamespace(
        beside=0.0,
        has_loops=False,
        first=Trial(module=first, costed=first),
        least_bytes=lambda limit, rules: least,
    )
    found = Fitting(copies, 100.0, 100.0)
    found.try_with(Rules(host=False))
    found.try_with(Rules(host=True), others=True)
    # Ten bytes less than are allowed were expected, a hundred more than that are needed.
    assert len(set(asked)) == tried


def test_no_fewer_arguments_are_tried_where_what_is_told_of_them_was_not_true() -> None:
    def told(needed: float) -> Any:
        return host_arguments._Tried(None, 1.0, 1.0, bytes_without=lambda more: needed)

    assert told(99.0).knows([1], 100.0)
    assert not told(101.0).knows([1], 100.0)
    assert not host_arguments._Tried(None, 1.0, 1.0).knows([1], 100.0)


@pytest.mark.parametrize(
    ("least", "limit", "count"),
    [
        ({1: 120.0, 2: 100.0, 3: 90.0}, 100.0, 2),
        ({1: 120.0, 2: 110.0, 3: 90.0}, 100.0, 3),
        ({1: 120.0, 2: 110.0, 3: 105.0}, 100.0, 3),  # all of them, and more is to be decided
        (None, 100.0, 3),
    ],
)
def test_as_few_arguments_go_as_other_decisions_may_do_with(
    least: dict[int, float] | None, limit: float, count: int
) -> None:
    told = None if least is None else lambda arguments: least[len(arguments)]
    failed = host_arguments._Tried(None, 1.0, 1.0, least_without=told)
    assert failed.fewest_at_least([7, 8, 9], limit) == count


def test_the_margin_of_a_limit_is_left_free_where_a_plan_fits_without_it() -> None:
    free = planned_deep()
    within = planned_deep(memory_limit=str(free.peak_bytes), recompute="auto")
    assert within.peak_bytes <= (1 - MEMORY_MARGIN) * free.peak_bytes
    above = planned_deep(memory_limit=str(int(free.peak_bytes / 0.91)), recompute="auto")
    assert above.summary is not None
    assert not above.summary.recomputed
