"""Decisions about small programs against trying everything, by the cost of the rewritten module.

    python bench/quality/recompute_exact.py [--programs 300] [--values 6]

Gradient steps of small networks by JAX, of two to six layers, an attention or a scan, on two or
four devices within 40 to 95% of the memory they take: every set of decisions about the values of
``main`` is written and costed (test/unit/recompute_exhaustive.py), with the host in three of ten.
A program counts as equal if the pass's is as good, by the pass's own order: within the limit less
its margin, then by seconds. Programs with fewer than two values to decide or more than
``--values``, and those that nothing makes fit, are passed over.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test" / "unit"))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import in_a_process, machine

SAME = 1e-6
A_PROCESS = 20
"""Seeds that are tried in one process."""


def measure(first: int, values: int) -> dict[str, Any]:
    """Some programs: what is to be decided in each, and by how much the pass is worse."""
    from recompute_exhaustive import compared

    from autoshard.errors import AutoshardWarning

    warnings.simplefilter("ignore", AutoshardWarning)
    found = ((seed, compared(seed, values)) for seed in range(first, first + A_PROCESS))
    return {"rows": [[seed, one.values, one.gap] for seed, one in found if one is not None]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--values", type=int, default=6, help="to be decided, at most (6)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    results.add_option(parser, "recompute_exact")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, options.values)))
        return
    console = Console()
    rows: list[tuple[int, int, float]] = []
    first = 0
    while len(rows) < options.programs:
        made = in_a_process(__file__, str(first), 3600, "--values", str(options.values))
        if "failed" in made:
            sys.exit(f"seeds from {first}: {made['failed']}")
        rows += made["rows"]
        first += A_PROCESS
        equal = sum(gap <= SAME for *_, gap in rows)
        console.print(f"[dim]seeds to {first}: {equal} of {len(rows)} equal")
    rows = rows[: options.programs]
    table = Table("values", "programs", "equal", "refused", "worst of the others")
    for values in sorted({values for _, values, _ in rows}):
        gaps = [gap for _, one, gap in rows if one == values]
        worse = [gap for gap in gaps if SAME < gap < float("inf")]
        table.add_row(
            str(values),
            str(len(gaps)),
            str(sum(gap <= SAME for gap in gaps)),
            str(sum(gap == float("inf") for gap in gaps)),
            f"{max(worse):.1%}" if worse else "",
        )
    console.print(table)
    for seed, values, gap in rows:
        if gap > SAME:
            console.print(f"seed {seed}, {values} values: {gap:.2%}")
    results.write(options.csv, table)
    console.print(f"{machine()}.")


if __name__ == "__main__":
    main()
