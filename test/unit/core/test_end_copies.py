"""Copies of what batches of products write in their own order, where programs begin or end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler_answers import GPU, TPU
from test_program_memory import read, read_text

ROWS, SCORES = (4, 16, 8), (4, 16, 16)
COPY = 4 * 16 * 16 * 4


def scores(x: Any) -> Any:
    """A batch of products, with its rows last."""
    return jnp.swapaxes(jnp.einsum("bqd,bkd->bqk", x, 2 * x), 1, 2)


def leaving(x: Any) -> Any:
    return scores(x)


def in_order(x: Any) -> Any:
    return jnp.einsum("bqd,bkd->bqk", x, 2 * x)


def beside(x: Any, y: Any) -> Any:
    return jnp.sum(scores(x) * y)


def updated(x: Any, y: Any) -> Any:
    return y + scores(x)


def of_one_product(x: Any, w: Any) -> Any:
    return w + (x[0].T @ x[1]).T


@pytest.mark.parametrize(
    ("function", "shapes", "copied"),
    [
        (leaving, (ROWS,), COPY),
        (in_order, (ROWS,), 0),
        (beside, (ROWS, SCORES), COPY),
        (of_one_product, (ROWS, (8, 8)), 0),
    ],
    ids=["leaves transposed", "leaves row by row", "an argument beside it", "no batch"],
)
def test_what_lies_in_another_order_than_its_argument_or_result_is_copied(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], copied: int
) -> None:
    def peak(base: dict[str, float], ordered: int) -> float:
        return read(function, *shapes, compiler={**base, "layout.ordered_batches": ordered}).peak()[
            0
        ]

    base = {**TPU, "layout.tile_rows": 1, "layout.tile_columns": 0}
    assert peak(base, 1) - peak(base, 0) == copied
    assert read(function, *shapes, compiler=GPU).peak()[0] == peak(GPU, 0)


def test_sums_that_a_result_is_written_over_are_not_copied() -> None:
    def peak(ordered: int) -> float:
        base = {**TPU, "layout.tile_rows": 1, "layout.tile_columns": 0}
        compiler = {**base, "layout.ordered_batches": ordered}
        return read(updated, ROWS, SCORES, donate=(1,), compiler=compiler).peak()[0]

    assert peak(1) == peak(0)


@pytest.mark.parametrize(
    ("function", "shapes", "row_by_row"),
    [
        (leaving, (ROWS,), 'jax.result_info = "result"'),
        (beside, (ROWS, SCORES), "%arg1: tensor<4x16x16xf32>"),
    ],
    ids=["a result", "an argument"],
)
def test_what_lies_as_the_compiler_likes_is_not_copied(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], row_by_row: str
) -> None:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function).lower(*arguments).as_text()
    mode = 'mhlo.layout_mode = "auto"'
    free = f"{row_by_row} {{{mode}}}" if row_by_row.startswith("%") else mode
    assert row_by_row in text
    base = {**TPU, "layout.tile_rows": 1, "layout.tile_columns": 0}
    asked, chosen = (
        read_text(said, base).peak()[0] for said in (text, text.replace(row_by_row, free, 1))
    )
    assert asked - chosen == COPY
