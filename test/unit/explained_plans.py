"""A small training step of equal layers, planned once for the tests of what explains plans."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

import autoshard

LAYERS, WIDTH = 6, 512


def loss(layers, x):
    hidden = x
    for layer in layers:
        hidden = jax.nn.gelu(hidden @ layer["up"]) @ layer["down"]
    return jnp.mean(hidden**2)


def step(layers, x):
    value, gradients = jax.value_and_grad(loss)(layers, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, gradients), value


@functools.cache
def layers_plan(cluster="v5e:4x4", **options) -> autoshard.Plan:
    """Plan of ``step`` over six equal layers."""
    array = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    layer = {"up": array((WIDTH, 4 * WIDTH)), "down": array((4 * WIDTH, WIDTH))}
    return autoshard.plan(step, [layer] * LAYERS, array((1024, WIDTH)), cluster=cluster, **options)
