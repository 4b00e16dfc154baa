"""A train step of two layers, which tests of annotations plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PARAMS = {
    "up": jax.ShapeDtypeStruct((2048, 8192), jnp.bfloat16),
    "down": jax.ShapeDtypeStruct((8192, 2048), jnp.bfloat16),
}


def rows(count: int) -> jax.ShapeDtypeStruct:
    """A batch of so many rows."""
    return jax.ShapeDtypeStruct((count, 2048), jnp.bfloat16)


def step_with(hidden_of: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Gradient descent on two layers with a function between them."""

    def loss(params: Any, x: Any) -> Any:
        hidden = hidden_of(x @ params["up"])
        return jnp.mean((hidden @ params["down"]) ** 2)

    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    return step
