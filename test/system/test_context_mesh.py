"""The mesh of ``jax.set_mesh`` is the plan's mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

P = jax.sharding.PartitionSpec
X = jnp.arange(32.0 * 64).reshape(32, 64) % 7 - 3
W = jnp.arange(64.0 * 128).reshape(64, 128) % 5 - 2


def mesh_of(*axis_type: Any) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("dp", "tp"), axis_types=axis_type * 2)


MESH = mesh_of(jax.sharding.AxisType.Auto)


def constrained(w: Any, x: Any) -> Any:
    return jnp.maximum(jax.lax.with_sharding_constraint(x @ w, P("dp", "tp")), 0)


@pytest.mark.parametrize("options", [{}, {"cluster": "cpu:8"}, {"mode": "semi_auto"}], ids=str)
def test_constraints_over_its_axes_are_kept(options: Any) -> None:
    with jax.set_mesh(MESH):
        step = autoshard.jit(constrained, **options)
        found, plan = step(W, X), step.plan(W, X)
    np.testing.assert_array_equal(found, jnp.maximum(X @ W, 0))
    assert str(plan.mesh) == "dp=2,tp=4"
    assert found.sharding.is_equivalent_to(jax.NamedSharding(MESH, P("dp", "tp")), 2)


def test_pins_may_name_its_axes() -> None:
    with jax.set_mesh(MESH):
        plan = autoshard.plan(jnp.matmul, X, W, in_shardings=(P("dp"), P(None, "tp")))
    assert [str(value.sharding) for value in plan.arguments] == ["[{dp}, {}]", "[{}, {tp}]"]
    assert plan.mode == "auto"


def test_a_mesh_that_is_given_comes_first() -> None:
    with jax.set_mesh(MESH):
        plan = autoshard.plan(jnp.matmul, X, W, mesh="a=8", mode="auto")
    assert str(plan.mesh) == "a=8"


def test_programs_without_a_mesh_take_one_with_explicit_axes() -> None:
    with jax.set_mesh(mesh_of(jax.sharding.AxisType.Explicit)):
        found = autoshard.jit(jnp.matmul)(X, W)
    np.testing.assert_array_equal(found, X @ W)


def test_explicit_axes_in_the_program_are_refused_with_a_way_out() -> None:
    mesh = mesh_of(jax.sharding.AxisType.Explicit)

    def mapped(x: Any) -> Any:
        return jax.shard_map(lambda a: a * 2, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(x)

    with (
        jax.set_mesh(mesh),
        pytest.raises(autoshard.PlanError, match=r"axes of that mesh are Explicit.*AxisType\.Auto"),
    ):
        autoshard.jit(mapped)(X)


def test_a_cluster_of_another_size_is_refused() -> None:
    with (
        jax.set_mesh(MESH),
        pytest.raises(autoshard.ShardingError, match=r"has 8 devices, the cluster v5e:4x4 has 16"),
    ):
        autoshard.plan(jnp.matmul, X, W, cluster="v5e:4x4")
