"""A state on the host lies as the next one does: there are no collectives on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import autoshard


def descend(state: jax.Array, batch: jax.Array) -> jax.Array:
    """A step of one layer whose weights live on the host."""
    state = autoshard.in_host_memory(state)
    gradient = jax.grad(lambda w: (jnp.tanh(batch @ w) ** 2).sum())(state)
    return state - 0.1 * gradient


@pytest.mark.parametrize("cluster", ["h100:8", "v5e:2x4"])
def test_a_state_on_the_host_is_read_and_written_alike(cluster: str) -> None:
    """The gradient would be cut further than what the matmul reads, and gathered in between."""
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 1024), (65536, 1024))]
    plan = autoshard.plan(descend, *types, cluster=cluster, donate_argnums=0)
    assert plan.summary is not None
    assert plan.summary.host_transfer_bytes > 0
    assert plan.step_seconds < 1
