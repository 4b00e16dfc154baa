"""Small flax programs that questions are asked of."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import autoshard

CLUSTER = "v5e:4x2"


class Mlp(nn.Module):
    """Two layers around a wide one."""

    width: int = 4096

    @nn.compact
    def __call__(self, x: Any) -> Any:
        hidden = jax.nn.relu(nn.Dense(self.width)(x))
        return x + nn.Dense(x.shape[-1])(hidden)


class Attention(nn.Module):
    """One block of a transformer."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x + nn.MultiHeadDotProductAttention(num_heads=8)(nn.LayerNorm()(x))
        return Mlp(width=2048)(nn.LayerNorm()(x))


SHAPES = {"mlp": (Mlp(), (512, 1024)), "attention": (Attention(), (16, 128, 512))}


def train_step(name: str, params: Any, state: Any, x: Any) -> Any:
    """A step of AdamW on the mean square of what a model makes."""
    model, _ = SHAPES[name]

    def loss(params: Any) -> Any:
        return jnp.mean(model.apply(params, x) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optax.adamw(1e-3).update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


@functools.cache
def arguments(name: str) -> tuple[Any, ...]:
    """Types of the parameters, the optimizer's state and the batch."""
    model, shape = SHAPES[name]
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return params, jax.eval_shape(optax.adamw(1e-3).init, params), x


def planned(name: str, **options: Any) -> autoshard.Plan:
    """The plan of a training step of a model."""

    def step(params: Any, state: Any, x: Any) -> Any:
        return train_step(name, params, state, x)

    options = {"cluster": CLUSTER, "donate_argnums": (0, 1), **options}
    return autoshard.plan(step, *arguments(name), **options)


once = functools.cache(planned)
"""The same, made once for each question."""
