"""A linear layer whose matmul is annotated; the strategy of its bias follows.

The first layer of MindSpore's guide to sharding propagation (``RowParallelLinear``): with
propagation only the matmul is configured, and the addition of the bias gets
``((dp * cp, tp), (tp,))`` by itself.

    python examples/row_parallel_linear.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import autoshard

DATA, CONTEXT, TENSOR = 2, 2, 2
MESH = f"dp={DATA},cp={CONTEXT},tp={TENSOR}"

matmul = autoshard.shard(jnp.matmul, in_strategy=((DATA * CONTEXT, 1), (1, TENSOR)))


def row_parallel_linear(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """``x @ weight + bias``.

    Args:
        x: ``(rows, features in)``.
        weight: ``(features in, features out)``.
        bias: ``(features out,)``.
    """
    return matmul(x, weight) + bias


def arguments() -> tuple[jax.Array, ...]:
    """Arguments of ``row_parallel_linear``."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = ((64, 32), (32, 16), (16,))
    return tuple(jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))


if __name__ == "__main__":
    from show import show

    show(row_parallel_linear, arguments, MESH)
