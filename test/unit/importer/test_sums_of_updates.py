"""What is added to zeros of which a part is written is written over, as in compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autoshard
from autoshard.cluster import Cluster

STEPS, ROWS, WIDTH = 64, 256, 512
X = jax.ShapeDtypeStruct((ROWS, STEPS, WIDTH), jnp.float32)
W = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
UPDATE = jax.ShapeDtypeStruct((ROWS, 1, WIDTH), jnp.float32)
STEP = jax.ShapeDtypeStruct((), jnp.int32)
ONE_DEVICE = "h100:1"


def seconds(function: Callable[..., Any], *shapes: Any) -> float:
    return autoshard.plan(function, *shapes, cluster=ONE_DEVICE).compute_seconds


def written(update: Any, step: Any) -> Any:
    return lax.dynamic_update_slice_in_dim(jnp.zeros(X.shape, X.dtype), update, step, 1)


def recurrent(x: Any, w: Any) -> Any:
    """A loop that reads its inputs by index, so that its gradient adds to them by index."""

    def body(step: Any, state: Any) -> Any:
        return jnp.tanh(state @ w + lax.dynamic_index_in_dim(x, step, 1, keepdims=False))

    return jnp.sum(lax.fori_loop(0, x.shape[1], body, jnp.zeros(x[:, 0].shape, x.dtype)))


def scanned(x: Any, w: Any) -> Any:
    """The same, of inputs that the loop is given one by one."""

    def body(state: Any, row: Any) -> Any:
        return jnp.tanh(state @ w + row), None

    return jnp.sum(lax.scan(body, jnp.zeros(x[:, 0].shape, x.dtype), jnp.swapaxes(x, 0, 1))[0])


def added(x: Any, update: Any, step: Any) -> Any:
    return jnp.sum(jnp.sin(x) + written(update, step))


def written_over(x: Any, update: Any, step: Any) -> Any:
    wave = jnp.sin(x)
    row = lax.dynamic_slice_in_dim(wave, step, 1, 1)
    return jnp.sum(lax.dynamic_update_slice_in_dim(wave, row + update, step, 1))


def test_the_gradient_of_rows_by_index_takes_no_longer_than_of_rows_that_are_scanned() -> None:
    by_index = seconds(jax.grad(recurrent, argnums=(0, 1)), X, W)
    assert by_index < 1.3 * seconds(jax.grad(scanned, argnums=(0, 1)), X, W)


def test_a_part_is_written_over_what_it_is_added_to() -> None:
    shapes = X, UPDATE, STEP
    assert seconds(added, *shapes) == pytest.approx(seconds(written_over, *shapes), rel=0.2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, update, step: x + lax.dynamic_update_slice_in_dim(x * 2, update, step, 1),
        lambda x, update, step: x * written(update, step),
        lambda x, update, step: ((part := written(update, step)), x + part),
    ],
    ids=["not zeros", "a product", "read twice"],
)
def test_all_else_is_added_as_a_whole(function: Callable[..., Any]) -> None:
    moved = 4.0 * ROWS * STEPS * WIDTH * 2
    chip = Cluster.parse(ONE_DEVICE).chip
    assert seconds(function, X, UPDATE, STEP) > moved / chip.memory_bandwidth.value


@pytest.mark.parametrize("mode", ["auto", "data_parallel"])
def test_numbers_are_those_of_one_device(mode: Any) -> None:
    small = jax.random.normal(jax.random.key(0), (8, 16, 32)), jnp.eye(32)
    step = jax.grad(recurrent, argnums=(0, 1))
    found = autoshard.jit(step, mesh="x=8", mode=mode, batch_argnums=0)(*small)
    for one, other in zip(found, step(*small), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
