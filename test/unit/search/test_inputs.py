"""Inputs that are cut for what loads them: what a plan then says of itself, and what ends it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.errors import AutoshardWarning
from autoshard.passes.recursive_programming import PlannedProgram, replanned
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


def found_first(make: Callable[[], autoshard.Plan]) -> tuple[PlannedProgram, autoshard.Plan]:
    """What the search finds by itself, and the plan that is made of it."""
    found: list[PlannedProgram] = []
    with pytest.MonkeyPatch.context() as patch:

        def kept(planned: PlannedProgram) -> PlannedProgram:
            found.append(planned)
            return inputs.inputs_alike(planned)

        patch.setattr(automatic, "inputs_alike", kept)
        plan = make()
    return found[0], plan


@functools.cache
def plans() -> tuple[PlannedProgram, autoshard.Plan]:
    """A step whose input is read whole as fast as in parts."""
    return found_first(planned)


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


def mlp_step(weights: Any, x: Any, y: Any) -> Any:
    def error(weights: Any) -> Any:
        h = x
        for weight in weights[:-1]:
            h = jax.nn.relu(h @ weight)
        return jnp.mean((h @ weights[-1] - y) ** 2)

    value, gradients = jax.value_and_grad(error)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def type_of(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


MLP = [type_of(3072, 4096), type_of(4096, 4096), type_of(4096, 4096), type_of(4096, 16)]


@functools.cache
def searched(cluster: str) -> tuple[PlannedProgram, autoshard.Plan]:
    """A step whose batch is 96 MiB: what the search finds, and the plan."""
    batch = type_of(8192, 3072), type_of(8192, 16)
    return found_first(
        lambda: autoshard.plan(mlp_step, MLP, *batch, cluster=cluster, donate_argnums=0)
    )


def sent_seconds(planned: PlannedProgram) -> float:
    """What sends a device its part of the 96 MiB over its link to the host."""
    value = planned.imported.functions[-1].arguments[-2]
    cuts = planned.plan.shardings[planned.plan.value_sharding[value]]
    sizes = [axis.size for axis in planned.mesh.without_unit_axes().axes]
    pieces = math.prod(sizes[axis] for dim in cuts for axis in dim)
    return 8192 * 3072 * 4 / pieces / planned.cluster.chip.host_bandwidth.value


def test_arrays_of_a_batch_are_cut_alike_where_no_loader_hides_what_is_sent() -> None:
    free, plan = searched("v5p:2x2x2")
    shardings = [value.sharding for value in plan.arguments[-2:]]
    assert [sharding.num_shards(0) for sharding in shardings] == [8, 8]
    assert plan.batch is not None
    assert plan.batch.data_parallel == 8
    step = free.summary.step_seconds
    assert 1.01 * step < plan.step_seconds < sent_seconds(free)
    assert plan.summary is not None
    assert plan.summary.inputs_seconds == pytest.approx(plan.step_seconds - step)


def test_arrays_of_a_batch_stay_as_they_are_where_a_loader_hides_what_is_sent() -> None:
    free, plan = searched("h100:8")
    assert sent_seconds(free) < free.summary.step_seconds
    assert plan.step_seconds == free.summary.step_seconds
    assert plan.summary is not None
    assert plan.summary.inputs_seconds == 0


def frozen_step(weights: Any, frozen: Any, x: Any, y: Any) -> Any:
    """The frozen weights are the largest arrays that nothing replaces."""

    def error(weights: Any) -> Any:
        h = jax.nn.relu(x @ frozen["up"])
        h = jax.nn.relu(h @ frozen["down"] + h @ weights["a"] @ weights["b"])
        return jnp.mean((h @ frozen["out"] - y) ** 2)

    gradients = jax.grad(error)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def test_weights_that_nothing_replaces_are_not_sent_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def seen(planned: PlannedProgram, found: list[int]) -> bool:
        asked.append(is_batch(planned, found))
        return asked[-1]

    is_batch = inputs._is_batch
    monkeypatch.setattr(inputs, "_is_batch", seen)
    frozen = {"up": type_of(512, 4096), "down": type_of(4096, 4096), "out": type_of(4096, 64)}
    weights = {"a": type_of(4096, 8), "b": type_of(8, 4096)}
    autoshard.plan(
        frozen_step,
        weights,
        frozen,
        type_of(64, 512),
        type_of(64, 64),
        cluster="h100:8",
        donate_argnums=0,
    )
    assert asked == [False]


def kmeans(centres: Any, points: Any) -> Any:
    """Ten rounds of k-means."""

    def step(_: Any, centres: Any) -> Any:
        distances = ((points[:, None] - centres[None]) ** 2).sum(-1)
        nearest = jnp.argmin(distances, 1)
        sums = jax.ops.segment_sum(points, nearest, 8)
        counts = jax.ops.segment_sum(jnp.ones(len(points)), nearest, 8)
        return sums / jnp.maximum(counts, 1)[:, None]

    return jax.lax.fori_loop(0, 10, step, centres)


@pytest.mark.parametrize("donated", [None, 0])
def test_axes_that_cut_the_work_on_an_input_that_is_whole_say_so(donated: int | None) -> None:
    arrays = type_of(8, 64), type_of(1_000_000, 64)
    plan = autoshard.plan(kmeans, *arrays, cluster="h100:8", donate_argnums=donated)
    assert plan.summary is not None
    assert not any("nothing" in axis.role for axis in plan.summary.axes)
    assert plan.arguments[1].sharding.num_shards(0) > 1


def test_points_that_a_scatter_adds_up_are_cut() -> None:
    """It touches no more of its result than what each device adds."""
    arrays = type_of(8, 64), type_of(1_000_000, 64)
    plan = autoshard.plan(kmeans, *arrays, cluster="h100:8", mesh="data=8")
    assert str(plan.arguments[1].sharding) == "[{data}, {}]"


def test_an_axis_that_cannot_keep_a_pin_alone_leaves_it_to_another() -> None:
    found: list[PlannedProgram] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic, "inputs_alike", lambda planned: found.append(planned) or planned)
        autoshard.plan(
            jnp.tanh,
            type_of(1024, 1024),
            cluster="cpu:8",
            mesh="a=2,b=4",
            in_shardings=jax.P("a", "b"),
        )
    imported = found[0].imported
    free = dataclasses.replace(found[0], imported=imported.changed(imported.mesh, ()))
    # a is in dim 0 already, and only b can make eight parts of it
    pin = inputs._pin(free, imported.functions[-1].arguments[0], 8)
    again = replanned(free, [pin])
    assert inputs._cuts(again, pin.value) == [8, 1]
    assert again.summary.step_seconds == pytest.approx(found[0].summary.step_seconds)
    assert "levels" not in dict(again.plan.phases)  # it was not searched anew


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
