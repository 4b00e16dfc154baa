"""Matmuls that XLA's partitioner cuts otherwise than least resharding does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.explain.partitioned import as_partitioned
from autoshard.explain.question import Dims, Subject
from autoshard.explain.reproduced import propagated
from autoshard.importer.pins import DimPin, Pin, Pinned

A, B, AB, BA, NO = (0,), (1,), (0, 1), (1, 0), ()


def gradient(x: jax.Array, y: jax.Array) -> jax.Array:
    return x.T @ y


@cache
def subject() -> Subject:
    x, y = (jax.ShapeDtypeStruct((32768, width), jnp.bfloat16) for width in (2048, 8192))
    return autoshard.plan(gradient, x, y, cluster="v5e:2x4", mesh="a=4,b=2").subject


def kinds(x: Dims, y: Dims, out: Dims) -> tuple[Sequence[str], Sequence[str]]:
    """Collectives of least resharding, and of the partitioner."""
    asked = subject()
    main = asked.imported.functions[-1]
    values = [*main.arguments, *main.results]
    pins = [
        Pinned(value, Pin(tuple(map(DimPin, dims))), None, "pin")
        for value, dims in zip(values, (x, y, out), strict=True)
    ]
    found = propagated(asked, pins)
    partitioned = as_partitioned(found)
    return [one.key[0] for one in found.collectives], [o.key[0] for o in partitioned.collectives]


@pytest.mark.parametrize(
    ("x", "y", "out"),
    [((A, NO), (A, B), (NO, BA)), ((AB, NO), (AB, NO), (NO, BA)), ((AB, NO), (A, B), (NO, B))],
)
def test_sums_of_what_lies_alike_are_scattered(x: Dims, y: Dims, out: Dims) -> None:
    least, partitioned = kinds(x, y, out)
    assert partitioned == least
    assert {"reduce-scatter", "all-reduce"} & set(least)


def test_sums_of_what_lies_unlike_are_not_scattered() -> None:
    """``x`` lies along both axes, ``y`` along one of them, and the sums would be cut further."""
    least, partitioned = kinds((AB, NO), (A, B), (NO, BA))
    assert "reduce-scatter" in least
    assert "reduce-scatter" not in partitioned
    assert "all-gather" in partitioned
