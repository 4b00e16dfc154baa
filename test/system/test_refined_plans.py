"""Plans that the compiler chose compute what one device does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stacked_layers import arguments, network, scanned

import autoshard


def step(weights, x):
    """Rows of a batch through two matmuls, and their gradients."""

    def loss(weights):
        return jnp.mean((jnp.tanh(x @ weights["up"]) @ weights["down"]) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def test_the_best_of_two_compiled_plans_runs_and_is_behind_none() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((256, 64), np.float32)
    weights = {
        "up": random.standard_normal((64, 128), np.float32),
        "down": random.standard_normal((128, 64), np.float32),
    }
    refined = autoshard.jit(step, cluster="cpu:8", refine=2)
    plan = refined.plan(weights, x)
    assert plan.refinement is not None
    first, *_ = plan.refinement.attempts
    seconds = [one.scheduled_seconds for one in plan.refinement.attempts]
    assert all(one.state == "compiled" and one.fits for one in plan.refinement.attempts)
    assert plan.refinement.taken.scheduled_seconds == min(each for each in seconds if each)
    assert plan.refinement.taken.mesh == str(plan.mesh)
    assert first.modelled_seconds == autoshard.plan(step, weights, x, cluster="cpu:8").step_seconds
    made = refined(weights, x)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), made, step(weights, x)
    )


@pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")
def test_a_pipeline_in_lockstep_is_the_best_of_two_compiled_plans() -> None:
    given = arguments()
    asked = autoshard.Pipeline(2, 4, execution="lockstep")
    options = {"cluster": "cpu:8", "pipeline": asked, "batch_argnums": 1}
    refined = autoshard.jit(network(scanned), refine=2, **options)
    plan = refined.plan(*given)
    own = autoshard.plan(network(scanned), *given, **options)
    assert plan.refinement is not None
    attempts = plan.refinement.attempts
    assert all(one.state == "compiled" and one.fits for one in attempts)
    taken = plan.refinement.taken
    assert taken.scheduled_seconds == min(one.scheduled_seconds or 0.0 for one in attempts)
    assert (taken.mesh, taken.modelled_seconds) == (str(plan.mesh), plan.step_seconds)
    assert (attempts[0].mesh, attempts[0].modelled_seconds) == (str(own.mesh), own.step_seconds)
    assert plan.pipeline is not None
    assert plan.pipeline.is_one_program
    made = refined(*given)
    jax.tree.map(np.testing.assert_array_equal, made, jax.jit(network(scanned))(*given))
