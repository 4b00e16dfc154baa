"""What XLA compiles is what was planned, and ``autoshard.jit`` says so where it is not."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.frontend.checks import check_compiled
from autoshard.planned.collective import CollectiveKind, total_bytes

PartitionSpec = jax.sharding.PartitionSpec
layout = autoshard.Layout((2, 4), ("dp", "tp"))
columns = autoshard.shard(jnp.matmul, in_strategy=(layout("dp", "None"), layout("None", "tp")))
rows = autoshard.shard(
    jnp.matmul,
    in_strategy=(layout("dp", "tp"), layout("tp", "None")),
    out_strategy=layout("dp", "None"),
)
MESH = "dp=2,tp=4"


def mlp(weights, x):
    return rows(jnp.tanh(columns(x, weights["up"])), weights["down"])


WEIGHTS = {"up": jnp.ones((8, 32)), "down": jnp.ones((32, 8))}
X = jnp.ones((16, 8))


def test_the_planned_all_reduce_has_its_line_and_bytes():
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    (one,) = plan.collectives
    assert one.kind is CollectiveKind.ALL_REDUCE
    assert [axis.name for axis in one.axes] == ["tp"]
    assert "test_plan_is_kept.py" in one.place
    assert one.total_bytes == 2 * 3 / 4 * (8 * 8 * 4)
    assert total_bytes(plan.collectives) == one.total_bytes
    assert "all-reduce" in str(plan)


@pytest.mark.parametrize("shardy", [True, False])
def test_a_program_compiled_as_planned_gives_no_warning(shardy):
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        jitted = autoshard.jit(mlp, mesh=MESH)
        compiled = jitted.lower(WEIGHTS, X).compile()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_compiled(jitted.plan(WEIGHTS, X), compiled)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def test_another_split_of_an_argument_is_named():
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    weights, _ = plan.in_shardings
    other = jax.sharding.NamedSharding(plan.jax_mesh, PartitionSpec(("dp", "tp"), None))
    jitted = jax.jit(mlp, in_shardings=(weights, other), out_shardings=plan.out_shardings)
    compiled = jitted.lower(WEIGHTS, X).compile()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_compiled(plan, compiled)
    assert all(warning.category is autoshard.PlanMismatchWarning for warning in found)
    assert "py:67: mlp: x of shape (16, 8) is planned as [{dp}, {}]" in str(found[0].message)


def test_more_bytes_than_planned_are_named_with_their_axes():
    wide = autoshard.shard(jnp.tanh, (layout("None", "tp"),), layout("None", "tp"))
    plan = autoshard.plan(wide, X, mesh=MESH)
    assert not plan.collectives

    def gathers(x):
        cut = jax.lax.with_sharding_constraint(
            x + 1, jax.sharding.NamedSharding(plan.jax_mesh, PartitionSpec("dp", None))
        )
        return jnp.tanh(cut @ jnp.ones((8, 8)))

    jitted = jax.jit(gathers, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    with pytest.warns(autoshard.PlanMismatchWarning, match="planned are 0"):
        check_compiled(plan, jitted.lower(X).compile())


def test_plain_jit_with_the_planned_shardings_computes_the_same():
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    jitted = jax.jit(mlp, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    found = jitted(WEIGHTS, X)
    assert found.sharding.is_equivalent_to(plan.out_shardings, 2)
    assert jnp.allclose(found, jax.jit(mlp)(WEIGHTS, X))
