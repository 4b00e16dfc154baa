"""What several batches of products read is stored where computing it takes many operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler_answers import TPU
from test_program_memory import read

SCORES = (4, 128, 128)
ROWS = (4, 128, 1)
HEADS = (4, 128, 8)
BYTES = 4 * 128 * 128 * 4


def more_stored(function: Callable[..., Any], *shapes: Any) -> float:
    """Bytes at the peak that are there for the operations alone."""
    found, free = (
        read(function, *shapes, compiler=TPU | {"fusion.most_operations": most}).peak()[0]
        for most in (12.0, 0.0)
    )
    return found - free


def sums(count: int) -> Callable[..., Any]:
    def operand(a: Any, mask: Any) -> Any:
        for number in range(count):
            a = jnp.maximum(a, mask) if number % 2 else a + mask
        return a

    return operand


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "12 sums": (sums(12), (SCORES, SCORES[1:]), False),
    "13 sums": (sums(13), (SCORES, SCORES[1:]), True),
    "exponential, division": (lambda a, m, s: jnp.exp(a - m) / s, (SCORES, ROWS, ROWS), False),
    "and a mask": (
        lambda a, m, s, k: jnp.exp(a - m) / s * k,
        (SCORES, ROWS, ROWS, SCORES[1:]),
        True,
    ),
    "a mask, no division": (
        lambda a, m, s, k: jnp.exp(a - m) * s * k,
        (SCORES, ROWS, ROWS, SCORES[1:]),
        False,
    ),
    "division by a constant": (
        lambda a, m, k: jnp.exp(a - m) / 3 * k,
        (SCORES, ROWS, SCORES[1:]),
        False,
    ),
    "two divisions": (lambda a, m, k: (a / m + 1) / k, (SCORES, ROWS, SCORES[1:]), True),
}


@pytest.mark.parametrize(("operand", "shapes", "expected"), CASES.values(), ids=CASES)
def test_operands_of_many_operations_are_stored(
    operand: Callable[..., Any], shapes: tuple[Any, ...], expected: bool
) -> None:
    """A division counts as ten operations."""

    def run(x: Any, y: Any, *arrays: Any) -> Any:
        p = operand(*arrays)
        return jnp.einsum("bqk,bkd->bqd", p, x), jnp.einsum("bqk,bqd->bkd", p, y)

    assert more_stored(run, HEADS, HEADS, *shapes) == (BYTES if expected else 0)


@pytest.mark.parametrize(
    ("adds", "drops", "expected"),
    [
        ("nothing", True, False),
        ("mask", False, False),
        ("mask", True, True),
        ("ones", True, False),
    ],
)
def test_probabilities_of_attention_are_stored_behind_a_mask_and_dropout(
    adds: str, drops: bool, expected: bool
) -> None:
    """Scores with a mask are in memory in the place of the product, the exponentials of scores
    without one in the place of these; a mask of ones alone is none."""

    def attention(q: Any, k: Any, mask: Any, keep: Any) -> Any:
        scores = jnp.einsum("bqd,bkd->bqk", q, k)
        if adds == "mask":
            scores += mask
        if adds == "ones":
            ones = jax.lax.stop_gradient(jnp.ones((4, 1, 128)))
            scores += jnp.where(ones > 0, 0, -1e9).astype(scores.dtype)
        p = jax.nn.softmax(scores)
        return jnp.einsum("bqk,bkd->bqd", p * keep if drops else p, k)

    def loss(q: Any, k: Any, mask: Any, keep: Any) -> Any:
        q, k, mask, keep = (x.astype(jnp.bfloat16) for x in (q, k, mask, keep))
        for _ in range(3):
            q = attention(q, k, mask, keep)
        return jnp.sum(q.astype(jnp.float32))

    more = more_stored(jax.grad(loss, (0, 1)), HEADS, HEADS, (4, 1, 128), SCORES[1:])
    # Those of the last layer are read before the peak.
    assert more == (2 * BYTES / 2 if expected else 0)
