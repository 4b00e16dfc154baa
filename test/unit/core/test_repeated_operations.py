"""What takes many operations and is computed in several kernels, or stored for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler_answers import TPU
from jax.sharding import PartitionSpec as P
from test_program_memory import read

import autoshard

ROWS = (512, 256)
MOST = int(TPU["fusion.repeated_operations"])


def chain(operations: int, is_mask: bool = False, of_argument: bool = False) -> Any:
    """Two products without a batch read what takes so many operations, or a mask of it."""

    def products(x: Any, y: Any, w: Any) -> Any:
        first = made = x if of_argument else jnp.sort(x, 0)
        for number in range(operations - is_mask):
            made = jnp.maximum(made, 0.1 * number) if number % 2 else made + 0.1
        if is_mask:
            mask = made > 0.5
            return jnp.where(mask, first, 0.0) @ w, y.T @ jnp.where(mask, 0.0, first)
        return made @ w, y.T @ made

    return products


@pytest.mark.parametrize(
    ("operations", "is_mask", "stored"),
    [(MOST, False, False), (MOST + 1, False, True), (2 * MOST, True, False)],
)
def test_more_operations_than_are_repeated_are_stored(
    operations: int, is_mask: bool, stored: bool
) -> None:
    found = read(chain(operations, is_mask), ROWS, ROWS, (256, 128))
    last = "compare" if is_mask else "maximum" if operations % 2 == 0 else "add"
    assert found.writes[found.op(last, -1)] == [stored]


@pytest.mark.parametrize(("operations", "stored"), [(MOST, False), (MOST + 1, True)])
def test_what_is_made_of_arguments_is_stored_as_well(operations: int, stored: bool) -> None:
    found = read(chain(operations, of_argument=True), ROWS, ROWS, (256, 128))
    last = "maximum" if operations % 2 == 0 else "add"
    assert found.writes[found.op(last, -1)] == [stored]


def seconds_of_dropouts(readers: int, draws: bool) -> float:
    """Seconds of kernels that drop the same elements of an array each, or none."""

    def dropped(key: Any, *arrays: Any) -> Any:
        keeps = jax.random.bernoulli(key, 0.9, arrays[0].shape) if draws else True
        return [jnp.sort(jnp.where(keeps, array, 0.0), 0) for array in arrays]

    arrays = [jax.ShapeDtypeStruct((4096, 4096), jnp.float32)] * readers
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    plan = autoshard.plan(
        dropped,
        key,
        *arrays,
        cluster="v5p:2x2x1",
        mesh="d=4",
        in_shardings=(P(), *[P(None, "d")] * readers),
        out_shardings=[P(None, "d")] * readers,
    )
    return plan.compute_seconds


def test_random_bits_take_their_time_in_each_kernel() -> None:
    once, three_times = (
        seconds_of_dropouts(readers, True) - seconds_of_dropouts(readers, False)
        for readers in (1, 3)
    )
    assert three_times == pytest.approx(3 * once, rel=0.1)
