"""Roles of arguments that are found by structure, against those that the corpus's authors gave.

    python bench/truth/roles.py [NAME ..]

Worst modules first; the last line has the share of all arguments.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.importer.dataflow import dataflow
from autoshard.importer.roles import Role, argument_roles
from autoshard.ir.boundary import main_function
from autoshard.passes.pipeline import run_passes
from autoshard.planned.write import populate_rules
from bench.common import corpus

SAME = {
    "params": {Role.PARAMETER},
    "opt_state": {Role.OPTIMIZER_STATE, Role.COUNTER},
    "state": {Role.STATE, Role.COUNTER, Role.KEY},
    "batch": {Role.BATCH, Role.KEY},
    "rng": {Role.KEY},
    "const": {Role.BATCH, Role.PARAMETER},
}
"""Role in the corpus -> roles that say the same: keys in a batch are keys, steps are counters."""


@dataclass(frozen=True)
class Row:
    """One module."""

    name: str
    arguments: int
    wrong: Counter[tuple[str, str]]
    """(role in the corpus, role found) -> how many."""
    seconds: float


def measure(entry: corpus.Entry) -> Row:
    """Find the roles of one module."""
    module = corpus.load(entry)
    run_passes(module, ["sdy-flatten-call-graph"])
    populate_rules(module)
    with module.context:
        start = time.perf_counter()
        found = argument_roles(main_function(module), dataflow(module)).arguments
        seconds = time.perf_counter() - start
    said = [argument["role"] for argument in entry.info["args"]]
    wrong = Counter(
        (role, other.value)
        for role, other in zip(said, found, strict=True)
        if other not in SAME[role]
    )
    return Row(entry.name, len(said), wrong, seconds)


def main() -> None:
    """Measure and print."""
    rows = [measure(entry) for entry in corpus.entries(sys.argv[1:])]
    table = Table("module", "arguments", "wrong", "corpus says -> found", "seconds")
    for row in sorted(rows, key=lambda row: -sum(row.wrong.values())):
        kinds = ", ".join(f"{count} {a} -> {b}" for (a, b), count in row.wrong.items())
        wrong = str(sum(row.wrong.values()))
        table.add_row(row.name, str(row.arguments), wrong, kinds, f"{row.seconds:.2f}")
    Console().print(table)
    total = sum(row.arguments for row in rows)
    wrong = sum(sum(row.wrong.values()) for row in rows)
    print(f"{total} arguments, {100 * (1 - wrong / total):.2f}% right; {corpus.machine()}")


if __name__ == "__main__":
    main()
