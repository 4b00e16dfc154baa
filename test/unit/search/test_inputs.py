"""Inputs that are cut for what loads them: what a plan then says of itself, and what ends it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.errors import AutoshardWarning
from autoshard.passes.recursive_programming import PlannedProgram
from autoshard.progress import running, task
from autoshard.search import automatic, inputs

WIDTH = 8192


def loss(weights: Any, x: Any) -> Any:
    for weight in weights:
        x = jax.nn.relu(x @ weight)
    return jnp.mean(x**2)


def step(weights: Any, x: Any) -> Any:
    gradients = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - g, weights, gradients)


def planned(**options: Any) -> autoshard.Plan:
    weight, x = (jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32) for rows in (WIDTH, 8))
    return autoshard.plan(step, [weight] * 4, x, cluster="h100:1x8", donate_argnums=0, **options)


@functools.cache
def plans() -> tuple[PlannedProgram, autoshard.Plan]:
    """What the search finds by itself, and the plan whose input is cut."""
    found: list[PlannedProgram] = []
    with pytest.MonkeyPatch.context() as patch:

        def kept(planned: PlannedProgram) -> PlannedProgram:
            found.append(planned)
            return inputs.inputs_alike(planned)

        patch.setattr(automatic, "inputs_alike", kept)
        plan = planned()
    return found[0], plan


def test_the_bound_is_one_of_all_plans_where_the_input_is_cut_for_its_loader() -> None:
    free, plan = plans()
    assert free.summary.step_seconds < plan.step_seconds <= 1.01 * free.summary.step_seconds
    assert plan.arguments[-1].sharding.num_shards(0) > 1
    assert plan.lower_bound_seconds <= free.summary.step_seconds
    assert plan.summary is not None
    assert plan.summary.bound_covers == free.summary.bound_covers


def test_what_the_input_costs_is_no_plan_that_the_search_missed() -> None:
    free, plan = plans()
    assert plan.summary is not None
    given = plan.step_seconds - free.summary.step_seconds
    assert plan.summary.inputs_seconds == pytest.approx(given)
    found = plan.why_not("x=P()")
    assert (found.verdict, found.extra_seconds) == ("inputs", pytest.approx(-given, rel=1e-3))
    assert "cut its inputs alike" in found.reason
    ends = {link.end: link.why for link in plan.why("x").links}
    assert "cut its inputs alike" in ends["inputs"]
    assert not any("did not find" in why for why in ends.values())
    summary = dataclasses.replace(plan.summary, inputs_seconds=0.9 * given)
    less = dataclasses.replace(plan, summary=summary)
    assert less.why_not("x=P()").verdict == "missed"


def test_what_if_cuts_inputs_as_a_plan_does() -> None:
    _, plan = plans()
    for point in plan.what_if(memory_limit=["70GiB", "60GiB"]).points:  # read, and read before
        assert point.step_seconds == pytest.approx(plan.step_seconds, rel=1e-9)


def pressed(*arguments: Any) -> PlannedProgram:
    raise KeyboardInterrupt


def test_ctrl_c_while_inputs_are_tried_keeps_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    free, _ = plans()
    monkeypatch.setattr(inputs, "replanned", pressed)
    with pytest.raises(KeyboardInterrupt):
        inputs.inputs_alike(free)
    with task("planning", keeps_best=True) as planning:
        with pytest.warns(AutoshardWarning, match="interrupted: inputs are cut as the search"):
            found = inputs.inputs_alike(free)
        assert found.plan is free.plan
        assert planning.is_interrupted
        assert inputs.inputs_alike(free) is free  # nothing is tried any more


def test_inputs_are_tried_in_what_the_search_leaves_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free, _ = plans()
    limits: list[float] = []

    def recorded(planned: Any, pins: Any, time_limit: float) -> PlannedProgram:
        limits.append(time_limit)
        return dataclasses.replace(
            free, summary=dataclasses.replace(free.summary, step_seconds=1.0)
        )

    monkeypatch.setattr(inputs, "replanned", recorded)
    took = sum(seconds for _, seconds in free.plan.phases)

    def tried(time_limit: float) -> int:
        options = dataclasses.replace(free.options, time_limit=time_limit)
        limits.clear()
        inputs.inputs_alike(dataclasses.replace(free, options=options))
        return len(limits)

    assert tried(took + 100) > 1
    assert sorted(limits, reverse=True) == limits
    assert limits[0] <= 100
    assert tried(0.9 * took) == 0


def test_no_inputs_are_tried_after_an_interrupted_search() -> None:
    free, _ = plans()
    with task("planning", keeps_best=True):
        running().is_interrupted = True
        assert inputs.inputs_alike(free) is free
