"""Collectives that a compiler joins: seconds of communication, planned and compiled.

    python bench/truth/joined_collectives.py [--cluster NAME] [--csv FILE]

Train steps of six layers with norms and biases, whose many small gradients and weights XLA:GPU
sends as few large ones: written out and in a scan, data parallel and with all weights cut. Each is
planned with and without the row ``collectives.joined_bytes`` (docs/design/compilers.md); what is
compiled is the plan with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import autoshard
from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.pipeline import run_passes
from autoshard.verify.step_time import estimate_step
from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.common.corpus import machine

LAYERS, FEATURES, HIDDEN, BATCH, TOKENS = 6, 1024, 4096, 64, 512
ALONE = "without=collectives.joined_bytes"
HEADS = ("layers", "split", "each alone ms", "planned ms", "compiled ms", "ratio", "collectives")
P = jax.sharding.PartitionSpec


def layer(x: Any, p: Any) -> Any:
    """A norm and a feed-forward layer, with biases."""
    wide = x.astype(jnp.float32)
    from_mean = wide - wide.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((from_mean**2).mean(-1, keepdims=True) + 1e-5)
    normed = (from_mean * scale * p["scale"] + p["shift"]).astype(x.dtype)
    return x + jax.nn.gelu(normed @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]


def train_step(in_scan: bool) -> tuple[Any, Sequence[Any]]:
    """A step of gradient descent, and the types of its arguments."""

    def loss(params: Any, x: Any) -> Any:
        if in_scan:
            x, _ = jax.lax.scan(lambda x, p: (layer(x, p), None), x, params)
        else:
            for p in params:
                x = layer(x, p)
        return (x.astype(jnp.float32) ** 2).mean()

    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), params, gradients)

    shapes = {
        **{"scale": (FEATURES,), "shift": (FEATURES,)},
        **{"up": (FEATURES, HIDDEN), "up_bias": (HIDDEN,)},
        **{"down": (HIDDEN, FEATURES), "down_bias": (FEATURES,)},
    }

    def struct(name: str) -> Any:
        shape = ((LAYERS,) if in_scan else ()) + shapes[name]
        kind = jnp.float32 if name in ("scale", "shift") else jnp.bfloat16
        return jax.ShapeDtypeStruct(shape, kind)

    one = {name: struct(name) for name in shapes}
    x = jax.ShapeDtypeStruct((BATCH, TOKENS, FEATURES), jnp.bfloat16)
    return step, (one if in_scan else [one] * LAYERS, x)


def measure(cluster: Cluster, in_scan: bool, is_cut: bool) -> tuple[float, float, float, int]:
    """Milliseconds with each alone, planned, compiled, and collectives that run."""
    step, arguments = train_step(in_scan)
    options: dict[str, Any] = {"mode": "data_parallel"}
    if is_cut:
        of_layers = P(None, "d") if in_scan else P("d")
        options = {"mesh": f"d={cluster.num_devices}", "in_shardings": (of_layers, P("d"))}

    def planned(compiler: str | None) -> autoshard.Plan:
        return autoshard.plan(
            *(step, *arguments),
            cluster=cluster.name,
            compiler=compiler,
            donate_argnums=0,
            **options,
        )

    plan = planned(None)
    alone = planned(f"{cluster.chip.compiler}:{ALONE}")
    module = parse_bytes(plan.bytecode, new_context(), "step")
    run_passes(module, ["autoshard-export-shardy"])
    compiled = cached_compile(module, cluster, timeout=900)
    assert compiled.hlo_text is not None, f"{cluster.name}: no text"
    found = estimate_step(compiled.hlo_text, plan.mesh, cluster)
    seconds = alone.communication_seconds, plan.communication_seconds, found.communication_seconds
    count = sum(int(each.collective.times) for each in found.collectives)
    return *(1e3 * one for one in seconds), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", default="h100:8")
    results.add_option(parser, "joined_collectives")
    options = parser.parse_args()
    cluster = Cluster.of(options.cluster)
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title=f"Seconds of communication of a step on {cluster.name}")
    for index, head in enumerate(HEADS):
        table.add_column(head, justify="left" if index < 2 else "right")
    rows: list[list[str]] = []
    for in_scan in (False, True):
        for is_cut in (False, True):
            alone, planned, compiled, count = measure(cluster, in_scan, is_cut)
            rows.append(
                [
                    "in a scan" if in_scan else "written out",
                    "weights cut" if is_cut else "data parallel",
                    *(f"{each:.2f}" for each in (alone, planned, compiled, planned / compiled)),
                    str(count),
                ]
            )
            table.add_row(*rows[-1])
    console.print(table)
    results.write_rows(options.csv, HEADS, rows)
    console.print(f"{machine()}.")


if __name__ == "__main__":
    main()
