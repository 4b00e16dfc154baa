"""Attention on heads whose two matmuls and transpose are annotated; the rest follows.

The second layer of MindSpore's guide to sharding propagation (``CoreAttention``): the scaling, the
mask, the softmax and the dropout between the matmuls are not configured and get
``(dp, tp, cp, 1)``.

    python examples/core_attention.py
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

import autoshard

DATA, TENSOR, CONTEXT = 2, 2, 2
MESH = f"dp={DATA},tp={TENSOR},cp={CONTEXT}"
DROPOUT = 0.1

_QUERY = (DATA, TENSOR, CONTEXT, 1)
_KEY = (DATA, TENSOR, 1, 1)


bmm_qk = autoshard.shard(partial(jnp.einsum, "bnsd,bntd->bnst"), in_strategy=(_QUERY, _KEY))
bmm_qkv = autoshard.shard(partial(jnp.einsum, "bnst,bntd->bnsd"), in_strategy=(_QUERY, _KEY))
merge_head_transpose = autoshard.shard(
    partial(jnp.transpose, axes=(0, 2, 1, 3)), in_strategy=(_QUERY,)
)


def core_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, seed: jax.Array
) -> jax.Array:
    """Softmax attention with dropout.

    Args:
        query: ``(batch, heads, queries, features)``.
        key: ``(batch, heads, keys, features)``.
        value: As ``key``.
        mask: ``(batch, 1, queries, keys)``, true where a query may look.
        seed: Key of the dropout.

    Returns:
        ``(batch, queries, heads * features)``.
    """
    scores = bmm_qk(query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    kept = jax.random.bernoulli(seed, 1 - DROPOUT, weights.shape)
    mixed = bmm_qkv(jnp.where(kept, weights / (1 - DROPOUT), 0), value)
    batch, heads, queries, features = mixed.shape
    return merge_head_transpose(mixed).reshape(batch, queries, heads * features)


def arguments() -> tuple[jax.Array, ...]:
    """Arguments of ``core_attention``."""
    seed, *keys = jax.random.split(jax.random.key(0), 4)
    query, key, value = (jax.random.normal(k, (4, 4, 16, 8)) for k in keys)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((16, 16), bool)), (4, 1, 16, 16))
    return query, key, value, mask, seed


if __name__ == "__main__":
    from show import show

    show(core_attention, arguments, MESH)
