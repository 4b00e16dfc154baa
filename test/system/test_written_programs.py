"""Steps of bench/programs/written.py, at sizes of a CPU, compute planned what they do unsharded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from bench.programs.written import WRITTEN


def filled(shape: Any, rng: np.random.Generator) -> Any:
    """An array of small positive numbers; a key."""
    if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    if jnp.issubdtype(shape.dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 3, shape.shape), shape.dtype)
    return jnp.asarray(rng.uniform(0.01, 0.1, shape.shape), shape.dtype)


@pytest.mark.parametrize("name", ["recommender", "graph attention", "fourier operator"])
def test_a_planned_step_computes_what_it_does_unsharded(name: str) -> None:
    step, shapes, _ = WRITTEN[name](tiny=True)
    rng = np.random.default_rng(0)
    arguments = jax.tree.map(lambda shape: filled(shape, rng), shapes)
    wanted = jax.jit(step)(*arguments)
    found = autoshard.jit(step, cluster="cpu:8")(*arguments)
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        scale = float(jnp.max(jnp.abs(one))) if one.size else 1.0
        np.testing.assert_allclose(other, one, atol=1e-5 * scale, rtol=1e-5)
