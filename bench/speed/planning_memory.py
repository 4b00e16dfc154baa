"""Memory of a process that plans one program after the other.

    python bench/speed/planning_memory.py [--programs 300] [--jit]

Programs of ten sizes and three forms in turn are planned for four clusters, each as a function of
its own, and dropped. Printed are resident MiB every 25 programs and the growth from the 50th to the
last. ``--jit``: each is also compiled and run on 8 CPU devices.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp

import autoshard

_CLUSTERS = ("v5e:2x4", "h100:8", "cpu:8", "v5p:2x2x2")
_SETTLED = 50
"""Programs after which everything that is kept for good has been made."""


def main() -> None:
    """Plan, and print memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--jit", action="store_true")
    asked = parser.parse_args()
    settled = resident_mib()
    for number in range(1, asked.programs + 1):
        plan_one(number, asked.jit)
        if number % 25 == 0 or number == asked.programs:
            gc.collect()
            print(f"{number:>4} programs: {resident_mib():.0f} MiB", flush=True)
        if number == _SETTLED:
            settled = resident_mib()
    print(f"from the {_SETTLED}th: {resident_mib() / settled - 1:+.1%}")


def plan_one(number: int, runs: bool) -> None:
    """Make a program, plan it, and forget it."""
    step = _step(number % 3)
    width, rows = 64 + 8 * (number % 10), 128
    weights: Any = [jax.ShapeDtypeStruct((width, width), "float32") for _ in range(4)]
    x: Any = jax.ShapeDtypeStruct((rows, width), "float32")
    if runs:
        weights, x = [jnp.ones(w.shape) for w in weights], jnp.ones(x.shape)
        jax.block_until_ready(autoshard.jit(step, cluster="cpu:8")(weights, x))
    else:
        autoshard.plan(step, weights, x, cluster=_CLUSTERS[number % len(_CLUSTERS)])


def _step(form: int) -> Callable[[Any, Any], Any]:
    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            h = x
            for w in weights:
                h = jnp.tanh(h @ w) if form else jax.nn.softmax(h @ w) + h
            return (h * h).mean()

        gradients = jax.grad(loss)(weights)
        return [w - g if form < 2 else w * 0.9 - g for w, g in zip(weights, gradients, strict=True)]

    return step


def resident_mib() -> float:
    """Memory of this process, as Linux counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
