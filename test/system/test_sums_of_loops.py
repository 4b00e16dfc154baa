"""Sums of all kinds of loops are reduced over devices once, behind them, and have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import autoshard

SLOW_NETWORK = str(Path(__file__).parent / "slow_network.toml")
"""On which reductions are worth memory."""


def nothing() -> jax.Array:
    return jnp.zeros((128, 128))


def product(rows: jax.Array) -> jax.Array:
    return rows.T @ rows


def by_scan(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda total, rows: (total + product(rows), None), nothing(), x)[0]


def by_fori_loop(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, len(x), lambda i, total: total + product(x[i]), nothing())


def by_while_loop(x: jax.Array, total: jax.Array | None = None) -> jax.Array:
    def body(carried: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        i, total = carried
        return i + 1, total + product(x[i])

    first = nothing() if total is None else total
    return jax.lax.while_loop(lambda carried: carried[0] < len(x), body, (0, first))[1]


def by_two_loops(x: jax.Array) -> jax.Array:
    return by_while_loop(x, by_while_loop(x))


def gradients(x: jax.Array) -> jax.Array:
    def loss(w: jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.sum(rows * (rows @ w))

    summed = autoshard.accumulate_gradients(loss, 4, batch_argnums=1, mean=False)
    return summed(nothing(), x.reshape(-1, x.shape[-1]))[1]


@pytest.mark.parametrize("function", [by_scan, by_fori_loop, by_two_loops, gradients])
def test_a_sum_is_reduced_once_and_is_the_same(function: Callable[[Any], jax.Array]) -> None:
    cut = PartitionSpec("dp") if function is gradients else PartitionSpec(None, "dp")
    x = np.random.default_rng(0).integers(-1, 2, (4, 4096, 128)).astype(np.float32)
    if function is gradients:
        x = x.reshape(-1, 128)
    run = autoshard.jit(function, cluster=SLOW_NETWORK, mesh="dp=8", in_shardings=(cut,))
    plan = run.plan(x)
    assert plan.summary is not None
    assert plan.summary.reduced_once is not None
    assert {one.times for one in plan.summary.collectives} == {1}
    np.testing.assert_array_equal(run(x), function(jnp.asarray(x)))
