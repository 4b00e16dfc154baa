"""A linen model whose parameters name their dims, and a training step of it, planned."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

import autoshard

X = jax.ShapeDtypeStruct((256, 1024), jnp.float32)


def dense(width: int, *names: str) -> Any:
    init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)
    return nn.Dense(width, use_bias=False, kernel_init=init)


class Net(nn.Module):
    """Two layers that name their dims."""

    second: tuple[str, str] = ("mlp", "embed")

    @nn.compact
    def __call__(self, x: Any) -> Any:
        hidden = nn.relu(dense(8192, "embed", "mlp")(x))
        return dense(1024, *self.second)(hidden)


def step_of(net: Any) -> Any:
    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(lambda p: (net.apply(p, x) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - g, params, gradients)

    return step


def planned(net: Any, **options: Any) -> tuple[autoshard.Plan, Any]:
    params = jax.eval_shape(net.init, jax.random.key(0), X)
    return autoshard.plan(step_of(net), params, X, cluster="v5e:2x4", **options), params
