"""Broadcasts of which a view joins a dim into another one are kernels of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.explain.question import Subject

P = jax.sharding.PartitionSpec

HEADS, WIDTH, LENGTH = 8, 128, 512
QUERIES = 4
"""To each key."""


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def scores(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, QUERIES, axis=2))


def scores_of_groups(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.einsum("bqhgd,bkhd->bhgqk", q.reshape(16, -1, HEADS, QUERIES, WIDTH), k)


def planned(
    function: Callable[..., Any], queries: int, cluster: str = "v5p:1x1x1", keys: P | None = None
) -> Subject:
    q, k = array(16, queries, HEADS * QUERIES, WIDTH), array(16, LENGTH, HEADS, WIDTH)
    if keys is None:
        return autoshard.plan(function, q, k, cluster=cluster).subject
    mesh = f"model={Cluster.of(cluster).num_devices}"
    return autoshard.plan(
        function, q, k, cluster=cluster, mesh=mesh, mode="auto", in_shardings=(keys, keys)
    ).subject


def repeat_of(subject: Subject) -> int:
    """The op that repeats keys."""
    ops = subject.imported.core_ops
    (found,) = (
        number
        for number, op in enumerate(ops)
        if op.name == "stablehlo.broadcast_in_dim" and len(op.results[0].type.shape) == 5
    )
    return found


@pytest.mark.parametrize(("queries", "cycles"), [(512, 420_832), (1, 791_488)])
def test_a_repeat_takes_what_the_compiler_says(queries: int, cycles: int) -> None:
    """Cycles of libtpu 0.0.42.1 for the kernel, at 1.75 GHz: tiles of 8 x 128, and of 4 x 128."""
    subject = planned(scores, queries)
    found = subject.plan.op_seconds[repeat_of(subject)]
    assert found == pytest.approx(cycles / 1.75e9, rel=0.1)


def test_heads_that_are_not_joined_are_repeated_on_the_way() -> None:
    subject = planned(scores_of_groups, 512)
    ops = subject.imported.core_ops
    moved = [
        seconds
        for op, seconds in zip(ops, subject.plan.op_seconds, strict=True)
        if op.name == "stablehlo.broadcast_in_dim"
    ]
    assert not any(moved)


def test_a_device_that_has_one_key_repeats_nothing() -> None:
    whole = planned(scores, 512, "v5p:2x2x2", P("model"))
    cut = planned(scores, 512, "v5p:2x2x2", P(None, None, "model"))
    assert whole.plan.op_seconds[repeat_of(whole)] > 0
    assert cut.plan.op_seconds[repeat_of(cut)] == 0
