"""Arrays that are deleted, or donated and passed twice, are errors that name the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import autoshard
from autoshard.errors import DonationError

SHAPE = (16, 8)
CUT, WHOLE = PartitionSpec("d"), PartitionSpec()


def _update(state: Any, x: Any) -> Any:
    return state + x, x.sum()


def _jitted(spec: PartitionSpec = CUT, donated: tuple[int, ...] = (0,)) -> Any:
    options: dict[str, Any] = {"mesh": "d=8", "mode": "semi_auto", "in_shardings": (spec, spec)}
    return autoshard.jit(_update, **options, donate_argnums=donated)


def _placed(spec: PartitionSpec = CUT) -> jax.Array:
    """As the plans here want it."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(jnp.ones(SHAPE), jax.sharding.NamedSharding(mesh, spec))


def test_a_donated_array_is_not_taken_again() -> None:
    run, state = _jitted(), _placed()
    run(state, _placed())
    assert state.is_deleted()
    with pytest.raises(
        DonationError, match=r"^\S+test_donation.py:\d+: _update: state is an"
    ) as it:
        run(state, _placed())
    assert "float32[16,8]" in it.value.message
    with pytest.raises(DonationError, match="_update: x is an array that has been deleted"):
        run(_placed(), state)


def test_a_deleted_array_is_not_taken_where_nothing_is_donated() -> None:
    array = _placed()
    array.delete()
    with pytest.raises(RuntimeError, match="_update: x is an array that has been deleted"):
        _jitted(donated=())(_placed(), array)


@pytest.mark.parametrize(
    ("donated", "how"), [((0,), "state is donated"), ((1,), "x is donated"), ((0, 1), "both")]
)
def test_one_array_is_not_donated_and_read(donated: tuple[int, ...], how: str) -> None:
    array = _placed()
    with pytest.raises(DonationError, match=f"are one array, float32.16,8., and {how}"):
        _jitted(donated=donated)(array, array)
    assert not array.is_deleted()


def test_one_array_may_be_passed_twice_where_it_is_not_donated() -> None:
    array = _placed()
    found, total = _jitted(donated=())(array, array)
    np.testing.assert_array_equal(found, 2 * np.ones(SHAPE))
    assert total == array.size


@pytest.mark.parametrize("spec", [CUT, WHOLE], ids=["cut", "whole"])
@pytest.mark.parametrize(
    "pair",
    [
        lambda spec, one: (one, one),
        lambda spec, one: (jax.device_put(one, _placed(spec).sharding), one),
        lambda spec, one: (one, jax.device_put(one, _placed(spec).sharding)),
        lambda spec, one: tuple(jax.device_put(one, _placed(spec).sharding) for _ in range(2)),
    ],
    ids=["none placed", "state placed", "x placed", "both placed"],
)
def test_arrays_that_are_moved_become_arrays_of_their_own(
    spec: PartitionSpec, pair: Callable[..., tuple[Any, Any]]
) -> None:
    """jax.device_put may give one device's memory to several arrays."""
    found, total = _jitted(spec)(*pair(spec, jnp.ones(SHAPE)))
    np.testing.assert_array_equal(found, 2 * np.ones(SHAPE))
    assert total == found.size


def test_donated_keys_and_numbers_are_taken() -> None:
    def draw(key: Any, scale: float, again: float) -> Any:
        next_key, now = jax.random.split(key)
        return next_key, scale * again * jax.random.normal(now, SHAPE)

    run = autoshard.jit(draw, cluster="cpu:8", donate_argnums=0)
    key = jax.random.key(3)
    expected = jax.jit(draw)(key, 1.0, 1.0)[1]
    key, found = run(key, 1.0, 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    run(key, 1.0, 1.0)
