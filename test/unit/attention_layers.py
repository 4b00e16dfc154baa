"""Layers of attention and a feed-forward network, one after the other, in 16 bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def step(weights: Any, x: Any) -> Any:
    """The weights less a part of their gradients."""

    def loss(weights: Any) -> Any:
        h = x
        for one in weights:
            q, k, v = (jnp.einsum("bsd,dhk->bshk", h, one[name]) for name in "qkv")
            scores = jnp.einsum("bqhk,bshk->bhqs", q / 8, k)
            shares = jax.nn.softmax(scores)
            h = h + jnp.einsum("bhqs,bshk,hkd->bqd", shares, v, one["o"])
            h = h + jax.nn.gelu(h @ one["up"], approximate=False) @ one["down"]
        return jnp.mean(h.astype(jnp.float32) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def step_of(layers: int) -> tuple[Any, ...]:
    """The step, and its arguments for so many layers."""
    heads = {name: _narrow(256, 4, 64) for name in "qkv"}
    one = heads | {"o": _narrow(4, 64, 256), "up": _narrow(256, 1024), "down": _narrow(1024, 256)}
    return step, [one] * layers, _narrow(16, 256, 256)


def _narrow(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)
