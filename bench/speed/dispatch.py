"""Host time of a call of ``autoshard.jit`` beside ``jax.jit`` with the same shardings.

    python bench/speed/dispatch.py [--arrays 2 21 201] [--devices 1 8] [--calls 500]

CPU devices; with one of them nothing but the host is measured. Thread CPU time, the best of seven
rounds in which both take turns. ``donated``: the step's state, which it returns. On several CPU
devices jaxlib 0.10.2 ends the process where an argument is deleted, and autoshard looks first.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp

import autoshard

_ROUNDS = 7


def main() -> None:
    """Print a line for each number of arrays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrays", type=int, nargs="+", default=[2, 21, 201])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--calls", type=int, default=500)
    asked = parser.parse_args()
    print("devices  arrays  donated  autoshard.jit us  jax.jit us  ratio")
    for devices, arrays, donated in itertools.product(asked.devices, asked.arrays, (False, True)):
        ours, jax_own = measured(devices, arrays, donated, asked.calls)
        print(
            f"{devices:>7}  {arrays:>6}  {donated!s:>7}  {ours:>16.1f}  {jax_own:>10.1f}"
            f"  {ours / jax_own:>5.2f}"
        )


def measured(devices: int, arrays: int, donated: bool, calls: int) -> tuple[float, float]:
    """Microseconds of a call of ``autoshard.jit`` and of ``jax.jit``."""
    names = [f"w{number}" for number in range(arrays - 1)]

    def step(params: dict[str, Any], x: Any) -> dict[str, Any]:
        return {name: array + x[0, 0] for name, array in params.items()}

    def arguments() -> Any:
        return {name: jnp.ones((8, 8)) for name in names}, jnp.ones((8, 8))

    donate = {"donate_argnums": 0} if donated else {}
    pins = ({name: jax.P("d") for name in names}, jax.P())
    planned: Any = autoshard.jit(step, mesh=f"d={devices}", in_shardings=pins, **donate)
    plan: Any = planned.plan(*arguments())
    plain = jax.jit(
        step, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings, **donate
    )
    best = [float("inf"), float("inf")]
    for _ in range(_ROUNDS):
        for which, fn in enumerate((planned, plain)):
            best[which] = min(best[which], _microseconds(fn, plan.place(*arguments()), calls))
    return best[0], best[1]


def _microseconds(fn: Callable[..., Any], arguments: tuple[Any, Any], calls: int) -> float:
    params, x = arguments
    for _ in range(3):
        params = fn(params, x)
    jax.block_until_ready(params)
    start = time.thread_time()
    for _ in range(calls):
        params = fn(params, x)
    took = time.thread_time() - start
    jax.block_until_ready(params)
    return took / calls * 1e6


if __name__ == "__main__":
    main()
