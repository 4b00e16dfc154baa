"""Every train step of the corpus in micro-batches: cut, or refused with line, rule and reason.

    python bench/quality/micro_batches.py [--micro-batches 4] [NAME ...]

The arguments that hold the batch are those of role ``batch`` in the corpus. ``analysis`` is the
core's part, what each value is in time, with the factor rules of each class of ops; ``whole`` is
the pass with inlining, rules and rewriting. The module that comes out is verified by MLIR; it is
not run. ``before`` counts lines that are computed of the whole batch before the loop.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.errors import PlanError
from autoshard.ir import mlir
from autoshard.ir.module import operations_of
from autoshard.ir.native import verify
from autoshard.planned.write import populate_rules
from autoshard.rewrites.micro_batches.inline import inline
from autoshard.rewrites.micro_batches.rewrite import find_times, into_micro_batches
from bench.common.corpus import Entry, entries, load, machine


def batch_of(entry: Entry) -> list[int]:
    """Arguments of ``main`` that hold examples in dim 0."""
    return [
        argument["index"]
        for argument in entry.info["args"]
        if argument["role"] == "batch" and argument["shape"]
    ]


def row(entry: Entry, count: int) -> tuple[str, ...]:
    """One module: ops, seconds, and what came of it."""
    module = load(entry)
    with module.context, mlir.Location.unknown():
        inline(module)
        populate_rules(module)
        operations = operations_of(module.operation)
        start = time.perf_counter()
        try:
            find_times(module, operations, batch_of(entry), count)
        except PlanError as error:
            took = time.perf_counter() - start
            return entry.name, f"{len(operations):,}", f"{took:.2f}", "", "", f"refused: {error}"
        took = time.perf_counter() - start
    module = load(entry)
    start = time.perf_counter()
    with module.context, mlir.Location.unknown():
        try:
            made = into_micro_batches(module, batch_of(entry), count)
        except PlanError as error:
            return entry.name, f"{len(operations):,}", f"{took:.2f}", "", "", f"refused: {error}"
    whole = time.perf_counter() - start
    verify(module)
    before = str(len(made.whole))
    return entry.name, f"{len(operations):,}", f"{took:.2f}", f"{whole:.1f}", before, "cut"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--micro-batches", type=int, default=4)
    options = parser.parse_args()
    table = Table(title=f"{options.micro_batches} micro-batches, {machine()}")
    for column in ("module", "ops", "analysis s", "whole s", "before", "outcome"):
        table.add_column(column, overflow="fold")
    for entry in entries(options.names):
        if options.names or entry.name.endswith(".train"):
            table.add_row(*row(entry, options.micro_batches))
            print(entry.name, flush=True, file=sys.stderr)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
