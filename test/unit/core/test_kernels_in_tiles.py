"""What kernels read and write in tiles of memory, and what loops slice for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module

V5P = Cluster.of("v5p:1x1x1")
LAUNCH = V5P.chip.launch_seconds.value
RATE = V5P.chip.memory_bandwidth.value * V5P.chip.memory_efficiency.value


def seconds_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[tuple[str, float]]:
    """By op of the program its name and the seconds of one run."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function).lower(*arguments).as_text()
    module = parse_bytes(text.encode(), new_context(), "step")
    planned = search_module(module, V5P, RecursiveProgramming())
    names = [op.operation.name.partition(".")[2] for op in planned.imported.core_ops]
    return list(zip(names, planned.plan.op_seconds, strict=True))


@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((64, 32, 64, 64), 2.0),
        # Columns of 96.
        ((64, 16, 96, 48), 4 / 3),
        # A batch fills the columns, channels the rows.
        ((128, 56, 28, 24), 1.0),
        ((8, 4096), 1.0),
    ],
)
def test_a_kernel_writes_padded_tiles_where_no_dim_fills_their_columns(shape, padding) -> None:
    (seconds,) = [s for name, s in seconds_of(lambda x: jnp.negative(x), shape) if name == "negate"]
    elements = 1.0
    for size in shape:
        elements *= size
    # The argument is as it was given.
    assert seconds - LAUNCH == pytest.approx(4 * elements * (1 + padding) / RATE)


def test_what_a_loop_slices_for_a_larger_kernel_is_a_kernel() -> None:
    def states(x: Any) -> Any:
        def step(state: Any, row: Any) -> tuple[Any, Any]:
            return state * row[:, None] + 1, state.sum(0)

        return jax.lax.scan(step, jnp.zeros((128, 256)), x)

    found = dict(seconds_of(states, (64, 128)))
    assert found["dynamic_slice"] > LAUNCH


def test_what_is_as_large_is_a_part_of_the_kernel_that_reads_it() -> None:
    def sums(x: Any) -> Any:
        return jax.lax.scan(
            lambda sum_, row: (jnp.tanh(sum_ + row), None), jnp.zeros((128, 256)), x
        )

    found = dict(seconds_of(sums, (64, 128, 256)))
    assert found["dynamic_slice"] < LAUNCH
