"""Pads between elements, which are kernels of their own (`fusion.stored_pads`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler_answers import GPU, TPU
from test_program_memory import EMPTY, read

ROWS = (64, 256)


def between(x: Any) -> Any:
    return jax.lax.pad(jnp.tanh(x), 0.0, ((0, 1, 1), (0, 0, 0))).sum(1)


def at_the_end(x: Any) -> Any:
    return jax.lax.pad(jnp.tanh(x), 0.0, ((0, 64, 0), (0, 0, 0))).sum(1)


@pytest.mark.parametrize(
    ("function", "compiler", "stored"),
    [(between, TPU, True), (between, GPU, False), (at_the_end, TPU, False)],
)
def test_pads_between_elements_read_and_write_memory(
    function: Any, compiler: dict[str, float], stored: bool
) -> None:
    found = read(function, ROWS, compiler=compiler)
    assert (found.life("tanh") != EMPTY) == stored
    assert (found.life("pad") != EMPTY) == stored
