"""Calls that C++ makes compute what planned calls compute, and refuse what those refuse."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

P = jax.sharding.PartitionSpec
MESH = "dp=8"


def scaled(w: Any, x: Any) -> Any:
    return {"w": w + x.sum(), "x": x * 2}


def slow_calls(jitted: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with every call that goes through Python."""
    found: list[Any] = []
    call = jitted._call
    monkeypatch.setattr(jitted, "_call", lambda *a, **k: (found.append(1), call(*a, **k))[1])
    return found


def test_a_call_like_an_earlier_one_does_not_reach_python(monkeypatch: pytest.MonkeyPatch) -> None:
    step = autoshard.jit(scaled, mesh=MESH, in_shardings=(P("dp"), P()))
    w, x = step.plan(jnp.ones((8, 4)), jnp.ones(4)).place(jnp.ones((8, 4)), jnp.ones(4))
    slow = slow_calls(step, monkeypatch)
    results = [step(w, x), step(w, x), step(w + 1, x)]
    assert len(slow) == 1
    np.testing.assert_array_equal(results[1]["w"], np.full((8, 4), 5.0))
    np.testing.assert_array_equal(results[2]["w"], np.full((8, 4), 6.0))
    assert results[1]["w"].sharding == results[0]["w"].sharding


def test_an_array_that_lies_elsewhere_is_moved_however_often_it_is_passed() -> None:
    step = autoshard.jit(scaled, mesh=MESH, in_shardings=(P("dp"), P()))
    w = jnp.arange(64.0).reshape(8, 8)
    turned = jax.device_put(w, jax.NamedSharding(step.plan(w, w[0]).jax_mesh, P(None, "dp")))
    for array in (step.plan(w, w[0]).place(w, w[0])[0], turned, w, turned, turned, np.asarray(w)):
        np.testing.assert_array_equal(step(array, w[0])["w"], w + w[0].sum())


def test_calls_know_static_arguments_keys_scalars_and_settings() -> None:
    def noisy(key: Any, x: Any, times: int) -> Any:
        return jax.random.normal(key, (8,)) * times + x, key

    step = autoshard.jit(noisy, cluster="cpu:8", static_argnums=2)
    key = jax.random.key(1)
    for times in (1, 2, 1, 2):
        expected = noisy(key, 0.5, times)
        found, same = step(key, 0.5, times)
        np.testing.assert_allclose(found, expected[0], rtol=1e-6)
        np.testing.assert_array_equal(jax.random.key_data(same), jax.random.key_data(key))
        with jax.disable_jit():
            np.testing.assert_allclose(step(key, 0.5, times)[0], expected[0], rtol=1e-6)
    with jax.enable_x64(True):
        assert step(key, jnp.float64(0.5), 2)[0].dtype == jnp.float64
    assert step(key, jnp.float32(0.5), 2)[0].dtype == jnp.float32


def test_a_call_that_is_known_is_still_traced_inside_another_program() -> None:
    step = autoshard.jit(lambda x: x * 2, cluster="cpu:8")
    (x,) = step.plan(jnp.ones(8)).place(jnp.ones(8))
    for _ in range(3):
        step(x)
    text = jax.jit(lambda y: y + step(x)).lower(x).as_text()
    assert "autoshard_" in text


def test_a_deleted_array_is_named_by_calls_that_are_known() -> None:
    for mesh in (MESH, "dp=1"):
        step = autoshard.jit(scaled, mesh=mesh, in_shardings=(P("dp"), P()), donate_argnums=0)
        w, x = step.plan(jnp.ones((8, 4)), jnp.ones(4)).place(jnp.ones((8, 4)), jnp.ones(4))
        for _ in range(2):
            before, w = w, step(w, x)["w"]
        with pytest.raises(autoshard.errors.DonationError, match="w is an array that has been del"):
            step(before, x)


@pytest.mark.parametrize("mesh", [MESH, "dp=1"])
def test_an_array_donated_twice_is_named_by_calls_that_are_known(mesh: str) -> None:
    step = autoshard.jit(jnp.add, mesh=mesh, in_shardings=(P("dp"), P("dp")), donate_argnums=0)
    w, x = step.plan(jnp.ones(8), jnp.ones(8)).place(jnp.ones(8), jnp.ones(8) + 1)
    w = step(step(w, x), x)
    with pytest.raises(autoshard.errors.DonationError, match="are one array"):
        step(w, w)


def test_large_arrays_that_are_sent_in_every_call_are_named_once() -> None:
    large = jnp.ones((1024, 1024))
    step = autoshard.jit(lambda w, x: jnp.tanh(x @ w), cluster="cpu:8")
    step(large, jnp.ones((8, 1024)))
    with pytest.warns(autoshard.AutoshardWarning, match=r"\.py:\d+.*: w \(4 MiB\).*plan\.place"):
        step(large, jnp.ones((8, 1024)))
    step(large, jnp.ones((8, 1024)))  # once


def test_batches_and_small_arrays_that_are_sent_are_not_named() -> None:
    step = autoshard.jit(lambda w, x: x * w, mesh=MESH, in_shardings=(P(), P("dp")))
    rate = jnp.ones(())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            step(rate, jnp.ones((1024, 1024)))
