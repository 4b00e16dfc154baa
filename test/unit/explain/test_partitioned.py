"""Matmuls that XLA's partitioner cuts otherwise than least resharding does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.explain.partitioned import partitioned
from autoshard.explain.question import Dims, Subject
from autoshard.explain.reproduced import propagated
from autoshard.importer.pins import DimPin, Pin, Pinned

A, B, AB, BA, NO = (0,), (1,), (0, 1), (1, 0), ()


def gradient(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())))


@cache
def subject(rows: int = 32768, dtype: type = jnp.bfloat16) -> Subject:
    x, y = (jax.ShapeDtypeStruct((rows, width), dtype) for width in (2048, 8192))
    return autoshard.plan(gradient, x, y, cluster="v5e:2x4", mesh="a=4,b=2").subject


def pins(*cuts: Dims, of: Subject | None = None) -> list[Pinned]:
    """Both operands and the result."""
    main = (of or subject()).imported.functions[-1]
    return [
        Pinned(value, Pin(tuple(map(DimPin, dims))), None, "pin")
        for value, dims in zip([*main.arguments, *main.results], cuts, strict=True)
    ]


def kinds(x: Dims, y: Dims, out: Dims) -> tuple[Sequence[str], Sequence[str]]:
    """Collectives of least resharding, and of the partitioner."""
    held = pins(x, y, out)
    found = (propagated(subject(), held), partitioned(subject(), held))
    least, known = ([one.key[0] for one in one.collectives] for one in found)
    return least, known


@pytest.mark.parametrize(
    ("x", "y", "out"),
    [((A, NO), (A, B), (NO, BA)), ((AB, NO), (AB, NO), (NO, BA)), ((AB, NO), (A, B), (NO, B))],
)
def test_sums_of_what_lies_alike_are_scattered(x: Dims, y: Dims, out: Dims) -> None:
    least, known = kinds(x, y, out)
    assert known == least
    assert {"reduce-scatter", "all-reduce"} & set(least)


def test_casts_before_matmuls_are_no_matmuls() -> None:
    """They have one operand, and the matmul stands for them among the ops."""
    cast = subject(dtype=jnp.float32)
    assert cast.imported.rounded
    (sent,) = partitioned(cast, pins((AB, NO), (AB, NO), (NO, NO), of=cast)).collectives
    assert sent.key[0] == "all-reduce"


def test_sums_of_what_lies_unlike_are_not_scattered() -> None:
    """``x`` lies along both axes, ``y`` along one of them, and the sums would be cut further."""
    least, known = kinds((AB, NO), (A, B), (NO, BA))
    assert "reduce-scatter" in least
    assert "reduce-scatter" not in known
    assert "all-gather" in known


def test_operands_of_sums_that_are_not_scattered_are_cut_as_the_result() -> None:
    """``x`` is gathered whole, and ``y`` goes from a part of the rows to one of the columns."""
    found = partitioned(subject(), pins((AB, NO), (A, B), (NO, BA)))
    x, y = 32768 * 2048 * 2, 32768 * 8192 * 2
    sent = {one.key[0]: one.bytes for one in found.collectives}
    assert sent == {"all-gather": x * 7 / 8, "all-to-all": y / 8 * 3 / 4}


@pytest.mark.parametrize("out", [(NO, AB), (NO, BA), (AB, NO), (BA, NO)])
def test_sums_along_a_dim_that_is_cut_besides_are_reduced_whole(out: Dims) -> None:
    """No operand is cut along ``b``, which cuts the dim that the sums would be scattered along."""
    least, known = kinds((A, NO), (A, NO), out)
    assert least == ["reduce-scatter"]
    assert known == ["all-reduce"]
    found = partitioned(subject(), pins((A, NO), (A, NO), out))
    assert sum(one.bytes for one in found.collectives) == 2 * 3 / 4 * 2048 * 8192 * 2


def test_an_axis_that_cuts_another_dim_besides_does_not_matter() -> None:
    least, known = kinds((A, NO), (A, NO), (B, A))
    assert known == least == ["reduce-scatter"]


@pytest.mark.parametrize(
    ("x", "y", "out", "sent"),
    [
        ((AB, NO), (AB, NO), (NO, NO), {"all-reduce": 2 * 7 / 8}),
        ((A, NO), (A, NO), (B, NO), {"all-reduce": 2 * 3 / 4 / 2}),
        ((AB, NO), (AB, NO), (NO, B), {"reduce-scatter": 1 / 2, "all-reduce": 2 * 3 / 4 / 2}),
        ((A, B), (A, NO), (NO, NO), {"all-reduce": 2 * 3 / 4 / 2, "all-gather": 1 / 2}),
    ],
)
def test_few_rows_are_summed_where_they_lie(
    x: Dims, y: Dims, out: Dims, sent: dict[str, float]
) -> None:
    """It would send less to cut them along something else; as compiled, of the whole result."""
    asked = subject(2048)
    found = [one(asked, pins(x, y, out)) for one in (propagated, partitioned)]
    least, known = ({one.key[0]: one.bytes for one in one.collectives} for one in found)
    assert sum(least.values()) < sum(known.values())
    assert known == {kind: share * 2048 * 8192 * 2 for kind, share in sent.items()}
