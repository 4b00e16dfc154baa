"""What concatenations join, where their kernels find it in memory (`fusion.joined_columns`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from compiler_answers import GPU, TPU
from test_program_memory import EMPTY, read

ROWS = (64, 256)


def computed(x: Any, a: Any) -> Any:
    return jnp.concatenate([jnp.tanh(x), a], 1).sum(1)


def halves_of_tiles(x: Any, _: Any) -> Any:
    y = jnp.sort(x, 0)
    return jnp.concatenate([y[:, 64:], y[:, :64]], 1).sum(1)


def whole_tiles(x: Any, _: Any) -> Any:
    y = jnp.sort(x, 0)
    return jnp.concatenate([y[:, 128:], y[:, :128]], 1).sum(1)


@pytest.mark.parametrize(
    ("function", "name", "compiler", "stored"),
    [
        (computed, "tanh", TPU, True),
        (computed, "tanh", GPU, False),
        (halves_of_tiles, "slice", TPU, True),
        (halves_of_tiles, "slice", GPU, False),
        (whole_tiles, "slice", TPU, False),
    ],
)
def test_a_concatenation_reads_what_it_joins(
    function: Callable[..., Any], name: str, compiler: dict[str, float], stored: bool
) -> None:
    found = read(function, ROWS, ROWS, compiler=compiler)
    assert (found.life(name) != EMPTY) == stored
    # It is a part of the sum.
    assert found.life("concatenate") == EMPTY


def test_arguments_are_joined_where_they_lie() -> None:
    found = read(lambda x, a: jnp.concatenate([x, a], 1).sum(1), ROWS, ROWS)
    assert found.peak()[0] == (2 * 64 * 256 + 64) * 4
