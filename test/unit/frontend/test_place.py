"""``plan.place`` puts arguments where the plan wants them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

X = np.ones((16, 8), np.float32)


def scaled(tree, unused, by, *, shift):
    return tree["x"] * by + shift


def test_arrays_are_placed_and_all_else_is_passed_on():
    pins = ({"x": jax.sharding.PartitionSpec("d")}, None, None)
    plan = autoshard.plan(scaled, {"x": X}, X, 2.0, shift=X, mesh="d=8", in_shardings=pins)
    (tree, unused, by), by_name = plan.place({"x": X}, X, 2.0, shift=X)
    assert tree["x"].sharding == plan.in_shardings[0]["x"]
    assert by_name["shift"].sharding == plan.kwarg_shardings["shift"]
    assert unused is X
    assert by == 2.0
    again, _ = plan.place(tree, unused, by, **by_name)
    assert again[0]["x"].sharding == tree["x"].sharding


def test_sixty_four_bits_of_numpy_are_placed_as_a_call_takes_them():
    numbers = np.arange(8)
    plan = autoshard.plan(jnp.take, X, numbers, cluster="cpu:8")
    assert plan.place(X, numbers)[1].dtype == np.int32
    with pytest.raises(autoshard.PlanError, match=r"int32\[8\] in it, but float32\[8\]"):
        plan.place(X, numbers.astype(np.float64))


def test_other_arguments_are_refused():
    plan = autoshard.plan(jnp.matmul, X, X.T, cluster="cpu:8")
    with pytest.raises(autoshard.PlanError, match="for 2 arrays, here are 1"):
        plan.place(X)
    with pytest.raises(autoshard.PlanError, match=r"float32\[16, 8\] in it, but int32\[16, 8\]"):
        plan.place(X.astype(np.int32), X.T)


def test_devices_that_are_not_here_are_no_place():
    plan = autoshard.plan(jnp.matmul, X, X.T, cluster="v5e:2x4")
    with pytest.raises(autoshard.ShardingError, match="the plan is for v5e:2x4, but the devices"):
        plan.place(X, X.T)
