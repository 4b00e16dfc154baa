"""What a step sends whose micro-batches' gradients are reduced once, beside one that reduces each.

    python bench/quality/reduce_once.py [--micro-batches 4] [--csv] [CLUSTER ..]

Small steps, the batch pinned to one axis of all devices, everything else as the search finds it.
``in trips`` is that plan, ``once`` the same after ``autoshard-reduce-once``. ``planned`` are bytes
that one device sends in a step by the plan; all behind it is of the compiler's program: these
bytes, the step as scheduled, and the memory of a device.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import optax
from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.attributes import MESH, PIN
from autoshard.ir.boundary import main_function, with_attribute
from autoshard.passes.micro_batch import MicroBatch
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import RecursiveProgramming
from autoshard.passes.reduce_once import ReduceOnce
from autoshard.verify.verification import Verification, verify_module
from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.common.corpus import machine
from bench.programs.llama import ROLES, Config, train_step
from bench.programs.lowered import lower

_LLAMA = Config(features=1024, hidden=2816, heads=16, kv_heads=16, layers=2, batch=128, tokens=1024)

Made = tuple[Any, tuple[str, ...], tuple[Any, ...]]
"""A step, the roles of its arguments, and their shapes."""


def llama(**changes: Any) -> Made:
    """Two layers, computed in bfloat16."""
    step, arguments = train_step(dataclasses.replace(_LLAMA, **changes))
    return step, ROLES, arguments


def residuals() -> Made:
    """Two residual layers and a tied embedding, all in float32."""
    width, words, examples = 1024, 4096, 65536

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        hidden = params["embedding"][tokens]
        for weights in params["layers"]:
            hidden = hidden + jnp.maximum(hidden @ weights, 0)
        logits = hidden @ params["embedding"].T
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens))

    def step(params: Any, tokens: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    struct = jax.ShapeDtypeStruct
    layers = [struct((width, width), jnp.float32)] * 2
    params = {"embedding": struct((words, width), jnp.float32), "layers": layers}
    return step, ("params", "batch"), (params, struct((examples, 4), jnp.int32))


PROGRAMS: dict[str, Callable[[], Made]] = {
    "llama, unrolled": llama,
    "llama, scanned, recomputed": lambda: llama(scan=True, remat=True),
    "residual layers, float32": residuals,
}
CLUSTERS = ("h100:8", "h100:4x8", "v5p:2x2x2")
HEADS = (
    "program",
    "cluster",
    "reduced",
    "sums",
    "planned MB",
    "compiled MB",
    "step ms",
    "peak MiB",
)


def planned(made: Made, cluster: str, micro_batches: int) -> mlir.Module:
    """The step in micro-batches, planned with its batch cut by all devices."""
    step, roles, arguments = made
    module = parse_bytes(lower(step, roles, *arguments).bytecode, new_context(), "step")
    count = len(main_function(module).regions[0].blocks[0].arguments)
    batch = range(count - roles.count("batch"), count)
    run_passes(module, [MicroBatch(micro_batches, tuple(batch))])
    with module.context:
        size = Cluster.of(cluster).num_devices
        module.operation.attributes[MESH] = mlir.StringAttr.get(f"data={size}")
        pin = mlir.StringAttr.get("[{data}, {?}]")
    with_attribute(main_function(module), "arg_attrs", PIN, pin, batch)
    run_passes(module, [RecursiveProgramming(cluster=cluster)])
    return module


def verified(module: mlir.Module, cluster: str) -> Verification:
    """What the compiler makes of it."""
    return verify_module(module, Cluster.of(cluster), compiler=cached_compile)


def rows(clusters: list[str], micro_batches: int) -> Iterator[tuple[str, ...]]:
    """Two a program and cluster."""
    for name, made in PROGRAMS.items():
        for cluster in clusters:
            module = planned(made(), cluster, micro_batches)
            yield row(name, cluster, "in trips", verified(module, cluster))
            run_passes(module, [ReduceOnce(cluster=cluster)])
            yield row(name, cluster, "once", verified(module, cluster))


def row(name: str, cluster: str, how: str, found: Verification) -> tuple[str, ...]:
    """Cells of one plan."""
    reduced, peak = found.predicted.reduced_once, found.program.peak_bytes
    assert found.collectives is not None, "it fits"
    assert found.estimate is not None, "it fits"
    assert peak is not None, "it fits"
    return (
        name,
        cluster,
        how,
        "" if reduced is None else str(reduced.count),
        f"{sum(each.total_bytes for each in found.predicted.collectives) / 1e6:,.1f}",
        f"{found.collectives.compiled_bytes / 1e6:,.1f}",
        f"{found.estimate.step_seconds * 1e3:,.2f}",
        f"{peak / 2**20:,.0f}",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("clusters", nargs="*", default=list(CLUSTERS))
    parser.add_argument("--micro-batches", type=int, default=4)
    results.add_option(parser, "reduce_once")
    options = parser.parse_args()
    table = Table(title=f"{options.micro_batches} micro-batches; {machine()}")
    for head in HEADS:
        table.add_column(head)
    for cells in rows(options.clusters, options.micro_batches):
        print(*cells, sep=" | ", flush=True, file=sys.stderr)
        table.add_row(*cells)
    Console(width=180).print(table)
    results.write(options.csv, table)


if __name__ == "__main__":
    main()
