"""Sharding propagation over the corpus, beside Shardy's own on the same modules.

    python bench/speed/propagate.py [NAME ...]

The same pins for both: batch arguments on one axis, the largest weights on the other (the .expert
modules keep the shardings that they have, on 64 devices). Seconds are those of the propagation
alone, once, in a process of its own per module: for autoshard the passes
``autoshard-import-strategies`` and ``autoshard-sharding-propagation``, for Shardy
``sdy-propagation-pipeline``. Bytes are what one device sends in one step, loops times their trips;
both plans are counted by the same function (``shardy_collectives``), which lets Shardy turn them
into collectives: ours in the form that ``autoshard-export-shardy`` writes. "GB planned" is what
autoshard itself expects of its plan.

Shardy's pipeline minimises nothing and pins nothing; where it needs fewer bytes the row says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.errors import AutoshardWarning
from autoshard.ir import mlir
from autoshard.ir.native import run_native
from autoshard.passes.export_shardy import ExportShardy
from autoshard.passes.import_strategies import ImportStrategies
from autoshard.passes.sharding_propagation import ShardingPropagation
from autoshard.planned.collective import total_bytes
from autoshard.verify.shardy_collectives import shardy_collectives
from bench.common.corpus import Entry, count_ops, entries, in_a_process, load, machine, pin

RESHARDED = "autoshard.resharded_bytes"
SIDES = ("autoshard", "shardy")


def measure(name: str, side: str) -> dict[str, Any]:
    """Propagate one module by one side; seconds and bytes."""
    (entry,) = entries([name])
    warnings.simplefilter("ignore", AutoshardWarning)
    module = pinned(entry)
    ops = count_ops(module)
    planned = None
    start = time.perf_counter()
    if side == "autoshard":
        ImportStrategies().run(module)
        ShardingPropagation().run(module)
        seconds = time.perf_counter() - start
        planned = mlir.FloatAttr(module.operation.attributes[RESHARDED]).value
        ExportShardy().run(module)
    else:
        run_native(module, "builtin.module(sdy-propagation-pipeline)")
        seconds = time.perf_counter() - start
        module = pinned(entry)
    start = time.perf_counter()
    collectives = shardy_collectives(module)
    return {
        "ops": ops,
        "seconds": seconds,
        "count_seconds": time.perf_counter() - start,
        "planned": planned,
        "collectives": sum(c.times for c in collectives),
        "bytes": total_bytes(collectives),
    }


def pinned(entry: Entry) -> mlir.Module:
    """A fresh module with its pins."""
    module = load(entry)
    pin(module, entry)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules; all if none is given")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=300, help="seconds a row and side (300)")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.side)))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(title="Sharding propagation")
    table.add_column("module", overflow="fold")
    for heading in (
        "ops",
        "s",
        "s / 1,000 ops",
        "Shardy s",
        "GB planned",
        "GB",
        "Shardy GB",
        "GB / Shardy's",
    ):
        table.add_column(heading, justify="right")
    failures: list[str] = []
    for entry in entries(options.names):
        rows: dict[str, dict[str, Any]] = {}
        for side in SIDES:
            row = rows[side] = in_a_process(__file__, entry.name, options.timeout, "--side", side)
            if "failed" in row:
                failures.append(f"{entry.name}, {side}: {row['failed']}")
        ours, theirs = rows["autoshard"], rows["shardy"]
        table.add_row(entry.name, *cells(ours, theirs))
        console.print(f"[dim]{entry.name} {' '.join(cells(ours, theirs))}")
    console.print(table)
    for failure in failures:
        console.print(f"failed: {failure}")
    console.print(f"Measured on {machine()}.")


def cells(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """One row; what failed stays in it."""
    ops = ours.get("ops") or theirs.get("ops")
    both = "failed" not in ours and "failed" not in theirs
    return [
        f"{ops:,}" if ops else "",
        number(ours, "seconds", "{:.2f}"),
        f"{1000 * ours['seconds'] / ours['ops']:.4f}" if "failed" not in ours else "failed",
        number(theirs, "seconds", "{:.2f}"),
        number(ours, "planned", "{:.3f}", 1e9),
        number(ours, "bytes", "{:.3f}", 1e9),
        number(theirs, "bytes", "{:.3f}", 1e9),
        f"{ours['bytes'] / theirs['bytes']:.2f}" if both and theirs["bytes"] else "",
    ]


def number(row: dict[str, Any], key: str, form: str, unit: float = 1.0) -> str:
    """One number of a row, or that it failed."""
    return "failed" if "failed" in row else form.format(row[key] / unit)


if __name__ == "__main__":
    main()
