"""Functions that write into a ``jax.new_ref``, planned: what ``jax.jit`` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

X = jnp.arange(128.0 * 64).reshape(128, 64) % 7 / 7
P = jax.sharding.PartitionSpec


def state() -> dict[str, Any]:
    return {"w": jax.new_ref(jnp.ones((64, 32))), "m": jax.new_ref(jnp.zeros((64, 32)))}


def step(state: Any, x: Any, *, rate: float) -> Any:
    weights, momentum = state["w"], state["m"]
    gradient = jax.grad(lambda w: ((x @ w) ** 2).mean())(weights[...])
    momentum[...] = 0.9 * momentum[...] + gradient
    weights[...] = weights[...] - rate * momentum[...]
    return (weights[...] ** 2).sum()


def test_what_is_written_is_what_jax_jit_writes_and_stays_where_the_plan_has_it() -> None:
    plain, planned = state(), state()
    expected = jax.jit(step, static_argnames="rate")
    jitted = autoshard.jit(step, cluster="cpu:8", static_argnames="rate")
    before = planned["w"]
    for _ in range(3):
        np.testing.assert_allclose(
            jitted(planned, X, rate=0.1), expected(plain, X, rate=0.1), rtol=1e-5
        )
    assert planned["w"] is before
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one[...], other[...], rtol=1e-5),
        planned,
        plain,
    )
    plan = jitted.plan(planned, X, rate=0.1)
    names = [value.name for value in plan.arguments]
    assert names == ["state['m']", "state['w']", "x"]
    for number, name in enumerate(("m", "w")):
        assert plan.results[number].sharding == plan.arguments[number].sharding
        wanted = plan.in_shardings[0][name]
        assert planned[name].sharding.is_equivalent_to(wanted, 2)


def test_its_array_is_given_away() -> None:
    def double(x: Any, total: Any) -> None:
        total[...] = total[...] * 2 + x

    total = jax.new_ref(jnp.ones((1024, 8)))
    jitted: Any = autoshard.jit(double, cluster="cpu:8")
    compiled = jitted.lower(jnp.ones(8), total=total).compile()
    assert compiled.memory_analysis().alias_size_in_bytes > 0
    for _ in range(2):
        assert jitted(jnp.ones(8), total=total) is None
    np.testing.assert_array_equal(total[...], np.full((1024, 8), 7.0))


def test_beside_arrays_in_one_tree_with_results_that_are_returned() -> None:
    def push(stack: Any, value: Any, at: int) -> Any:
        stack["rows"][at] = value * stack["scale"]
        return stack["rows"][at + 1], {"was": value}

    made = [{"rows": jax.new_ref(jnp.zeros((4, 16))), "scale": jnp.full(16, 3.0)} for _ in range(2)]
    found = autoshard.jit(push, cluster="cpu:8", static_argnums=2)(made[0], jnp.ones(16), 1)
    expected = jax.jit(push, static_argnums=2)(made[1], jnp.ones(16), 1)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    np.testing.assert_array_equal(made[0]["rows"][...], made[1]["rows"][...])
    np.testing.assert_array_equal(made[0]["scale"], made[1]["scale"])  # not given away


def count(total: Any, x: Any) -> None:
    total[...] = total[...] + x.sum()


def test_where_it_lies_on_the_mesh_that_is_given_it_is_pinned() -> None:
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    cut = jax.sharding.NamedSharding(mesh, P("d"))
    total = jax.new_ref(jax.device_put(jnp.zeros(8), cut))
    jitted: Any = autoshard.jit(count, mesh=mesh)
    jitted(total, jnp.ones(8))
    assert str(jitted.plan(total, jnp.ones(8)).arguments[0].sharding) == "[{d}]"
    assert total.sharding.is_equivalent_to(cut, 1)
    np.testing.assert_array_equal(total[...], np.full(8, 8.0))


def test_a_plan_that_was_made_before_is_run(tmp_path: Path) -> None:
    x = jnp.ones((64, 8))
    plan = autoshard.plan(count, jax.new_ref(jnp.zeros(8)), x, cluster="cpu:8")
    plan.save(tmp_path / "plan.json")
    total = jax.new_ref(jnp.zeros(8))
    autoshard.jit(count, plan=tmp_path / "plan.json")(total, x)
    np.testing.assert_array_equal(total[...], np.full(8, 512.0))


def test_in_a_program_around_it_it_is_unplanned_with_a_warning() -> None:
    jitted = autoshard.jit(count, cluster="cpu:8")
    total = jax.new_ref(jnp.zeros(8))
    with pytest.warns(autoshard.AutoshardWarning, match=r"is given a jax\.new_ref of the function"):
        jax.jit(lambda total, x: jitted(total, x))(total, jnp.ones(8))
    np.testing.assert_array_equal(total[...], np.full(8, 8.0))


def test_one_that_is_passed_twice_and_pins_of_results_are_refused() -> None:
    def add(a: Any, b: Any) -> None:
        a[...] = b[...]

    total = jax.new_ref(jnp.zeros(8))
    with pytest.raises(autoshard.PlanError, match=r"add: a and b are one jax\.new_ref"):
        autoshard.jit(add, cluster="cpu:8")(total, total)
    with pytest.raises(autoshard.PlanError, match="out_shardings pins what a function returns"):
        autoshard.jit(count, mesh="d=8", out_shardings=P())(total, jnp.ones(8))
