"""Gathered and scattered rows: kernels of their own, in tiles (`fusion.gather_kernels`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler_answers import GPU, TPU
from test_program_memory import EMPTY, read

NODES, EDGES = 512, 4096


def gathered(table: Any, edges: Any) -> Any:
    return jnp.sort(table, 0)[edges.astype(int)]


def by_two(table: Any, edges: Any) -> Any:
    rows = gathered(table, edges)
    return rows.sum(0), jnp.sort(jnp.tanh(rows), 0)


def by_one(table: Any, edges: Any) -> Any:
    return jnp.sort(jnp.tanh(gathered(table, edges)), 0)


@pytest.mark.parametrize(
    ("function", "compiler", "stored"),
    [(by_two, TPU, True), (by_one, TPU, False), (by_one, GPU, False)],
    ids=["two kernels", "one elementwise kernel", "GPUs"],
)
def test_what_is_gathered_is_stored_for_several_kernels(
    function: Callable[..., Any], compiler: dict[str, float], stored: bool
) -> None:
    found = read(function, (NODES, 12), (EDGES,), compiler=compiler)
    assert (found.life("gather") != EMPTY) == stored


@pytest.mark.parametrize(
    ("row", "tiled"), [((12,), 128), ((128,), 128), ((200,), 256), ((4, 128), 4 * 128)]
)
def test_a_row_fills_columns(row: tuple[int, ...], tiled: int) -> None:
    def messages(table: Any, edges: Any) -> Any:
        rows = jnp.tanh(gathered(table, edges))
        return jax.lax.optimization_barrier(rows) * 2

    found = read(messages, (NODES, *row), (EDGES,))
    largest = max(size for _, size in found.peak()[2])
    assert largest == pytest.approx(EDGES * tiled * 4)
