"""A step of training over stacked layers whose numbers stay whole, for tests of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BATCH, WIDTH, LAYERS = 16, 8, 4
Step = Callable[[Any, Any], Any]


def whole_numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Small ones as floats: their sums are exact in any order."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def stacked(layers: int = LAYERS, seed: int = 1) -> np.ndarray:
    """Weights with one number a row, so that what goes through many layers stays exact."""
    random = np.random.default_rng(seed)
    ones = np.broadcast_to(np.eye(WIDTH), (layers, WIDTH, WIDTH))
    weights = random.permuted(ones, axis=-1) * random.integers(-1, 2, (layers, 1, WIDTH))
    return weights.astype(np.float32)


def layer(hidden: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
    return hidden + jnp.maximum(hidden @ weights, 0), None


def turned(params: Any, gradients: Any) -> Any:
    """A change of weights that leaves their sizes."""
    return jax.tree.map(lambda p, g: p * (1 - 2 * (g > 0)), params, gradients)


def network(forward: Callable[[Any, jax.Array], jax.Array]) -> Step:
    """Tied ends around what has layers, a state a weight, and a norm of all gradients."""

    def step(carried: Any, batch: jax.Array) -> Any:
        params, state = carried

        def loss(params: Any) -> jax.Array:
            hidden = forward(params, batch @ params["ends"])
            return (hidden @ params["ends"].T * batch).sum()

        value, gradients = jax.value_and_grad(loss)(params)
        norm = sum(jnp.sum(jnp.sign(g) ** 2) for g in jax.tree.leaves(gradients))
        state = jax.tree.map(lambda s, g: s + jnp.sign(g) * (norm > 0), state, gradients)
        return (turned(params, state), state), value

    return step


def scanned(params: Any, hidden: jax.Array) -> jax.Array:
    return jax.lax.scan(layer, hidden, params["layers"])[0]


def recomputed(params: Any, hidden: jax.Array) -> jax.Array:
    return jax.lax.scan(jax.checkpoint(layer), hidden, params["layers"])[0]


def arguments() -> tuple[Any, np.ndarray]:
    params = {"ends": stacked(1)[0], "layers": stacked()}
    return (params, jax.tree.map(np.zeros_like, params)), whole_numbers(BATCH, WIDTH)
