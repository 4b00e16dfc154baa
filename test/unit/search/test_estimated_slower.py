"""Plans that estimates find slower than another one of the program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.cluster import Cluster
from autoshard.errors import SlowerPlanError
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recompute import FittedPlans, Recompute
from autoshard.search.plan_pass import PlanProgram

CLUSTER = "v5e:1x2"
ARGUMENTS = (
    jax.ShapeDtypeStruct((8, 64, 64), jnp.float32),
    jax.ShapeDtypeStruct((1 << 14, 64), jnp.float32),
)


def fitted(loss: Any) -> FittedPlans:
    def step(weights: Any, x: Any) -> Any:
        return weights - jax.grad(loss)(weights, x)

    lowered = jax.jit(step, donate_argnums=0).lower(*ARGUMENTS).as_text()
    module = parse_bytes(lowered.encode(), new_context(), "step")
    _, planned = PlanProgram(cluster=CLUSTER).planned(module)
    return FittedPlans(planned.module, Cluster.of(CLUSTER), Recompute(choose="auto"))


def counting_loop(weights: Any, x: Any) -> Any:
    """A loop that nothing is stacked for, and layers one after the other."""
    noise = jax.lax.fori_loop(0, 4, lambda _, x: x * 3 % 5, jax.lax.stop_gradient(x))
    h = x + noise
    for weight in weights:
        h = jnp.tanh(h @ weight)
    return jnp.sum(h**2)


def scanned_layers(weights: Any, x: Any) -> Any:
    h, _ = jax.lax.scan(lambda h, weight: (jnp.tanh(h @ weight), None), x, weights)
    return jnp.sum(h**2)


def test_a_plan_that_is_estimated_slower_is_not_written_beside_a_loop_that_stacks_nothing() -> None:
    plans = fitted(counting_loop)
    limit = 0.8 * plans.peak_bytes
    made = plans.within(limit)
    assert plans.copies.has_loops
    assert made.estimated_seconds > plans.step_seconds
    with pytest.raises(SlowerPlanError, match="by an estimate"):
        plans.within(limit, most_estimated=made.estimated_seconds)


def test_what_loops_stack_is_written_whatever_estimates_say() -> None:
    plans = fitted(scanned_layers)
    made = plans.within(0.8 * plans.peak_bytes, most_estimated=0.5 * plans.step_seconds)
    assert made.summary.recomputed
