"""What it saves and costs that barriers of recomputed layers wait for gradients.

    python bench/quality/gradient_order.py [--layers N] [--tokens N ...] [--clusters NAME ...]
                                           [--plans KIND ...]

Plans feed-forward layers that are computed again in the backward pass (FSDP or data parallel) and
compiles them ahead of time three times: as they are without such barriers, with gradients that go
through the next barrier, and through the one after it, which is what autoshard does for GPUs. The
milliseconds are those of the compiled schedule: kernels one after the other as ``estimate_step``
times them, one collective at a time beside them from its start to its done. Compiled programs are
kept (bench/common/compile_cache.py).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import attach
from bench.common.sources import of_case

BARRIERS = {"none": None, "next": 0, "the one after": 1}


def schedule_seconds(text: str, mesh: Any, cluster: Any) -> float:
    """From the first to the last op of a scheduled program without loops.

    Raises:
        ValueError: A collective begins and never ends.
    """
    from autoshard.verify import step_time

    program = step_time.HloProgram.parse(text)
    priced = step_time.CollectiveSeconds(cluster, mesh)
    found = step_time.find_collectives(program, mesh, 1)
    seconds = iter([priced.of(one.collective, one.groups) for one in found])
    ops = step_time._Ops(program, cluster)
    now = sent = 0.0
    ends: dict[str, float] = {}
    started = ""
    for run in program.runs(1):
        op = run.instruction
        if op.opcode == "async-start":
            started = op.name
        elif op.opcode.endswith("-done"):
            operand = next((name for name in ends if name in map(str, op.operands)), None)
            now = max(now, ends.pop(operand)) if operand else now
        elif step_time._is_communication(op, program):
            sent = max(sent, now) + next(seconds)
            if op.opcode.endswith("-start"):
                ends[op.name] = sent
            elif "async_computation" in run.computation.name:
                ends[started] = sent
            else:
                now = sent
        elif op.opcode not in step_time._CONTROL | step_time._COPIES:
            now += ops.timed(op, run.computation, 1)[0].seconds
    if ends:
        raise ValueError(f"no end of {', '.join(ends)}")
    return now


def row(layers: int, tokens: int, cluster_name: str, kind: str, barriers: int | None) -> list[str]:
    """Planned and compiled GiB, milliseconds."""
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardWarning
    from autoshard.passes import gradient_order, recursive_programming
    from autoshard.passes.pipeline import run_passes
    from autoshard.sharding import Mesh
    from bench.common.compile_cache import cached_compile
    from bench.common.hand_plans import hand_plans
    from bench.programs.storage import feed_forward
    from bench.truth.fidelity import chosen

    warnings.simplefilter("ignore", AutoshardWarning)
    cluster = Cluster.of(cluster_name)
    module, arguments = of_case(feed_forward(remat=True, layers=layers, tokens=tokens))
    plan = chosen(hand_plans(arguments, cluster.num_devices), kind)
    attach(module, plan.sdy_axes, plan.sdy_cuts())
    options = recursive_programming.RecursiveProgramming(mesh=plan.mesh)
    changed = (
        mock.patch.object(
            recursive_programming, "bound_gradients", lambda _, __, operations: operations
        )
        if barriers is None
        else mock.patch.object(gradient_order, "_BARRIERS_LATE", barriers)
    )
    with changed:
        summary = recursive_programming.search_module(module, cluster, options).summary
    run_passes(module, ["autoshard-export-shardy"])
    found = cached_compile(module, cluster)
    seconds = schedule_seconds(found.hlo_text, Mesh.parse(summary.mesh), cluster)
    planned, compiled = (x / 2**30 for x in (summary.peak_bytes_per_device, found.live_bytes))
    return [f"{planned:.2f}", f"{compiled:.2f}", f"{seconds * 1e3:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Barriers that wait for gradients.")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=[262144, 32768])
    parser.add_argument("--clusters", nargs="+", default=["h100:8"])
    parser.add_argument("--plans", nargs="+", default=["fsdp", "data"])
    results.add_option(parser, "gradient_order")
    said = parser.parse_args()
    table = Table(title=f"{said.layers} layers, computed again in the backward pass")
    for head in ("tokens", "cluster", "plan", "barrier", "planned GiB", "compiled GiB", "ms"):
        table.add_column(head, justify="right")
    for tokens in said.tokens:
        for cluster in said.clusters:
            for kind in said.plans:
                for name, barriers in BARRIERS.items():
                    cells = row(said.layers, tokens, cluster, kind, barriers)
                    table.add_row(str(tokens), cluster, kind, name, *cells)
    Console(width=110).print(table)
    results.write(said.csv, table)


if __name__ == "__main__":
    main()
