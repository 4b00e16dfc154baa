"""``autoshard.Planner``: the same program again, with other pins."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def loss(weights: Any, x: Any, y: Any) -> Any:
    for up, down in weights:
        x = x + jnp.tanh(x @ up) @ down
    return jnp.mean((x - y) ** 2)


def train_step(weights: Any, x: Any, y: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def planner() -> autoshard.Planner:
    weights = [(struct(512, 2048), struct(2048, 512))] * 3
    x = struct(4096, 512)
    return autoshard.Planner(train_step, weights, x, x, cluster="v5e:2x4", donate_argnums=0)


def test_pins_are_kept_and_the_rest_is_planned_again() -> None:
    plans = planner()
    axis = plans.plan.mesh.axis_names[0]
    pins = [(P(None, axis), None), (None, None), (None, None)]
    changed = plans.replan(in_shardings=(pins, None, None))
    assert changed.mesh == plans.plan.mesh
    assert str(changed.arguments[0].sharding) == f"[{{}}, {{{axis}}}]"
    # The weight goes back in the next step: its new value is cut alike.
    assert changed.results[1].sharding == changed.arguments[0].sharding
    assert changed.step_seconds >= plans.plan.lower_bound_seconds


def test_pins_of_one_call_say_nothing_to_the_next() -> None:
    plans = planner()
    axis = plans.plan.mesh.axis_names[0]
    plans.replan(in_shardings=([(P(None, axis), None), (None, None), (None, None)], None, None))
    again = plans.replan(in_shardings=(None, P(axis), None))
    first = autoshard.plan(
        train_step,
        [(struct(512, 2048), struct(2048, 512))] * 3,
        struct(4096, 512),
        struct(4096, 512),
        cluster="v5e:2x4",
        donate_argnums=0,
    )
    assert again.arguments[6].sharding.tile[0] > 1
    assert again.step_seconds == pytest.approx(first.step_seconds, rel=0.05)


def test_results_can_be_pinned() -> None:
    plans = planner()
    axis = plans.plan.mesh.axis_names[0]
    weights = [(None, P(axis)), (None, None), (None, None)]
    changed = plans.replan(out_shardings=(None, weights))
    assert changed.results[2].sharding.tile[0] == plans.plan.mesh.axis_size(axis)


def test_a_pin_that_cannot_be_is_named() -> None:
    plans = planner()
    with pytest.raises(autoshard.AutoshardError, match="nowhere"):
        plans.replan(in_shardings=(None, P("nowhere"), None))
    with pytest.raises(autoshard.PlanError, match="give in_shardings or out_shardings"):
        plans.replan()


def test_what_stands_on_the_module_is_the_last_plan() -> None:
    """Only what changes is written: going there and back must leave nothing behind."""
    plans = planner()
    axis = plans.plan.mesh.axis_names[0]
    columns = [(P(None, axis), None), (None, None), (None, None)]
    rows = [(P(axis), None), (None, None), (None, None)]
    texts = [
        _without_summary(plans.replan(in_shardings=(pins, None, None)))
        for pins in (columns, rows, columns)
    ]
    assert texts[0] == texts[2]
    assert texts[0] != texts[1]


def _without_summary(plan: autoshard.Plan) -> str:
    """The planned module without its summary, which has planning times."""
    return re.sub(r'autoshard\.plan = "(?:[^"\\]|\\.)*"', "", plan.to_mlir(debug_info=False))
