"""Gradients of weights, which are sums over devices and are transposed."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import autoshard

ROWS, WIDTH, HEADS, SIZE = 64, 16, 3, 8

Gradient = Callable[[jax.Array, jax.Array], jax.Array]


def product(g: jax.Array, x: jax.Array) -> jax.Array:
    """Heads, their sizes, and what a weight reads."""
    return jax.lax.dot_general(g, x, (((0,), (0,)), ((), ())))


def swapped(g: jax.Array, x: jax.Array) -> jax.Array:
    return product(g, x).transpose(2, 0, 1)


def of_experts(g: jax.Array, x: jax.Array) -> jax.Array:
    return product(g, x).transpose(0, 2, 1)


def otherwise(g: jax.Array, x: jax.Array) -> jax.Array:
    """What swapped operands do not give."""
    return product(g, x).transpose(2, 1, 0)


def read_twice(g: jax.Array, x: jax.Array) -> jax.Array:
    made = product(g, x)
    return made.transpose(2, 0, 1) + made.sum()


def batched(g: jax.Array, x: jax.Array) -> jax.Array:
    made = jnp.einsum("rhs,rhi->hsi", g, jnp.stack([x] * HEADS, 1))
    return made.transpose(0, 2, 1)


def operands() -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    g = jax.random.randint(keys[0], (ROWS, HEADS, SIZE), -8, 8).astype(jnp.float32)
    return g, jax.random.randint(keys[1], (ROWS, WIDTH), -8, 8).astype(jnp.float32)


def exported(gradient: Gradient, rows: str | None = "dp") -> str:
    """The module, and whether it gives the same numbers."""
    layout = autoshard.Layout((8,), ("dp",))
    cut = (layout(rows or "None", "None", "None"), layout(rows or "None", "None"))
    places = {batched: (None, None, None), of_experts: (None, "dp", None)}
    result = layout(*(axis or "None" for axis in places.get(gradient, ("dp", None, None))))
    step = autoshard.jit(autoshard.shard(gradient, cut, result), mesh="dp=8")
    given = operands()
    np.testing.assert_array_equal(step(*given), gradient(*given))
    return step.lower(*given).as_text()


def test_the_operands_of_a_sum_over_devices_are_swapped() -> None:
    text = exported(swapped)
    assert "stablehlo.transpose" not in text
    assert "(tensor<64x16xf32>, tensor<64x3x8xf32>) -> tensor<16x3x8xf32>" in text


def test_the_transpose_that_is_left_keeps_the_last_dim() -> None:
    text = exported(of_experts)
    assert "(tensor<64x16xf32>, tensor<64x3x8xf32>) -> tensor<16x3x8xf32>" in text
    assert "dims = [1, 0, 2]" in text


@pytest.mark.parametrize("gradient", [otherwise, read_twice, batched])
def test_other_transposes_stay(gradient: Gradient) -> None:
    assert "stablehlo.transpose" in exported(gradient)


def test_what_every_device_adds_up_alone_stays() -> None:
    assert "stablehlo.transpose" in exported(swapped, rows=None)


@pytest.mark.parametrize(("columns", "is_swapped"), [(1024, True), (768, False)])
def test_what_fills_tiles_in_another_order_stays(columns: int, is_swapped: bool) -> None:
    layout = autoshard.Layout((8,), ("dp",))
    rows = layout("dp", "None")
    marked = autoshard.shard(
        lambda g, x: product(g, x).transpose(1, 0), (rows, rows), layout("None", "dp")
    )
    shapes = ((ROWS, columns), (ROWS, 256))
    given = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    plan = autoshard.jit(marked, cluster="v5p:2x2x2", mesh="dp=8").plan(*given)
    text = str(plan.exported("autoshard-export-shardy"))
    assert ("stablehlo.transpose" not in text) == is_swapped
