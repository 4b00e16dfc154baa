"""What it takes to compare a compiled program with its plan, beside the search for the plan.

    python bench/speed/check_compiled.py [--layers 8 32] [--rounds 5]

A train step of equal layers with AdamW, written out, planned and compiled for 8 virtual CPU
devices. CPU seconds of this thread, of a process with nothing read yet: the best of several rounds,
each of which plans and compiles anew.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp
import optax

import autoshard
from autoshard.frontend.checks import check_compiled

WIDTH, ROWS = 256, 64


def main() -> None:
    """Print a line for each number of layers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print("layers    ops  search ms  compare ms  share")
    for layers in asked.layers:
        ops, search, compare = measured(layers, asked.rounds)
        print(
            f"{layers:>6}  {ops:>5}  {search * 1e3:>9.0f}  {compare * 1e3:>10.0f}"
            f"  {compare / search:>5.1%}"
        )


def measured(layers: int, rounds: int) -> tuple[int, float, float]:
    """Ops of the program, and the fewest seconds of the search and of comparing."""
    found: list[tuple[int, float, float]] = []
    for _ in range(rounds):
        step, arguments = program(layers)
        jitted: Any = autoshard.jit(step, cluster="cpu:8", check="off")
        plan = jitted.plan(*arguments)
        compiled = jitted.lower(*arguments).compile()
        start = time.thread_time()
        check_compiled(plan, compiled)
        took = time.thread_time() - start
        found.append((len(plan.ops), sum(plan.planning_seconds.values()), took))
    ops, searches, compares = zip(*found, strict=True)
    return ops[0], min(searches), min(compares)


def program(layers: int) -> tuple[Any, tuple[Any, ...]]:
    """A step and the types of its arguments."""

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {
        "norm": array(WIDTH),
        "mix": array(WIDTH, WIDTH),
        "up": array(WIDTH, 4 * WIDTH),
        "down": array(4 * WIDTH, WIDTH),
    }
    params, optimizer = [layer] * layers, optax.adamw(1e-3)

    def step(params: Any, state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for p in params:
                h = h + jax.nn.gelu(((h * p["norm"]) @ p["mix"]) @ p["up"]) @ p["down"]
            return (h**2).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, jax.eval_shape(optimizer.init, params), array(ROWS, WIDTH))


if __name__ == "__main__":
    main()
