"""Elementwise kernels that share what would be stored are one that writes all of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler_answers import TPU
from test_program_memory import EMPTY, read

Function = Callable[[Any, Any], Any]
"""From two values in memory: a product that several kernels read."""


def chain(x: Any, y: Any) -> Any:
    """Four values, of which two kernels each would read two."""
    a = x * y
    b = a - x
    c = b * a
    d = c - b
    return jnp.sort(c + d), jnp.sort(d + 1)


def two_chains(x: Any, y: Any) -> Any:
    """Two kernels share one product, and one of these another one with a third."""
    a = x * y
    b = x - y
    return jnp.sort(a + 1), jnp.sort(a * b), jnp.sort(b + 2)


SHARED: dict[str, Function] = {
    "two": lambda x, y: (a := x * y, jnp.sort(a + 1), jnp.sort(a - x))[1:],
    "three": lambda x, y: (a := x * y, jnp.sort(a + 1), jnp.sort(a - x), jnp.sort(a + y))[1:],
    "of one another": lambda x, y: (a := x * y, b := a + 1, jnp.sort(b), jnp.sort(b * a))[2:],
    "a chain": chain,
    "two chains": two_chains,
}


@pytest.mark.parametrize("function", SHARED.values(), ids=SHARED)
def test_what_elementwise_results_share_is_never_in_memory(function: Function) -> None:
    def run(x: Any, y: Any) -> Any:
        return function(jnp.sort(x), jnp.sort(y))

    found = read(run, (64, 64), (64, 64))
    assert found.life("multiply") == EMPTY
    alone = read(run, (64, 64), (64, 64), compiler=TPU | {"fusion.several_results": 0.0})
    assert alone.life("multiply") != EMPTY
    # One kernel beside the sorts, and x and y are read once for it.
    read_there = sum(
        sum(reads) for name, reads in zip(found.names, found.reads, strict=True) if name != "sort"
    )
    assert read_there == 2
    launched = [name for name, starts in zip(found.names, found.launched, strict=True) if starts]
    assert len([name for name in launched if name != "sort"]) == 1


APART: dict[str, Function] = {
    "a sum is waited for": lambda x, y: (
        a := x * y,
        b := a + 1,
        jnp.sort(b),
        jnp.sort(a * b.sum(1, keepdims=True)),
    )[2:],
    "another order": lambda x, y: (a := x * y, jnp.sort(a + 1), jnp.sort(a.T + y))[1:],
    "a part": lambda x, y: (a := x * y, jnp.sort(a + 1), jnp.sort(a[:32] + y[:32]))[1:],
    "stored between": lambda x, y: (
        a := x * y,
        b := a + 1,
        jnp.sort(b),
        jnp.sort(a * jnp.sort(b)),
    )[2:],
    "transposed between": lambda x, y: (
        a := x * y,
        b := a + 1,
        jnp.sort(b),
        jnp.sort(a * b.T),
    )[2:],
}


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_what_waits_for_another_kernel_is_none_of_its_results(function: Function) -> None:
    def run(x: Any, y: Any) -> Any:
        return function(jnp.sort(x), jnp.sort(y))

    assert read(run, (64, 64), (64, 64)).life("multiply") != EMPTY


def test_a_matmul_writes_several_results() -> None:
    def run(x: Any, y: Any, w: Any) -> Any:
        x = jnp.sort(x)
        a = (y @ w) * x
        return jnp.sort(a + 1), jnp.sort(a - x)

    found = read(run, *((64, 64),) * 3)
    assert found.life("dot_general") == found.life("multiply") == EMPTY


def test_random_bits_in_a_loop_are_one_kernel() -> None:
    """As JAX lowers them for CPUs: four rounds on two arrays, five times."""

    def run(key: Any, x: Any) -> Any:
        return jax.random.uniform(jax.random.wrap_key_data(key), x.shape) * x

    bits = jax.random.key_data(jax.random.key(0))
    found = read(lambda x: run(bits, x), (64, 64))
    rounds = [
        ids
        for op, ids in found.imported.result_values
        if op.name in ("stablehlo.xor", "stablehlo.or") and len(op.results[0].type.shape) == 2
    ]
    assert len(rounds) >= 8
    stored = [ids for ids in rounds if found.live_ranges[ids[0]] != EMPTY]
    assert not stored
