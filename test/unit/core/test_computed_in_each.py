"""What several kernels read, and compute each for itself (`fusion.most_reread`, `fusion.masks`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from compiler_answers import GPU, TPU
from test_program_memory import EMPTY, read

ROWS = (256, 256)


def reductions(of: int, by: int) -> Callable[..., Any]:
    """A product of ``of`` arrays in memory that ``by`` reductions read, each with one more."""

    def function(*arrays: Any) -> Any:
        made, *others = [jnp.sort(array, 0) for array in arrays[:of]]
        for other in others:
            made = made * other
        return [jnp.sum(made + own, axis=n % 2) for n, own in enumerate(arrays[of:])]

    return function


@pytest.mark.parametrize(
    ("of", "by", "stored"), [(2, 2, False), (3, 2, False), (2, 3, False), (3, 3, True)]
)
def test_loops_compute_again_what_moves_no_more(of: int, by: int, stored: bool) -> None:
    found = read(reductions(of, by), *[ROWS] * (of + by))
    assert (found.life("multiply", of - 2) != EMPTY) == stored


@pytest.mark.parametrize(("compiler", "stored"), [(TPU, True), (GPU, False)])
def test_beside_a_product_less_is_read_again(compiler: dict[str, float], stored: bool) -> None:
    def function(x: Any, y: Any, w: Any) -> Any:
        made = jnp.sort(x, 0) * jnp.sort(y, 0)
        return made @ w, made.sum(1)

    answers = {**compiler, "fusion.matmul_operands": 1}
    found = read(function, ROWS, ROWS, (256, 64), compiler=answers)
    assert (found.life("multiply") != EMPTY) == stored


def leaky(x: Any) -> Any:
    """A mask that two kernels read, of a product that one of them reads, too."""
    made = jnp.sort(x, 0)
    mask = made > 0
    return jnp.where(mask, made, 0.1 * made).sum(0), jnp.where(mask, 1.0, 0.1)


def dropped(bits: Any, x: Any, y: Any) -> Any:
    mask = jnp.sort(bits, 0) > 0.1
    return jnp.where(mask, x, 0.0).sum(0), jnp.where(mask, y, 0.0)


def narrow(x: Any) -> Any:
    """No mask: integers of a byte are as wide as what they are computed from."""
    made = jnp.sort(x.astype(jnp.int8), 0)
    more = made + made[0]
    return jnp.where(made > 0, more, made).sum(0), more * made


def compared(x: Any, y: Any) -> Any:
    x, y = jnp.sort(x, 0), jnp.sort(y, 0)
    mask = x > y
    return jnp.where(mask, x, y).sum(0), jnp.where(mask, 1.0, 0.1)


@pytest.mark.parametrize(
    ("function", "arguments", "stored"),
    [(leaky, 1, False), (dropped, 3, True), (compared, 2, True)],
)
def test_masks_of_a_value_that_is_there_are_not_stored(
    function: Callable[..., Any], arguments: int, stored: bool
) -> None:
    found = read(function, *[ROWS] * arguments, compiler={**TPU, "fusion.row_reductions": 0})
    assert (found.life("compare") != EMPTY) == stored


def test_integers_of_a_byte_are_no_masks() -> None:
    with_rule, without = (
        read(narrow, ROWS, compiler={**TPU, "fusion.masks": rule}).writes for rule in (1, 0)
    )
    assert with_rule == without
