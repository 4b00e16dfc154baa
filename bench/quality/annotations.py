"""How few lines of user code reproduce plans of the corpus.

    python bench/quality/annotations.py [--cluster v5p:4x4x4] [--lines 20] [MODULE ...]

Of every train step that fits: lines of arguments and constraints, those of them that take
``jax.custom_vjp`` and those that the user's code cannot say, the share of the bytes of the plan's
collectives that the program sends as well when it is propagated with these lines (the same
kind, over the same axes, of what the same line makes), what it sends besides, its step over the
plan's, the lines without which it was not tried as the program is big, and CPU seconds. The target
is 95% with 20 lines for language models.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import entries, in_a_process, load, machine

HEADINGS = (
    *("lines", "arguments", "custom_vjp", "unwritable"),
    *("reproduced", "besides", "step", "untried", "CPU s"),
)


def measure(name: str, cluster: str, lines: int) -> dict[str, Any]:
    """Plan one module, and annotate it."""
    from autoshard.cluster import Cluster
    from autoshard.explain.annotations import annotate
    from autoshard.explain.question import Subject
    from autoshard.passes.recursive_programming import RecursiveProgramming, search_module

    module = load(entries([name])[0])
    planned = search_module(module, Cluster.of(cluster), RecursiveProgramming())
    start = time.process_time()
    found = annotate(Subject(name, module, planned.costed(), planned.summary), lines)
    other = sum(one.bytes for one in found.other)
    return {
        "lines": str(len(found.lines)),
        "arguments": str(len(found.arguments)),
        "custom_vjp": str(sum(line.is_by_custom_vjp for line in found.lines)),
        "unwritable": str(len(found.lines) - found.writable),
        "reproduced": f"{found.reproduced:.1%}",
        "besides": f"{other / max(1.0, found.planned_bytes):.1%}",
        "step": f"{found.step_seconds / found.planned_seconds:.3f}",
        "untried": str(found.untried),
        "CPU s": f"{time.process_time() - start:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="all train steps if none")
    parser.add_argument("--cluster", default="v5p:4x4x4")
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=400, help="seconds a module (400)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "annotations")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.cluster, given.lines)))
        return
    trained = [entry.name for entry in entries([]) if entry.name.endswith(".train")]
    table = Table(title=f"Lines that reproduce plans for {given.cluster}")
    table.add_column("module")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    options = ("--cluster", given.cluster, "--lines", str(given.lines))
    for module in given.modules or trained:
        found = in_a_process(__file__, module, given.timeout, *options)
        print(module, found, file=sys.stderr)
        cells = [found.get(heading, "") for heading in HEADINGS]
        table.add_row(module, *(["failed", *cells[1:]] if "failed" in found else cells))
    Console(width=140).print(table)
    print(f"Measured on {machine()}.")
    results.write(given.csv, table)


if __name__ == "__main__":
    main()
