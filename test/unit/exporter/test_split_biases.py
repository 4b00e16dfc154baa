"""Reshapes behind a matmul and its bias."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import autoshard

Layer = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

ROWS, WIDTH, COLUMNS = 64, 16, 24
SPLIT = "(tensor<64x16xf32>, tensor<16x3x8xf32>) -> tensor<64x3x8xf32>"


def heads(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    return (x @ w + b).reshape(ROWS, 3, 8)


def repeated_bias(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """A bias that broadcasts in two steps."""
    return (x @ w + b[None, :]).reshape(ROWS, 3, 8)


def read_twice(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    made = x @ w + b
    return made.reshape(ROWS, 3, 8) + made.sum()


def split_rows(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    return (x @ w + b).reshape(8, 8, COLUMNS)


def scaled(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """What is added is no bias."""
    return (x @ w + jnp.outer(x.sum(1), b)).reshape(ROWS, 3, 8)


def exported(layer: Layer, columns: str = "None") -> str:
    """The module; it is run, and gives the same numbers."""
    layout = autoshard.Layout((8,), ("dp",))
    rows = "dp" if columns == "None" else "None"
    marks = (layout(rows, "None"), layout("None", columns), layout(columns))
    step = autoshard.jit(autoshard.shard(layer, marks), mesh="dp=8")
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = ((ROWS, WIDTH), (WIDTH, COLUMNS), (COLUMNS,))
    given = [
        jax.random.randint(key, shape, -8, 8).astype(jnp.float32)
        for key, shape in zip(keys, shapes, strict=True)
    ]
    np.testing.assert_array_equal(step(*given), layer(*given))
    return step.lower(*given).as_text()


@pytest.mark.parametrize("layer", [heads, repeated_bias])
def test_heads_are_split_before_the_bias_is_added(layer: Layer) -> None:
    text = exported(layer)
    assert SPLIT in text
    assert "stablehlo.add" in text
    assert "tensor<64x24xf32>" not in text


@pytest.mark.parametrize("layer", [read_twice, split_rows, scaled])
def test_other_sums_stay(layer: Layer) -> None:
    assert "tensor<64x24xf32>" in exported(layer)


def test_a_bias_that_is_cut_stays() -> None:
    assert "tensor<64x24xf32>" in exported(heads, columns="dp")
