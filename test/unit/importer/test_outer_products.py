"""Products that add nothing up multiply elements, in the kernel of what reads them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster

ROWS = jax.ShapeDtypeStruct((8, 1024, 1), jnp.float32)
COLUMNS = jax.ShapeDtypeStruct((8, 1, 1024), jnp.float32)
WHOLE = jax.ShapeDtypeStruct((8, 1024, 1024), jnp.float32)


def seconds(function: Any, *shapes: Any, cluster: str) -> float:
    return autoshard.plan(function, *shapes, cluster=cluster).compute_seconds


@pytest.mark.parametrize("cluster", ["h100:1", "v5e:1x1"])
def test_an_outer_product_is_a_part_of_what_reads_it(cluster: str) -> None:
    def product(a: Any, b: Any, c: Any) -> Any:
        return jnp.einsum("bik,bkj->bij", a, b) + c

    def multiplied(a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    shapes = ROWS, COLUMNS, WHOLE
    found = seconds(product, *shapes, cluster=cluster)
    assert found == pytest.approx(seconds(multiplied, *shapes, cluster=cluster), rel=0.01)


def test_without_a_contracted_dim_too() -> None:
    def product(a: Any, b: Any) -> Any:
        return jnp.einsum("i,j->ij", a, b)

    vector = jax.ShapeDtypeStruct((8192,), jnp.float32)
    written = 4.0 * 8192 * 8192 / Cluster.parse("h100:1").chip.memory_bandwidth.value
    assert seconds(product, vector, vector, cluster="h100:1") < 1.5 * written
