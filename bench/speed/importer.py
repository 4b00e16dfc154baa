"""Seconds from a StableHLO module to the core's Program, for every module of the corpus.

    python bench/speed/importer.py [NAME ...]

Three steps are timed, each once, in a process of its own per module: flattening the calls and
collecting the pins (``autoshard-import-strategies``), Shardy's factor rules, and the walk that
fills the ``Program``. Parsing the file is shown beside them and not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.importer import import_program
from autoshard.passes.import_strategies import ImportStrategies
from autoshard.planned.write import mesh_of, populate_rules
from bench.common.corpus import MESH, count_ops, entries, in_a_process, load, machine, pin


def measure(name: str) -> dict[str, Any]:
    """Time one module; seconds."""
    (entry,) = entries([name])
    clock = [time.perf_counter()]
    module = load(entry)
    clock.append(time.perf_counter())
    ops = count_ops(module)
    pin(module, entry)
    clock.append(time.perf_counter())
    ImportStrategies().run(module)
    clock.append(time.perf_counter())
    populate_rules(module)
    clock.append(time.perf_counter())
    with module.context:
        imported = import_program(module, mesh_of(module))
    clock.append(time.perf_counter())
    parse, _, strategies, rules, walk = (b - a for a, b in pairwise(clock))
    return {
        "ops": ops,
        "parse": parse,
        "strategies": strategies,
        "rules": rules,
        "walk": walk,
        "core_ops": len(imported.core_ops),
        "without_rule": len(imported.replicated_ops),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules; all if none is given")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=120, help="seconds a module (120)")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(title="From StableHLO to the core's Program")
    table.add_column("module", overflow="fold")
    for heading in (
        "ops",
        "parse s",
        "strategies s",
        "rules s",
        "walk s",
        "import s",
        "s / 1,000 ops",
        "ops without rule",
    ):
        table.add_column(heading, justify="right")
    failures: list[str] = []
    for entry in entries(options.names):
        row = in_a_process(__file__, entry.name, options.timeout)
        if "failed" in row:
            failures.append(f"{entry.name}: {row['failed']}")
            table.add_row(entry.name, *["failed"] * 8)
            continue
        total = row["strategies"] + row["rules"] + row["walk"]
        seconds = (row[key] for key in ("parse", "strategies", "rules", "walk"))
        table.add_row(
            entry.name,
            f"{row['ops']:,}",
            *(f"{value:.3f}" for value in seconds),
            f"{total:.3f}",
            f"{1000 * total / row['ops']:.4f}",
            str(row["without_rule"]),
        )
        console.print(f"[dim]{entry.name}: {total:.3f} s")
    console.print(table)
    for failure in failures:
        console.print(f"failed: {failure}")
    console.print(f"Measured on {machine()}; pins on mesh {MESH}.")


if __name__ == "__main__":
    main()
