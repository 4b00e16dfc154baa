"""What the table of the partitioner calls wrong is in no plan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.compilers.partitioner import PartitionerTable, releases
from autoshard.importer.faults import BY_THE_EXPORTER

P = jax.sharding.PartitionSpec


@pytest.mark.parametrize("release", releases())
def test_every_fault_is_written_by_the_exporter_or_of_a_single_factor(release: str) -> None:
    """A fault of a new kind in a new table is one that nobody keeps out of plans yet."""
    table = PartitionerTable.of_release(release)
    faults = [(row, bad) for row in table.rows.values() for bad in row.bad]
    assert faults
    for row, bad in faults:
        is_factor = len(row.roles) == 1 and not row.roles[0].endswith(("_before", "_after"))
        if row.op in BY_THE_EXPORTER:
            assert is_written(row.op, row.roles, bad.traits), (row.op, row.roles, bad.traits)
        else:
            assert is_factor, (row.op, row.roles, bad.traits)


def is_written(op: str, roles: tuple[str, ...], traits: frozenset[str]) -> bool:
    """Whether the exporter writes ops with these traits otherwise where these roles are cut."""
    match op.partition(".")[2]:
        case "convolution":
            is_grouped = bool(traits & {"grouped", "batch_grouped"}) or "group" in " ".join(roles)
            return is_grouped or any("image" in role for role in roles)
        case "pad":
            return "touched" in roles and "interior" in traits
        case "dynamic_slice":
            return any(role.startswith("sliced") for role in roles)
        case "dynamic_update_slice":
            return "updated" in roles
        case "gather" | "scatter":
            return "one_index" in traits
        case "select_and_scatter":
            return "window" in roles
        case name:
            return name in ("fft", "top_k")


def reduced(combine: object) -> object:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.reduce(x, np.int32(0), combine, (0,))

    return fn


def largest_size(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.max(abs(a), abs(b))


@pytest.mark.parametrize(
    ("combine", "is_cut"),
    [
        (jax.lax.bitwise_xor, False),
        (jax.lax.bitwise_or, False),
        (largest_size, False),
        (jax.lax.add, True),
    ],
)
def test_a_reduction_that_xla_cannot_join_is_not_cut(combine: object, is_cut: bool) -> None:
    x = jnp.arange(192, dtype=jnp.int32).reshape(64, 3)
    fn = reduced(combine)
    step = autoshard.jit(fn, mesh="a=8", mode="semi_auto", in_shardings=(P("a"),))
    (strategy,) = (op.strategy for op in step.plan(x).ops if op.name == "reduce")
    assert strategy is not None
    assert strategy.startswith("[{a}") == is_cut
    np.testing.assert_array_equal(step(x), jax.jit(fn)(x))


def test_ops_of_one_type_with_different_reducers_have_rules_of_their_own() -> None:
    def fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return reduced(jax.lax.bitwise_xor)(x), reduced(jax.lax.add)(y)

    x = jax.ShapeDtypeStruct((1024, 3), jnp.int32)
    plan = autoshard.plan(fn, x, x, mesh="a=8", mode="semi_auto", in_shardings=(P("a"), P("a")))
    strategies = [op.strategy or "" for op in plan.ops if op.name == "reduce"]
    assert len({strategy.startswith("[{a}") for strategy in strategies}) == 2
