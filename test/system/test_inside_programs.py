"""A planned function inside a program that somebody else traces is planned there, or says so."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

P = jax.sharding.PartitionSpec
X = jnp.arange(32.0 * 64).reshape(32, 64) % 7 - 3
W = jnp.arange(64.0 * 64).reshape(64, 64) % 5 - 2
SCALE = jnp.arange(64.0) % 3


def plain(weights: Any, x: Any) -> Any:
    return jnp.maximum(x @ weights, -1) * SCALE


def planned(**options: Any) -> Any:
    return autoshard.jit(plain, mesh="dp=2,tp=4", in_shardings=(P(None, "tp"), P("dp")), **options)


def collectives(text: str) -> list[str]:
    return sorted(re.findall(r"= \S+ (all-[a-z]+|reduce-scatter|collective-permute)\(", text))


@pytest.mark.usefixtures("partitioner")
def test_a_jit_around_it_runs_the_plan() -> None:
    step = planned(out_shardings=P(None, "tp"))
    outer = jax.jit(lambda w, x: step(w, x) + 1)
    found = outer(W, X)
    np.testing.assert_array_equal(found, plain(W, X) + 1)
    assert found.sharding.is_equivalent_to(step.plan(W, X).out_shardings, 2)
    inside = outer.lower(W, X).compile().as_text()
    assert collectives(inside) == collectives(step.lower(W, X).compile().as_text()) != []


def test_a_jit_around_it_runs_the_plan_after_a_call_of_its_own() -> None:
    step = planned()
    step(W, X)  # from now on calls look for arrays that are deleted
    found = jax.jit(lambda w, x: step(w, x) + 1)(W, X)
    np.testing.assert_array_equal(found, plain(W, X) + 1)
    assert found.sharding.num_devices == 8


def test_a_loop_around_it_runs_the_plan() -> None:
    step = planned()
    found = jax.lax.fori_loop(0, 3, lambda _, x: step(W, x) % 5, X)
    expected = X
    for _ in range(3):
        expected = plain(W, expected) % 5
    np.testing.assert_array_equal(found, expected)
    assert found.sharding.num_devices == 8


@pytest.mark.usefixtures("partitioner")
def two_layers(weights: Any, x: Any) -> Any:
    up, down = weights
    hidden = jnp.maximum(x @ up, 0)
    return hidden @ down, (up + (x.T @ hidden) % 3, down * 2)


@pytest.mark.parametrize("devices", [1, 6, 8])
def test_a_jit_around_it_names_how_an_automatic_mesh_cuts_its_results(devices: int) -> None:
    weights = (jnp.arange(32.0 * 48).reshape(32, 48) % 5 - 2, jnp.ones((48, 24)))
    x = jnp.arange(48.0 * 32).reshape(48, 32) % 3 - 1
    step = autoshard.jit(two_layers, cluster=f"cpu:{devices}")
    found = jax.jit(lambda w, x: step(w, x))(weights, x)
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(two_layers(weights, x)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    plan = step.plan(weights, x)
    assert devices == 1 or len(plan.mesh.axes) > 1  # which one axis of all devices cannot say
    for array, planned_as in zip(
        jax.tree.leaves(found), jax.tree.leaves(plan.out_shardings), strict=True
    ):
        assert isinstance(array.sharding, jax.sharding.NamedSharding)
        assert array.sharding.is_equivalent_to(planned_as, array.ndim)


def test_it_is_exported_with_its_plan() -> None:
    exported = jax.export.export(planned())(W, X)
    assert exported.nr_devices == 8
    placed = jax.device_put((W, X), planned().plan(W, X).in_shardings)
    np.testing.assert_array_equal(jax.jit(exported.call)(*placed), plain(W, X))


def test_what_is_traced_from_it_lowers_planned() -> None:
    compiled = planned().trace(W, X).lower().compile()
    np.testing.assert_array_equal(compiled(W, X), plain(W, X))
    assert jax.tree.leaves(compiled.input_shardings)[0].num_devices == 8


def test_shapes_alone_take_no_plan() -> None:
    step = planned()
    assert jax.eval_shape(step, W, X).shape == (32, 64)
    (program,) = step._programs.values()
    assert program.found is None


def test_all_kinds_of_arguments() -> None:
    def mixed(tree: Any, unused: Any, power: int, *, key: Any) -> Any:
        noise = jax.random.randint(key, (32, 64), 0, 5)
        return {"y": tree["x"] @ tree["w"] ** power + noise, "key": jax.random.split(key)[0]}

    step = autoshard.jit(mixed, cluster="cpu:8", static_argnums=2)
    key = jax.random.key(3)
    found = jax.jit(lambda t, k: step(t, 1, 2, key=k))({"w": W, "x": X}, key)
    expected = mixed({"w": W, "x": X}, 1, 2, key=key)
    np.testing.assert_array_equal(found["y"], expected["y"])
    assert (found["key"] == expected["key"]).all()
    assert found["y"].sharding.num_devices == 8


def test_two_plans_in_one_program() -> None:
    one = planned()
    other = autoshard.jit(plain, mesh="a=8", in_shardings=(P(), P("a")))
    found = jax.jit(lambda w, x: other(w, one(w, x) % 3))(W, X)
    np.testing.assert_array_equal(found, plain(W, plain(W, X) % 3))


# --- where it cannot be ---


@pytest.mark.parametrize("order", ["jit of grad", "grad of jit"])
def test_differentiated_in_a_program_it_says_that_it_is_unplanned(order: str) -> None:
    step = planned()

    def loss(w: Any) -> Any:
        return step(w, X).sum()

    fn = jax.jit(jax.grad(loss)) if order == "jit of grad" else jax.grad(jax.jit(loss))
    with pytest.warns(autoshard.AutoshardWarning, match=r"test_inside_programs.*runs unplanned"):
        found = fn(W)
    np.testing.assert_array_equal(found, jax.grad(lambda w: plain(w, X).sum())(W))


def test_mapped_in_a_program_it_says_that_it_is_unplanned() -> None:
    step = planned()
    with pytest.warns(autoshard.AutoshardWarning, match="is mapped from outside: it runs"):
        found = jax.vmap(jax.jit(lambda x: step(W, x)))(X[None])
    np.testing.assert_array_equal(found[0], plain(W, X))


def test_values_of_the_function_around_it_are_no_arguments() -> None:
    def outer(w: Any, x: Any) -> Any:
        return autoshard.jit(lambda x: plain(w, x), cluster="cpu:8")(x)

    with pytest.warns(autoshard.AutoshardWarning, match="a value of the function around it"):
        found = jax.jit(outer)(W, X)
    np.testing.assert_array_equal(found, plain(W, X))


def test_calls_into_python_stay_outside() -> None:
    def tells(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x.sum())
        return x * 2

    step = autoshard.jit(tells, cluster="cpu:8")
    with pytest.warns(autoshard.AutoshardWarning, match="calls back into Python: it runs unplan"):
        found = jax.jit(lambda x: step(x))(X)
    np.testing.assert_array_equal(found, X * 2)


def test_one_devices_part_is_not_planned() -> None:
    step = autoshard.jit(lambda x: x * 2, cluster="cpu:8")
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(lambda x: step(x), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    with pytest.warns(autoshard.AutoshardWarning, match="inside shard_map"):
        found = jax.jit(mapped)(X)
    np.testing.assert_array_equal(found, X * 2)


def test_a_program_for_another_platform_is_refused() -> None:
    step = autoshard.jit(lambda x: x * 2, cluster="cpu:8")
    with pytest.raises(autoshard.PlanError, match=r"planned for cpu, .* lowered for tpu"):
        jax.export.export(jax.jit(lambda x: step(x)), platforms=["tpu"])(X)


def test_a_plan_for_devices_that_are_not_here_is_refused_when_it_is_lowered() -> None:
    step = autoshard.jit(lambda x: x * 2, cluster="v5e:2x4")
    assert jax.eval_shape(lambda x: step(x), X).shape == X.shape
    with pytest.raises(autoshard.AutoshardError, match=r"planned for"):
        jax.jit(lambda x: step(x))(X)


def test_values_on_the_host_are_refused() -> None:
    step = autoshard.jit(lambda w, x: x @ autoshard.in_host_memory(w), cluster="cpu:8")
    with pytest.raises(autoshard.PlanError, match="w is planned to live in the memory of the host"):
        jax.jit(lambda w, x: step(w, x))(W, X)
