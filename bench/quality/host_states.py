"""Optimizer states in the memory of the host: what a step needs by plan and by compiler.

    python bench/quality/host_states.py [--layers 20] [--no-compile]

A train step of float32 matrices 16384 x 16384, batch 512, Adam, all arguments donated, for
``v5e:2x2``: marked with ``autoshard.in_host_memory``, and with ``host_offload="auto"``. Needs
``autoshard[tpu]`` to compile, no TPU; a compile takes half a minute to some minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import optax
from rich.console import Console
from rich.table import Table

import autoshard
from bench.common import results
from bench.common.corpus import machine

CLUSTER, WIDTH, BATCH, GIB = "v5e:2x2", 16384, 512, 2**30
OPTIMIZER = optax.adam(1e-3)
struct = jax.ShapeDtypeStruct


def loss(layers: Any, x: Any) -> Any:
    for layer in layers:
        x = jnp.tanh(x @ layer)
    return (x**2).mean()


def step(layers: Any, state: Any, x: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(layers, x)
    updates, state = OPTIMIZER.update(gradients, state, layers)
    return optax.apply_updates(layers, updates), state, value


def step_with_marks(layers: Any, state: Any, x: Any) -> Any:
    return step(layers, autoshard.in_host_memory(state), x)


def row(way: str, layers: int, compiles: bool) -> list[str]:
    """One way to keep the states, planned and compiled."""
    matrices = [struct((WIDTH, WIDTH), jnp.float32)] * layers
    arguments = (
        matrices,
        jax.eval_shape(OPTIMIZER.init, matrices),
        struct((BATCH, WIDTH), jnp.float32),
    )
    is_auto = way == "auto"
    plan = autoshard.plan(
        step if is_auto else step_with_marks,
        *arguments,
        cluster=CLUSTER,
        donate_argnums=(0, 1, 2),
        host_offload="auto" if is_auto else "marks",
    )
    assert plan.summary is not None
    moved = sum(value.is_on_host for value in plan.arguments)
    needed = ""
    if compiles:
        needed = f"{(plan.verify().program.live_bytes or 0) / GIB:.2f}"
    return [
        f'`host_offload="auto"`: {moved} states' if is_auto else "`in_host_memory`",
        f"{plan.summary.peak_bytes_per_device / GIB:.2f}",
        needed,
        f"{plan.summary.host_bytes_per_device / GIB:.2f}",
        f"{plan.summary.step_seconds:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true")
    results.add_option(parser, "host_states")
    options = parser.parse_args()
    console = Console(width=120)
    console.print(machine())
    table = Table("states", "planned, GiB", "compiled, GiB", "on the host, GiB", "step, s")
    for way in ("marks", "auto"):
        table.add_row(*row(way, options.layers, not options.no_compile))
    console.print(table)
    results.write(options.csv, table)


if __name__ == "__main__":
    main()
