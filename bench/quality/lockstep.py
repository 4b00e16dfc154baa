"""Pipelines in lockstep beside those of programs for each stage, as they run.

    python bench/quality/lockstep.py [--unit 10] [--csv]

Layers are a scan whose trips sleep, one unit forwards and two backwards, as in
``pipeline_execution.py``; each stage has two. ``simulated`` is what sleeps: in lockstep the turns
of both loops over layers, else the schedule. ``executed`` is the best of 3 steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import autoshard
from autoshard.schedule.rules import schedule_of_works
from autoshard.schedule.work import Work
from bench.common import results
from bench.quality.pipeline_execution import WIDTH, layer, register_nap

CASES = ((2, 4), (2, 8), (2, 16), (4, 4), (4, 8), (4, 16))
"""Stages and micro-batches."""
LAYERS = 2
"""How many a stage has."""
Way = Literal["1f1b", "gpipe", "lockstep"]


def step_of(unit: float) -> Callable[..., Any]:
    """A train step over stacked layers."""
    times = (round(1e6 * unit), round(1e6 * unit), round(1e6 * unit))

    def step(weights: jax.Array, x: jax.Array) -> Any:
        def loss(weights: jax.Array) -> jax.Array:
            hidden, _ = jax.lax.scan(lambda h, own: (layer(h, own, times), None), x, weights)
            return jnp.sum(jnp.square(hidden))

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 1e-3 * gradient, value

    return step


def executed(way: Way, stages: int, micro_batches: int, unit: float) -> float:
    """Seconds of a step; the best of three."""
    weights = np.broadcast_to(np.eye(WIDTH, dtype=np.float32), (LAYERS * stages, WIDTH, WIDTH))
    x = np.ones((WIDTH * micro_batches, WIDTH), np.float32)
    if way == "lockstep":
        pipeline = autoshard.Pipeline(stages, micro_batches, execution="lockstep")
    else:
        pipeline = autoshard.Pipeline(stages, micro_batches, way)
    step: Any = autoshard.jit(
        step_of(unit), cluster=f"cpu:{stages}", pipeline=pipeline, batch_argnums=1
    )
    arguments: Any = step.plan(weights, x).place(weights, x)
    jax.block_until_ready(step(*arguments))
    found: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        found.append(time.perf_counter() - start)
    return min(found)


def simulated(way: Way, stages: int, micro_batches: int, unit: float) -> float:
    """Seconds that stages sleep or wait, none of what else they do."""
    forward = LAYERS * unit
    if way == "lockstep":
        return (micro_batches + stages - 1) * 3 * forward
    works: list[Work] = []
    for stage in range(stages - 1):
        works.append(Work("F", stage, forward, (stage - 1,) if stage else (), 1, 1))
    last = stages - 1
    works.append(Work("FB", last, 3 * forward, (last - 1,), 0, 0))
    for stage in range(last)[::-1]:
        works.append(Work("B", stage, 2 * forward, (len(works) - 1, stage), -1, -1))
    return schedule_of_works(way, tuple(works), stages, micro_batches, 1, 0.0).seconds


def main() -> int:
    """Print the table; 1 if lockstep takes more than a tenth longer than simulated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unit", type=float, default=10, help="milliseconds of a unit (10)")
    results.add_option(parser, "lockstep")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 4)
    register_nap()
    unit = options.unit / 1e3
    table = Table("stages", "micro-batches", "by", "simulated ms", "executed ms", "more")
    worst = 0.0
    for stages, micro_batches in CASES:
        ways: tuple[Way, ...] = ("1f1b", "gpipe", "lockstep")
        for way in ways:
            wanted = simulated(way, stages, micro_batches, unit)
            found = executed(way, stages, micro_batches, unit)
            more = found / wanted - 1
            cells = (stages, micro_batches, way, f"{1e3 * wanted:.0f}", f"{1e3 * found:.0f}")
            table.add_row(*map(str, cells), f"{more:+.1%}")
            worst = max(worst, more if way == "lockstep" else 0.0)
    Console(width=110).print(table)
    results.write(options.csv, table)
    return int(worst > 0.1)


if __name__ == "__main__":
    sys.exit(main())
