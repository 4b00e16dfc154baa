"""Try an installed autoshard: plan and run a step on virtual CPU devices, and plan one for TPUs."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")

import jax
import jax.numpy as jnp
import numpy as np

import autoshard


def step(w, x):
    """One step of a linear model."""
    return w - x.T @ (x @ w) / 1024


def main() -> None:
    """Print where autoshard is, and what it planned."""
    w, x = jnp.ones((64, 128)), jnp.arange(256.0 * 64).reshape(256, 64) % 3
    found = autoshard.jit(step, cluster="cpu:4")(w, x)
    np.testing.assert_allclose(found, jax.jit(step)(w, x), rtol=1e-4)
    print(autoshard.__file__, autoshard.plan(step, w, x, cluster="v5e:2x4"), sep="\n")


if __name__ == "__main__":
    main()
