"""Rows of fidelity-unseen.csv whose plans have moved since they were compiled.

    python bench/truth/moved_plans.py [--programs PART ...] [--clusters NAME ...] [--by SHARE]

A change of the cost model moves plans of programs that nobody had in mind. Every point of the table
is planned again, which takes seconds where compiling takes minutes; where the peak or the step as
scheduled differs from what the table says by more than ``--by``, the row is printed: how far the
plan was from what was compiled then, and how far it is now. These are to be compiled again
(bench/truth/fidelity.py), or to be understood. Last come the plans' gaps to their bounds.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import machine
from bench.truth.fidelity import PROGRAMS, plan_point

FILE = results.FOLDER / "fidelity-unseen.csv"
HEADS = ("program", "cluster", "plan", "peak then", "peak now", "step then", "step now", "mesh now")
CLOSE = 1e-3
"""A plan that is no more than this share above its bound is as good as the best."""
PAIRS = (("planned GiB", "compiled GiB"), ("planned as scheduled ms", "as scheduled ms"))
"""Columns of what is planned and of what is compiled: of the peak, and of the step."""


def points(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Rows of the table that are asked for."""
    with FILE.open() as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        for row in rows:
            name, cluster = row["program"], row["cluster"]
            is_wanted = not options.programs or any(part in name for part in options.programs)
            if is_wanted and name in PROGRAMS and cluster in (options.clusters or (cluster,)):
                yield row


def moved(row: dict[str, str], found: dict[str, Any], by: float) -> Sequence[str] | None:
    """Errors of a row then and now; None: the plan is the same but for ``by``."""
    name, cluster, kind = row["program"], row["cluster"], row["plan"]
    if "peak" not in found:
        return name, cluster, kind, "", "", "", "", next(iter(found.values()))
    now = (found["peak"] / 2**30, 1e3 * found["planned as scheduled"])
    cells, is_moved = [name, cluster, kind], False
    for (planned, compiled), value in zip(PAIRS, now, strict=True):
        if not row[planned]:  # Compiled once, not planned since.
            cells += ["", f"{value / float(row[compiled]) - 1:+.1%}"]
            continue
        then, real = float(row[planned]), float(row[compiled])
        is_moved |= abs(value / then - 1) > by
        cells += [f"{then / real - 1:+.1%}", f"{value / real - 1:+.1%}"]
    return (*cells, found["mesh"]) if is_moved else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="*", default=[], metavar="PART")
    parser.add_argument("--clusters", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--by", type=float, default=0.03, help="share (0.03)")
    options = parser.parse_args()
    table = Table(*HEADS)
    count, gaps = 0, list[float]()
    for row in points(options):
        count += 1
        found, _ = plan_point(row["program"], row["cluster"], row["plan"])
        gaps += [found["step"] / found["bound"] - 1] if found.get("bound") else []
        if cells := moved(row, found, options.by):
            table.add_row(*cells)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(f"{table.row_count} of {count} plans have moved by {options.by:.1%} or more.")
    close = sum(gap < CLOSE for gap in gaps)
    worst = max(gaps, default=0.0)
    console.print(f"{close} of {len(gaps)} within {CLOSE:.1%} of their bound, worst {worst:.2%}.")
    console.print(machine())


if __name__ == "__main__":
    main()
