"""A fused attention op with its own rule; the scaling of its mask follows.

The third layer of MindSpore's guide to sharding propagation (``FlashAttention``): the fused op is
configured, and ``alibi_rescale_mul`` gets ``((dp, mp, cp, 1), (1,))`` by itself.

The op is a ``jax.lax.composite``: to a compiler that knows its name one op, to all others the
decomposition below. autoshard learns from ``register_rule`` which of its dims belong together.

    python examples/flash_attention.py
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

import autoshard

DATA, MODEL, CONTEXT = 2, 2, 2
MESH = f"dp={DATA},mp={MODEL},cp={CONTEXT}"
BLOCK = 8
"""Keys that are looked at together."""

# i batch, j heads, k queries: independent. l features, m keys: whole on every device.
autoshard.register_rule(
    "example.flash_attention",
    "([i, j, k, l], [i, j, m, l], [i, j, m, n], [i, j, k, m])->([i, j, k, n])"
    " need_replication={l, m}",
)


@partial(jax.lax.composite, name="example.flash_attention")
def flash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array
) -> jax.Array:
    """``softmax(query @ key.T + bias) @ value``, one block of keys at a time.

    Args:
        query: ``(batch, heads, queries, features)``.
        key: ``(batch, heads, keys, features)``.
        value: As ``key``.
        bias: ``(batch, heads, queries, keys)``.
    """

    def split(x: jax.Array, dim: int) -> jax.Array:
        shape = (*x.shape[:dim], -1, BLOCK, *x.shape[dim + 1 :])
        return jnp.moveaxis(x.reshape(shape), dim, 0)

    def look_at(carry: tuple[jax.Array, ...], block: tuple[jax.Array, ...]) -> tuple[object, None]:
        total, mixed, highest = carry
        key, value, bias = block
        scores = jnp.einsum("bnsd,bntd->bnst", query, key) + bias
        new_highest = jnp.maximum(highest, scores.max(axis=-1, keepdims=True))
        shrink = jnp.exp(highest - new_highest)
        weights = jnp.exp(scores - new_highest)
        mixed = mixed * shrink + jnp.einsum("bnst,bntd->bnsd", weights, value)
        return (total * shrink + weights.sum(axis=-1, keepdims=True), mixed, new_highest), None

    start = (
        jnp.zeros((*query.shape[:3], 1)),
        jnp.zeros((*query.shape[:3], value.shape[3])),
        jnp.full((*query.shape[:3], 1), -jnp.inf),
    )
    blocks = (split(key, 2), split(value, 2), split(bias, 3))
    total, mixed, _ = jax.lax.scan(look_at, start, blocks)[0]
    return mixed / total


_QUERY = (DATA, MODEL, CONTEXT, 1)
_KEY = (DATA, MODEL, 1, 1)
fused = autoshard.shard(flash_attention, in_strategy=(_QUERY, _KEY, _KEY, _QUERY))


def alibi_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, scale: jax.Array
) -> jax.Array:
    """Attention with a position bias.

    Args:
        query: ``(batch, heads, queries, features)``.
        key: ``(batch, heads, keys, features)``.
        value: As ``key``.
        mask: The bias before scaling, ``(batch, heads, queries, keys)``.
        scale: ``(1,)``.
    """
    rescaled = mask * scale
    return fused(query, key, value, rescaled)


def arguments() -> tuple[jax.Array, ...]:
    """Arguments of ``alibi_attention``."""
    keys = jax.random.split(jax.random.key(0), 3)
    query, key, value = (jax.random.normal(k, (4, 4, 16, 8)) for k in keys)
    distance = jnp.arange(16)[None, :] - jnp.arange(16)[:, None]
    mask = jnp.where(distance > 0, -1e9, distance).astype(jnp.float32)
    return query, key, value, jnp.broadcast_to(mask, (4, 4, 16, 16)), jnp.array([0.5])


if __name__ == "__main__":
    from show import show

    show(alibi_attention, arguments, MESH)
