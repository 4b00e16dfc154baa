"""Frontiers of plans that may let values go."""

from __future__ import annotations

import functools
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import attention_layers
import jax
import jax.numpy as jnp
import optax
import pytest
from plan_cases import whole_products

import autoshard
from autoshard.errors import DoesNotFitError
from autoshard.explain.frontier import MOST_POINTS, Frontier
from autoshard.planned.summary import PlanSummary
from autoshard.search import inputs
from autoshard.search.fitted_frontier import FrontierPlan, limit_between, unbeaten


def type_of(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


ADAM = optax.adam(1e-3)


def step(weights: Any, state: Any, x: Any) -> Any:
    """Many activations wait for the gradient of few weights."""

    def loss(weights: Any) -> Any:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w) + 1.0
        return jnp.sum(h * h)

    updates, state = ADAM.update(jax.grad(loss)(weights), state, weights)
    return optax.apply_updates(weights, updates), state


WEIGHTS = [type_of(256, 256)] * 10
ARGUMENTS = (WEIGHTS, jax.eval_shape(ADAM.init, WEIGHTS), type_of(8192, 256))


@functools.cache
def planned(**options: Any) -> autoshard.Plan:
    options = {
        "cluster": whole_products("v5e:2x2"),
        "recompute": "auto",
        "donate_argnums": (0, 1),
        **options,
    }
    return autoshard.plan(step, *ARGUMENTS, **options)


@functools.cache
def found(**options: Any) -> Frontier:
    return planned(**options).frontier()


def test_each_is_slower_and_needs_less_than_the_one_before() -> None:
    points = found().points
    assert 4 < len(points) <= MOST_POINTS
    assert points[-1].recomputed_bytes
    for one, two in pairwise(points):
        assert one.step_seconds < two.step_seconds
        assert one.peak_bytes > two.peak_bytes


def test_none_is_slower_than_a_plan_within_its_bytes() -> None:
    for point in found().points:
        plan = planned(memory_limit=point.peak_bytes)
        assert point.step_seconds <= plan.step_seconds


@pytest.mark.parametrize("cluster", ["v5e:1x1", "h100:1"])
def test_none_is_slower_where_copies_share_kernels_with_their_readers(cluster: str) -> None:
    layers = attention_layers.step_of(4)
    points = autoshard.plan(*layers, cluster=cluster, recompute="auto").frontier().points
    assert len(points) > 4
    for point in points[::2]:
        limit = point.peak_bytes
        plan = autoshard.plan(*layers, cluster=cluster, recompute="auto", memory_limit=limit)
        assert point.step_seconds <= plan.step_seconds


def test_values_are_let_go_only_where_that_is_allowed() -> None:
    assert not any(one.recomputed_bytes for one in found(recompute="marks").points)
    assert not any(one.host_transfer_bytes for one in found().points)
    assert found(recompute="marks").points[-1].peak_bytes > found().points[-1].peak_bytes


def test_every_face_says_what_plans_let_go() -> None:
    made = planned().explain(frontier=True)
    assert all("recomputed" in face for face in (str(made), made.to_markdown(), made.to_html()))
    assert made.to_html().count('class="point letting-go"') > 1
    kept = planned(recompute="marks").explain(frontier=True)
    assert "recomputed" not in str(kept)
    assert "letting-go" not in re.sub("<style.*?</style>", "", kept.to_html(), flags=re.DOTALL)


def test_states_stay_spread() -> None:
    plan = planned(mesh="data=4", optimizer_parallel=3)
    first, *others = plan.frontier().points
    assert (first.step_seconds, first.peak_bytes) == (plan.step_seconds, plan.peak_bytes)
    assert others[-1].peak_bytes < 0.8 * plan.peak_bytes


def test_with_the_host_states_go_where_nothing_fits_otherwise() -> None:
    weights = [type_of(1024, 1024)] * 3
    arguments = weights, jax.eval_shape(ADAM.init, weights), type_of(1024, 1024)
    options: Any = {
        "cluster": whole_products("v5e:1x1"),
        "recompute": "auto",
        "donate_argnums": (0, 1),
    }
    without = autoshard.plan(step, *arguments, **options).frontier()
    found = autoshard.plan(step, *arguments, **options, host_offload="auto").frontier()
    least = found.take(len(found.points))
    assert least.peak_bytes < 0.9 * without.points[-1].peak_bytes
    assert any(value.is_on_host for value in least.arguments)
    assert not any(value.is_on_host for value in found.take(1).arguments)


def test_a_plan_within_a_limit_is_as_fast_as_any_row_and_as_planning_for_it() -> None:
    points = found().points
    limit = (points[-3].peak_bytes + points[-2].peak_bytes) / 2
    within = found().within(limit)
    assert within.peak_bytes <= limit
    assert within.step_seconds <= points[-2].step_seconds
    assert within.step_seconds <= 1.001 * planned(memory_limit=limit).step_seconds
    assert found().within(f"{points[0].peak_bytes + 1} B").step_seconds == points[0].step_seconds


def test_less_than_the_least_is_refused() -> None:
    least = found().points[-1].peak_bytes
    with pytest.raises(DoesNotFitError, match="of least memory on this frontier needs") as refused:
        found().within(least / 4)
    assert refused.value.memory_limit == least / 4


def test_a_plan_that_keeps_all_is_found_within_a_limit_too() -> None:
    points = found(recompute="marks").points
    limit = (points[0].peak_bytes + points[-1].peak_bytes) / 2
    within = found(recompute="marks").within(limit)
    assert points[0].step_seconds <= within.step_seconds <= points[-1].step_seconds
    assert within.peak_bytes <= limit


def test_decisions_of_a_loaded_plan_stay(tmp_path: Path) -> None:
    taken = found().take(len(found().points))
    taken.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json").frontier()
    assert loaded.search is None
    assert min(one.peak_bytes for one in loaded.points) <= 1.001 * taken.peak_bytes


def mlp_step(weights: Any, x: Any, y: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2)

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def test_arrays_of_a_batch_are_cut_as_the_plan_cuts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # The search does so by itself.
    monkeypatch.setattr(inputs, "_pays", lambda *plans: False)
    arguments = [type_of(512, 512), type_of(512, 8)], type_of(1024, 512), type_of(1024, 8)
    options: Any = {"cluster": "v5p:2x2x2", "donate_argnums": 0, "recompute": "auto"}
    free = autoshard.plan(mlp_step, *arguments, **options)
    named = autoshard.plan(mlp_step, *arguments, batch_argnums=(1, 2), **options)
    for plan in (free, named):
        first = plan.frontier().points[0]
        assert first.step_seconds == pytest.approx(plan.step_seconds)
        assert first.mesh == str(plan.mesh)
    assert free.step_seconds < named.step_seconds


def plan_of(seconds: float, size: float) -> FrontierPlan:
    summary = PlanSummary(seconds, seconds, 0.0, size, "cpu:1", "data=1", 1)
    return FrontierPlan(b"", summary)


def test_what_another_beats_in_both_is_left_out() -> None:
    plans = [plan_of(3, 10), plan_of(1, 40), plan_of(2, 40), plan_of(2, 20), plan_of(4, 9.999)]
    assert [(one.step_seconds, one.peak_bytes) for one in unbeaten(plans)] == [
        (1, 40),
        (2, 20),
        (3, 10),
    ]


def test_a_gap_below_a_limit_that_was_tried_is_looked_at_above_it() -> None:
    plans = [plan_of(1, 100), plan_of(2, 64)]
    assert limit_between(plans, []) == pytest.approx(80)
    assert limit_between(plans, [81.0]) == pytest.approx(90)
    assert limit_between(plans, [81.0, 96.0]) is None
