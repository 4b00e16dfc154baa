"""A network whose first and last weights are one array, exact on whole numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def tied_loss(params: Any, batch: jax.Array) -> jax.Array:
    """The sum of what comes out behind layers between tied ends.

    Args:
        params: ``ends``, a matrix of [width, hidden], and ``layers``, matrices of [hidden, hidden].
        batch: [batch, width].
    """
    hidden = batch @ params["ends"]
    for weights in params["layers"]:
        hidden = hidden + jnp.maximum(hidden @ weights, 0)
    return jnp.maximum(hidden @ params["ends"].T, 0).sum()
