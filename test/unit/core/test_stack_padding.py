"""Stacks that loops take slices of, in tiles of memory. Layouts are those of libtpu 0.0.42.1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compiler_answers import GPU, TPU
from test_program_memory import read

TRIPS = 1024


def gradient(state: Any, inputs: Any) -> Any:
    """The gradient of a loop, which stacks its states."""

    def step(state: Any, x: Any) -> tuple[Any, None]:
        return jnp.tanh(state * x), None

    return jax.grad(lambda state: jax.lax.scan(step, state, inputs)[0].sum())(state)


def largest(shape: tuple[int, ...], compiler: dict[str, float]) -> float:
    found = read(gradient, shape, (TRIPS, *shape), compiler=compiler)
    arguments = {argument.value for argument in found.program.arguments}
    return max(size for value, size in found.peak()[2] if value not in arguments)


@pytest.mark.parametrize(
    ("shape", "tiled"),
    [
        ((4, 32, 64, 64), 4 * 32 * 64 * 128),
        ((4, 32, 64), 4 * 32 * 128),
        ((64, 8), 8 * 128),
        ((4, 32), 4 * 128),
        ((4, 1, 64), 4 * 128),
        ((8, 1024, 64), 8 * 1024 * 64),
        ((16, 49, 49), 49 * 16 * 128),
        ((100,), 128),
        ((2048,), 2048),
    ],
)
def test_a_slice_of_a_stack_fills_tiles_alone(shape: tuple[int, ...], tiled: int) -> None:
    """1,024 trips could fill the columns, if no loop wrote one after the other. Shapes are those
    of each of eight devices, between which the first dim is cut."""
    devices = 8 if len(shape) > 1 else 1
    whole = (devices * shape[0], *shape[1:])
    assert largest(whole, TPU) == pytest.approx(TRIPS * devices * tiled * 4)


def test_what_has_no_tiles_pads_no_stacks() -> None:
    assert largest((4, 32, 64), GPU) == TRIPS * 4 * 32 * 64 * 4


def test_an_argument_lies_as_it_is_given() -> None:
    found = read(gradient, (4, 64), (TRIPS, 4, 64))
    inputs = found.program.arguments[1].value
    assert (inputs, TRIPS * 4 * 64 * 4) in found.peak()[2]


def test_slices_outside_of_loops_need_no_tiles_of_their_own() -> None:
    def shifted(x: Any, i: Any) -> Any:
        row = jax.lax.dynamic_index_in_dim(x, i[0].astype(int), 0, keepdims=True)
        return jax.lax.dynamic_update_index_in_dim(jnp.sort(x, 0), row, 0, 0)

    found = read(shifted, (TRIPS, 4, 64), (1,))
    assert max(size for _, size in found.peak()[2]) == TRIPS * 4 * 64 * 4
