"""A train step of the size of Llama-2-70B, planned and compiled for 65,536 devices.

    python bench/speed/pods.py [--cluster v5p:16x16x16*16] [--batch 16384] [--form shardy]

The layers are scanned and recomputed; nothing is allocated and no device is needed. A row says what
it took JAX to trace and lower, autoshard to plan and export, and the TPU's compiler to compile
(libtpu, from the extra ``tpu``), how much memory the compiler took of this machine, and what both
say of the program: bytes of a device at the peak and the bytes it sends. A compiler that is not
done in time or fails is a row as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.errors import AutoshardError, CompileError
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import RecursiveProgramming, plan_automatically
from autoshard.planned.collective import total_bytes
from autoshard.planned.module import read_plan
from autoshard.planned.summary import bytes_text
from autoshard.sharding import Mesh
from autoshard.verify.ahead_of_time import CompiledProgram
from autoshard.verify.hlo_collectives import hlo_collectives
from bench.common.compile_cache import cached_compile
from bench.common.corpus import count_ops, in_a_process, machine

CLUSTERS = ("v5p:16x16x16", "v5p:16x16x16*4", "v5p:16x16x16*16")
"""4,096, 16,384 and 65,536 devices."""


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Lower, plan, export and compile for the cluster ``name``; the row."""
    from bench.programs import llama
    from bench.programs.lowered import lower

    cluster = Cluster.parse(name)
    config = dataclasses.replace(
        llama.LLAMA2[given.size], scan=True, remat=True, batch=given.batch, tokens=given.tokens
    )
    row: dict[str, Any] = {"devices": cluster.num_devices}
    clock = _Clock(row)
    step, arguments = llama.train_step(config)
    lowered = lower(step, llama.ROLES, *arguments)
    clock.stop("lower")
    module = parse_bytes(lowered.bytecode, new_context(), name)
    row["ops"] = count_ops(module)
    clock.stop("read")
    try:
        plan = plan_automatically(module, cluster, RecursiveProgramming(cluster=name))
    except AutoshardError as error:
        return row | {"failed": f"planning: {error.message[:160]}"}
    clock.stop("plan")
    row |= {
        "mesh": plan.mesh,
        "step": plan.step_seconds,
        "peak": plan.peak_bytes_per_device,
        "sent": sum(one.total_bytes for one in plan.collectives),
    }
    with module.context:
        mesh = read_plan(module).mesh
    run_passes(module, [f"autoshard-export-{given.form}"])
    clock.stop("export")
    row["planner_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        compiled = cached_compile(
            module, cluster, use_shardy=given.form == "shardy", timeout=given.timeout
        )
    except CompileError as error:
        return row | {"failed": error.message[:300]}
    return row | _compiled(compiled, mesh)


class _Clock:
    """Seconds of each phase, into a row."""

    def __init__(self, row: dict[str, Any]) -> None:
        self._row = row
        self._last = time.perf_counter()

    def stop(self, phase: str) -> None:
        now = time.perf_counter()
        self._row[f"{phase}_seconds"] = now - self._last
        self._last = now


def _compiled(program: CompiledProgram, mesh: Mesh) -> dict[str, Any]:
    found: dict[str, Any] = {
        "compile_seconds": program.compile_seconds,
        "compiler_bytes": program.host_bytes,
        "compiler": program.compiler,
        "fits": program.fits,
        "needed": program.needed_bytes,
        "usable": program.usable_bytes,
    }
    if program.hlo_text is None:
        return found | {"note": program.no_hlo_text}
    found["hlo_sent"] = total_bytes(hlo_collectives(program.hlo_text, mesh))
    found["hlo_bytes"] = len(program.hlo_text)
    return found


_COLUMNS = (
    ("devices", "devices", lambda v: f"{v:,}"),
    ("mesh", "mesh", str),
    ("lower s", "lower_seconds", lambda v: f"{v:.1f}"),
    ("plan s", "plan_seconds", lambda v: f"{v:.1f}"),
    ("export s", "export_seconds", lambda v: f"{v:.1f}"),
    ("compile s", "compile_seconds", lambda v: f"{v:.0f}"),
    ("planner RAM", "planner_bytes", bytes_text),
    ("compiler RAM", "compiler_bytes", bytes_text),
    ("planned step s", "step", lambda v: f"{v:.2f}"),
    ("planned peak", "peak", bytes_text),
    ("compiled peak", "needed", bytes_text),
    ("planned GB sent", "sent", lambda v: f"{v / 1e9:.1f}"),
    ("HLO GB sent", "hlo_sent", lambda v: f"{v / 1e9:.1f}"),
    ("fits", "fits", str),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clusters", nargs="*", default=CLUSTERS, metavar="CLUSTER")
    parser.add_argument("--size", default="70B", choices=("7B", "13B", "70B"))
    parser.add_argument("--batch", type=int, default=16384, help="sequences a step (16,384)")
    parser.add_argument("--tokens", type=int, default=4096, help="of a sequence (4,096)")
    parser.add_argument("--form", default="shardy", choices=("shardy", "gspmd"))
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a compile (3,600)")
    parser.add_argument("--one", metavar="CLUSTER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given)))
        return
    heads = [head for head, _, _ in _COLUMNS]
    title = (
        f"Llama-2-{given.size}, {given.batch:,} x {given.tokens:,} tokens, {given.form}; planned"
        f" and compiled on {machine()}"
    )
    table = Table("cluster", *heads, "note", title=title)
    options = (f"--size={given.size}", f"--batch={given.batch}", f"--tokens={given.tokens}")
    options += (f"--form={given.form}", f"--timeout={given.timeout}")
    for name in given.clusters:
        row = in_a_process(__file__, name, given.timeout + 600, *options)
        cells = [show(row[key]) if key in row else "" for _, key, show in _COLUMNS]
        table.add_row(name, *cells, row.get("failed", row.get("note")) or "-")
        print(json.dumps({"cluster": name, **row}), file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 260).print(table)


if __name__ == "__main__":
    main()
