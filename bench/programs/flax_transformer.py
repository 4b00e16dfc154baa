"""A small transformer as a user of flax writes it, to be annotated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

WIDTH, HEADS, LAYERS, WORDS = 2048, 16, 4, 32_000
BATCH, TOKENS = 32, 1024


class Attention(nn.Module):
    """Causal attention of all heads."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        shape = (batch, tokens, HEADS, width // HEADS)
        queries = nn.Dense(width, use_bias=False, dtype=x.dtype, name="queries")(x)
        queries = queries.reshape(shape)
        keys = nn.Dense(width, use_bias=False, dtype=x.dtype, name="keys")(x)
        keys = keys.reshape(shape)
        values = nn.Dense(width, use_bias=False, dtype=x.dtype, name="values")(x)
        values = values.reshape(shape)
        mixed = jax.nn.dot_product_attention(queries, keys, values, is_causal=True)
        mixed = mixed.reshape(x.shape)
        out = nn.Dense(width, use_bias=False, dtype=x.dtype, name="out")(mixed)
        return out


class Block(nn.Module):
    """Attention and a feed-forward part."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        normed = nn.RMSNorm(dtype=x.dtype)(x)
        attended = Attention()(normed)
        x = x + attended
        normed = nn.RMSNorm(dtype=x.dtype)(x)
        hidden = nn.Dense(4 * x.shape[-1], use_bias=False, dtype=x.dtype, name="up")(normed)
        hidden = jax.nn.gelu(hidden)
        down = nn.Dense(x.shape[-1], use_bias=False, dtype=x.dtype, name="down")(hidden)
        x = x + down
        return x


class Transformer(nn.Module):
    """Logits of the next token."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(WORDS, WIDTH, dtype=jnp.bfloat16)(tokens)
        for _ in range(LAYERS):
            x = Block()(x)
        x = nn.RMSNorm(dtype=x.dtype)(x)
        logits = nn.Dense(WORDS, use_bias=False, dtype=x.dtype, name="logits")(x)
        return logits


def loss(params: Any, tokens: Any, targets: Any) -> Any:
    """Mean cross entropy."""
    logits = Transformer().apply(params, tokens)
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def step(params: Any, state: Any, tokens: Any, targets: Any) -> Any:
    """A step of AdamW."""
    value, gradients = jax.value_and_grad(loss)(params, tokens, targets)
    updates, state = optax.adamw(1e-3).update(gradients, state, params)
    params = optax.apply_updates(params, updates)
    return params, state, value


def arguments() -> tuple[Any, ...]:
    """Types of the parameters, the optimizer's state, the tokens and their targets."""
    tokens = jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32)
    params = jax.eval_shape(Transformer().init, jax.random.key(0), tokens)
    return params, jax.eval_shape(optax.adamw(1e-3).init, params), tokens, tokens
