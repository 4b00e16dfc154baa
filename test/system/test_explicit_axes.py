"""Meshes with Explicit axes: types say how values are cut, and the rest is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

P = jax.sharding.PartitionSpec
EXPLICIT = (jax.sharding.AxisType.Explicit,) * 2
MESH = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=EXPLICIT)
X = jnp.arange(32.0 * 64).reshape(32, 64) % 7 - 3
W = jnp.arange(64.0 * 128).reshape(64, 128) % 5 - 2


def put(x: Any, *spec: Any) -> jax.Array:
    return jax.device_put(x, jax.sharding.NamedSharding(MESH, P(*spec)))


def resharded(w: Any, x: Any) -> Any:
    return jnp.maximum(jax.reshard(x @ w, jax.sharding.NamedSharding(MESH, P("dp", "tp"))), 0)


def mapped(w: Any, x: Any) -> Any:
    product = jax.reshard(x @ w, jax.sharding.NamedSharding(MESH, P("dp")))
    return jax.shard_map(lambda a: a * 2, mesh=MESH, in_specs=P("dp"), out_specs=P("dp"))(product)


def alike(found: jax.Array, expected: jax.Array) -> None:
    np.testing.assert_array_equal(found, expected)
    assert jax.typeof(found) == jax.typeof(expected)


@pytest.mark.usefixtures("partitioner")
def test_types_in_the_program_are_kept_and_those_of_the_result_are_jaxs() -> None:
    with jax.set_mesh(MESH):
        for arguments in ((W, X), (put(W, None, "tp"), put(X, "dp"))):
            alike(autoshard.jit(resharded)(*arguments), jax.jit(resharded)(*arguments))


def test_a_shard_map_over_the_users_mesh_is_planned() -> None:
    with jax.set_mesh(MESH):
        alike(autoshard.jit(mapped)(W, X), jax.jit(mapped)(W, X))
    alike(autoshard.jit(mapped, mesh=MESH)(W, X), jax.jit(mapped)(W, X))


def test_arrays_that_nobody_has_put_anywhere_are_the_searchs() -> None:
    with jax.set_mesh(MESH):
        plan = autoshard.plan(resharded, W, X)
    assert str(plan.mesh) == "dp=2,tp=4"
    assert str(plan.results[0].sharding) == "[{dp}, {tp}]"
    assert max(plan.arguments[0].sharding.tile) > 1


def test_arrays_with_explicit_types_bring_their_mesh() -> None:
    step = autoshard.jit(lambda w, x: x @ w)
    arguments = put(W, None, "tp"), put(X, "dp")
    alike(step(*arguments), jax.jit(lambda w, x: x @ w)(*arguments))
    planned = [str(value.sharding) for value in step.plan(*arguments).arguments]
    assert planned == ["[{}, {tp}]", "[{dp}, {}]"]
    other = put(W), put(X, "tp")
    assert [str(value.sharding) for value in step.plan(*other).arguments] == [
        "[{}, {}]",
        "[{tp}, {}]",
    ]


def test_a_cluster_that_is_given_gets_a_mesh_of_its_own() -> None:
    plan = autoshard.plan(lambda w, x: x @ w, put(W, None, "tp"), put(X, "dp"), cluster="v5e:4x4")
    assert plan.mesh.size == 16


def test_types_of_machines_that_are_not_here_are_kept() -> None:
    mesh = jax.sharding.AbstractMesh((4, 4), ("dp", "tp"), axis_types=EXPLICIT)

    def step(w: Any, x: Any) -> Any:
        return jnp.einsum("bi,io->bo", x, w, out_sharding=P("dp", "tp"))

    plan = autoshard.plan(step, W, X, cluster="v5e:4x4", mesh=mesh)
    assert str(plan.results[0].sharding) == "[{dp}, {tp}]"


def test_a_plan_from_a_file_has_its_explicit_axes(tmp_path: Path) -> None:
    with jax.set_mesh(MESH):
        autoshard.plan(resharded, W, X).save(tmp_path / "plan.json")
        loaded = autoshard.Plan.load(tmp_path / "plan.json")
        alike(autoshard.jit(resharded, plan=loaded)(W, X), jax.jit(resharded)(W, X))


def test_inside_another_jit_it_runs_unplanned_and_says_so() -> None:
    step = autoshard.jit(resharded)
    with (
        jax.set_mesh(MESH),
        pytest.warns(autoshard.AutoshardWarning, match="has Explicit axes"),
    ):
        alike(jax.jit(lambda w, x: step(w, x) + 1)(W, X), jax.jit(resharded)(W, X) + 1)


def test_a_pin_that_contradicts_a_type_is_refused() -> None:
    run = autoshard.jit(lambda w, x: x @ w, in_shardings=(P("tp"), None))
    message = (
        r"^w: in_shardings says \[\{tp\}, \{\}\], and the type of what is passed says \[\{\},"
        r" \{tp\}\], on Explicit axes"
    )
    with pytest.raises(autoshard.PlanError, match=message):
        run(put(W, None, "tp"), put(X, "dp"))
    same = autoshard.jit(lambda w, x: x @ w, in_shardings=(P(None, "tp"), None))
    alike(same(put(W, None, "tp"), X), jax.jit(lambda w, x: x @ w)(put(W, None, "tp"), X))
