"""What several kernels read, and compute each for itself (`fusion.most_reread`)."""

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
