"""Seconds from an imported module to written attributes, beside JAX's own trace and lower.

    python bench/speed/plan_speed.py [ROW ...]

Every row is one program on one cluster in a process of its own: "strategies", "rules" and "import"
read the module, the phases of the core search, "write" puts attributes on every op. Parsing the
file is not counted, nor is reading the descriptions of the cluster and its compiler. "JAX s" is
tracing and lowering the same program: measured here, in a process of its own, for the Llama steps
of bench/programs; for the corpus as recorded when it was made, on another machine. A row's target
is less than JAX's seconds, or so many times another row's. "CPU s" is what the process computed,
less than "total s" where other programs had the processor; targets are held against it, and JAX's
seconds are of the same kind.

ROW is a part of a row's name; without one all rows are run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import Entry, count_ops, entries, in_a_process, load, machine

BATCH, TOKENS = 16, 2048
"""Sizes of the Llama steps: 80 layers' activations barely fit 64 devices without recomputation."""
READING = ("strategies", "rules", "import")
WRITING = "write"


@dataclass(frozen=True)
class Row:
    """One program on one cluster."""

    name: str
    module: str
    """A corpus module, or ``llama:70B:80:scan`` of bench/programs."""
    cluster: str
    mesh: str = ""
    replan: bool = False
    """Plan, change one pin, and time planning again."""
    than: str = ""
    """The row that this one is compared with."""
    factor: float = 1.0
    """At most so many times ``than``; without ``than`` so many times JAX's seconds."""
    aim: float | None = None
    """Seconds in all."""


def rows() -> list[Row]:
    """Every program, mesh and way to plan that has a target of its own."""
    sixteen = "v5p:16x16x16*16"
    found = [
        Row("70B, 80 layers", "llama:70B:80", "v5p:4x4x4", aim=1.0),
        Row("70B, 80 layers, fused", "llama:70B:80:fused", "v5p:4x4x4", aim=1.0),
        Row("70B, 40 layers", "llama:70B:40", "v5p:4x4x4"),
        Row("70B, 80 against 40", "llama:70B:80", "v5p:4x4x4", than="70B, 40 layers", factor=2.0),
        Row("70B scan, 80 layers", "llama:70B:80:scan", "v5p:4x4x4", aim=0.3),
        Row("70B scan, 40 layers", "llama:70B:40:scan", "v5p:4x4x4", aim=0.3),
        Row(
            "70B scan, 80 against 40",
            "llama:70B:80:scan",
            "v5p:4x4x4",
            than="70B scan, 40 layers",
            factor=1.1,
        ),
    ]
    for label, module in (("70B", "llama:70B:80"), ("70B scan", "llama:70B:80:scan")):
        small = Row(f"{label}, 64 devices, 2 axes", module, "v5p:4x4x4", "a=8,b=8")
        found += [
            small,
            Row(
                f"{label}, 65,536 devices, 2 axes",
                module,
                sixteen,
                "a=256,b=256",
                than=small.name,
                factor=1.2,
            ),
            Row(
                f"{label}, 64 devices, 4 axes",
                module,
                "v5p:4x4x4",
                "a=4,b=4,c=2,d=2",
                than=small.name,
                factor=3.0,
            ),
            Row(
                f"{label}, one pin changed",
                module,
                "v5p:4x4x4",
                replan=True,
                than=f"{label}, 80 layers",
                factor=0.1,
            ),
        ]
    names = [entry.name for entry in entries([])]
    return found + [Row(name, name, "v5p:4x4x4") for name in names if not _is_expert(name)]


def _is_expert(name: str) -> bool:
    """Already sharded by hand: it is planned on its own mesh, by propagation."""
    return name.endswith(".expert")


# In a process of its own


def lower_llama(spec: str, folder: str) -> dict[str, Any]:
    """Lower one step of bench/programs/llama.py into ``folder``."""
    from bench.programs.llama import LLAMA2, ROLES, train_step
    from bench.programs.lowered import lower

    _, size, layers, *flags = spec.split(":")
    config = dataclasses.replace(
        LLAMA2[size],
        layers=int(layers),
        scan="scan" in flags,
        fused="fused" in flags,
        batch=BATCH,
        tokens=TOKENS,
    )
    step, arguments = train_step(config)
    busy = time.process_time()
    made = lower(step, ROLES, *arguments)
    busy = time.process_time() - busy
    path = Path(folder) / f"{spec.replace(':', '_')}.mlirbc"
    path.write_bytes(made.bytecode)
    path.with_suffix(".json").write_text(json.dumps({"args": made.arguments}))
    return {"jax": busy}


def measure(row: Row, folder: str) -> dict[str, Any]:
    """Plan one program; seconds by phase."""
    from autoshard.cluster import Cluster
    from autoshard.compilers.partitioner import PartitionerTable
    from autoshard.passes.recursive_programming import (
        RecursiveProgramming,
        replan_module,
        search_module,
    )

    cluster = Cluster.of(row.cluster)
    # What is known of the compilers is read from files, once in a process.
    _ = cluster.compiler, PartitionerTable.of_installed()
    options = RecursiveProgramming(mesh=row.mesh)
    entry = entry_of(row.module, folder)

    module = load(entry)
    start, busy = time.perf_counter(), time.process_time()
    planned = search_module(module, cluster, options)
    if row.replan:
        start, busy = time.perf_counter(), time.process_time()
        planned = replan_module(planned, [pin_of_largest(entry, planned)])
    total, busy = time.perf_counter() - start, time.process_time() - busy
    summary = planned.summary
    return {
        "ops": count_ops(module),
        "devices": cluster.num_devices,
        "phases": summary.planning_seconds,
        "total": total,
        "busy": busy,
        "step": summary.step_seconds,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "jax": sum(entry.info.get("seconds", {}).get(key, 0.0) for key in ("trace", "lower")),
    }


def entry_of(module: str, folder: str) -> Entry:
    """A corpus module, or a lowered Llama step."""
    if not module.startswith("llama:"):
        return entries([module])[0]
    path = Path(folder) / f"{module.replace(':', '_')}.mlirbc"
    return Entry(module, path, json.loads(path.with_suffix(".json").read_text()))


def pin_of_largest(entry: Entry, planned: Any) -> Any:
    """Cut the largest parameter's largest dim by the first axis of the plan's mesh."""
    from autoshard.importer.pins import DimPin, Pin, Pinned

    parameters = [a for a in entry.info["args"] if a["role"] == "params"]
    argument = max(parameters, key=lambda a: a["bytes"])["index"]
    value = planned.imported.functions[-1].arguments[argument]
    shape = planned.imported.value_shapes[value]
    largest = max(range(len(shape)), key=lambda dim: shape[dim])
    dims = tuple(DimPin((0,) if dim == largest else ()) for dim in range(len(shape)))
    return Pinned(value, Pin(dims), None, "the largest parameter by the first axis")


# The table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of names; all if none")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lower", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=120, help="seconds a row (120)")
    results.add_option(parser, "plan_speed")
    options = parser.parse_args()
    if options.one and options.lower:
        print(json.dumps(lower_llama(options.one, options.folder)))
        return
    wanted = [
        row for row in rows() if not options.rows or any(part in row.name for part in options.rows)
    ]
    if options.one:
        print(json.dumps(measure(Row(**json.loads(options.one)), options.folder)))
        return
    needed = {row.than for row in wanted}
    wanted += [row for row in rows() if row.name in needed and row not in wanted]
    with tempfile.TemporaryDirectory() as folder:
        table = show(wanted, folder, options.timeout)
    results.write(options.csv, table)


def show(wanted: list[Row], folder: str, timeout: float) -> Table:
    """Measure and print, failures with their reason."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    jax_seconds: dict[str, float] = {}
    for module in dict.fromkeys(row.module for row in wanted if row.module.startswith("llama:")):
        made = in_a_process(__file__, module, timeout, "--lower", "--folder", folder)
        jax_seconds[module] = made.get("jax", 0.0)
        console.print(f"[dim]{module}: JAX {jax_seconds[module]:.2f} s {made.get('failed', '')}")
    found: dict[str, dict[str, Any]] = {}
    for row in wanted:
        text = json.dumps(dataclasses.asdict(row))
        result = found[row.name] = in_a_process(__file__, text, timeout, "--folder", folder)
        if "failed" not in result and not result["jax"]:
            result["jax"] = jax_seconds.get(row.module, 0.0)
        done = result.get("failed") or f"{result['total']:.3f} s"
        console.print(f"[dim]{row.name}: {done}")
    table = Table(title="Planning, from a module to written attributes")
    table.add_column("program", overflow="fold")
    table.add_column("mesh", overflow="fold")
    for heading in ("ops", "devices", "read s", "search s", "write s", "total s", "CPU s", "JAX s"):
        table.add_column(heading, justify="right")
    table.add_column("target", justify="right")
    table.add_column("met")
    table.add_column("peak RSS", justify="right")
    for row in wanted:
        table.add_row(row.name, row.mesh or "-", *cells(row, found))
    console.print(table)
    phases_table(console, wanted, found)
    for row in wanted:
        if "failed" in found[row.name]:
            console.print(f"failed: {row.name}: {found[row.name]['failed']}", soft_wrap=True)
    console.print(f"Measured on {machine()}; clusters as modelled.")
    return table


def cells(row: Row, found: dict[str, dict[str, Any]]) -> list[str]:
    """One row of the table; what failed stays in it."""
    result = found[row.name]
    if "failed" in result:
        return ["failed", *[""] * 10]
    phases = result["phases"]
    reading = sum(phases.get(phase, 0.0) for phase in READING)
    writing = phases.get(WRITING, 0.0)
    target, limit = target_of(row, found)
    return [
        f"{result['ops']:,}",
        f"{result['devices']:,}",
        f"{reading:.3f}",
        f"{result['total'] - reading - writing:.3f}",
        f"{writing:.3f}",
        f"{result['total']:.3f}",
        f"{result['busy']:.3f}",
        f"{result['jax']:.2f}" if result["jax"] else "-",
        target,
        "-" if limit is None else "yes" if result["busy"] <= limit else "NO",
        f"{result['rss'] / 1e9:.2f} GB",
    ]


def target_of(row: Row, found: dict[str, dict[str, Any]]) -> tuple[str, float | None]:
    """What the row should reach, in words and in seconds; None if nobody knows."""
    result = found[row.name]
    if row.than:
        other = found[row.than]
        if "failed" in other:
            return f"{row.than} failed", None
        limit = row.factor * other["busy"]
        ratio = result["busy"] / other["busy"]
        return f"{ratio:.2f} of {row.factor:g} x {other['busy']:.2f}", limit
    limits = [limit for limit in (row.aim, result["jax"] or None) if limit is not None]
    return (f"{min(limits):.2f}", min(limits)) if limits else ("-", None)


def phases_table(console: Console, wanted: list[Row], found: dict[str, dict[str, Any]]) -> None:
    """Seconds by phase."""
    names = dict.fromkeys(p for row in wanted for p in found[row.name].get("phases", ()))
    table = Table(title="Seconds by phase")
    table.add_column("program", overflow="fold")
    for name in names:
        table.add_column(name, justify="right")
    for row in wanted:
        phases = found[row.name].get("phases")
        if phases:
            seconds = (phases.get(name) for name in names)
            table.add_row(row.name, *("" if s is None else f"{s:.3f}" for s in seconds))
    console.print(table)


if __name__ == "__main__":
    main()
