"""Analyses of memory that are functions of records, each alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from test_program_memory import read

from autoshard import _core

# (first program point, behind the last one, bytes)
RESULT = (0, 10, 8.0)
"""A result of ten program points; it is made at 5."""


@pytest.mark.parametrize(
    ("buffers", "made", "reused"),
    [
        ([RESULT, (1, 3, 8.0), (3, 5, 4.0)], [(0, 5)], [-1, 0, 0]),
        ([RESULT, (4, 6, 8.0)], [(0, 5)], [-1, -1]),
        ([RESULT, (1, 3, 9.0)], [(0, 5)], [-1, -1]),
        ([RESULT, (1, 3, 4.0), (2, 4, 8.0)], [(0, 5)], [-1, -1, 0]),
        ([RESULT, (0, 10, 4.0), (1, 3, 4.0)], [(0, 5), (1, 5)], [-1, -1, 1]),
        ([RESULT, (1, 3, 0.0)], [(0, 5)], [-1, -1]),
        ([(1, 3, 8.0)], [], [-1]),
    ],
    ids=[
        "one after the other",
        "not when the result is made",
        "not what is larger",
        "the larger of two at once",
        "the smallest that is large enough",
        "nothing for nothing",
        "no results",
    ],
)
def test_buffers_of_results_are_used_until_they_are_made(
    buffers: list[tuple[int, int, float]], made: list[tuple[int, int]], reused: list[int]
) -> None:
    assert _core.reused_buffers([_core.Buffer(*one) for one in buffers], made, 10) == reused


def test_a_result_must_have_a_buffer() -> None:
    with pytest.raises(ValueError, match="no such buffer"):
        _core.reused_buffers([_core.Buffer(*RESULT)], [(1, 5)], 10)


def waiting(function: object, matrices: int) -> list[bool]:
    """Whether each matmul waits."""
    found = read(function, *[(8, 8)] * matrices)  # pyright: ignore[reportArgumentType]
    flags = _core.matmuls_that_wait(found.program)
    return [flags[i] for i, name in enumerate(found.names) if name == "dot_general"]


def test_of_a_chain_of_products_those_wait_that_no_two_others_follow() -> None:
    assert waiting(lambda x, a, b, c: x @ a @ b @ c, 4) == [False, True, True]
    assert waiting(lambda x, a, b, c: jnp.tanh(jnp.tanh(x @ a) @ b) @ c, 4) == [False, True, True]


def test_products_for_gradients_of_weights_wait_and_those_of_the_layers_before_do_not() -> None:
    def loss(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ a) @ b).sum()

    # Forward x a and h b, from which that of h is computed and of that the one of a; then the
    # gradients of b, h and a.
    assert waiting(jax.grad(loss, (0, 1)), 3) == [False, False, True, True, True]


def test_in_a_loop_every_product_of_the_chain_drives_the_next_trip() -> None:
    def chain(x: jax.Array, a: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, x: x @ a, x)

    assert waiting(chain, 2) == [False]
