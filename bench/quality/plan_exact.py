"""The search against trying everything: 200 random programs and 10 real blocks.

    python bench/quality/plan_exact.py [--random 200] [--blocks 10]

The reference is the least cost over all ways to cut every op and every value (test/unit/
exhaustive.py: elimination in numpy, without the solver), on up to 16 devices, nothing limiting
memory. The search does what it always does; its plan may cost at most 0.1% more, and must cost the
same in 95% of all cases. A program whose elimination would take too large a table is counted as
failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test" / "unit"))

from rich.console import Console
from rich.table import Table

from bench.common.corpus import in_a_process, machine

WITHIN = 1e-3
SAME = 1e-5
"""What the cost that breaks ties, 1e-18 s a byte, can change."""
LEAST_SHARE_EQUAL = 0.95
BLOCK_CLUSTERS = ("h100:8", "v5p:2x2x2", "v5e:4x4")


def measure(case: str) -> dict[str, Any]:
    """One program: ``seed:cluster`` or ``block name:cluster``."""
    from exhaustive import exact_and_found
    from plan_cases import BLOCKS, block_module, random_module

    from autoshard.cluster import Cluster

    name, _, cluster = case.partition("@")
    module = block_module(name) if name in BLOCKS else random_module(int(name))
    start = time.perf_counter()
    ops, exact, found, bound = exact_and_found(module, Cluster.parse(cluster))
    return {
        "ops": ops,
        "exact": exact,
        "found": found,
        "bound": bound,
        "seconds": time.perf_counter() - start,
    }


def many(cases: list[str]) -> list[dict[str, Any]]:
    """Several programs in one process; one that fails does not stop the others."""
    from exhaustive import TooLargeError

    rows: list[dict[str, Any]] = []
    for case in cases:
        try:
            rows.append({"case": case, **measure(case)})
        except TooLargeError as error:
            rows.append({"case": case, "failed": f"too large to try everything: {error}"})
    return rows


def main() -> None:
    from plan_cases import BLOCKS, random_cases

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, default=200, help="random programs (200)")
    parser.add_argument("--blocks", type=int, default=len(BLOCKS), help="real blocks (10)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for ten programs")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(many(json.loads(options.one))))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    cases = [f"{seed}@{cluster}" for seed, cluster in random_cases(options.random)]
    blocks = [f"{name}@{c}" for name in list(BLOCKS)[: options.blocks] for c in BLOCK_CLUSTERS]
    groups = [cases[i : i + 10] for i in range(0, len(cases), 10)] + [[block] for block in blocks]
    rows: list[dict[str, Any]] = []
    for group in groups:
        made: Any = in_a_process(__file__, json.dumps(group), options.timeout)
        if isinstance(made, dict):
            made = [{"case": case, **made} for case in group]
        rows += made
        worst = max((excess(row) for row in rows if "failed" not in row), default=0.0)
        failed = sum("failed" in row for row in rows)
        console.print(
            f"[dim]{len(rows)} of {len(cases) + len(blocks)}: worst {worst:.3%}, {failed} failed"
        )
    show(console, rows, blocks)
    console.print(f"Measured on {machine()}.")


def show(console: Console, rows: list[dict[str, Any]], blocks: list[str]) -> None:
    """All blocks, all programs where the search is not exact, and the counts."""
    table = Table(title="Found over least cost")
    for heading in ("program", "ops", "least us", "found us", "found / least", "seconds"):
        table.add_column(heading, justify="right")
    for row in rows:
        if "failed" in row:
            table.add_row(row["case"], row["failed"])
        elif row["case"] in blocks or not is_same(row):
            table.add_row(
                row["case"],
                str(row["ops"]),
                f"{row['exact'] * 1e6:.3f}",
                f"{row['found'] * 1e6:.3f}",
                f"{excess(row) + 1:.6f}",
                f"{row['seconds']:.1f}",
            )
    console.print(table)
    done = [row for row in rows if "failed" not in row]
    for title, kept in (("random", False), ("blocks", True)):
        mine = [row for row in done if (row["case"] in blocks) == kept]
        if not mine:
            continue
        same = sum(is_same(row) for row in mine)
        near = sum(excess(row) <= WITHIN for row in mine)
        failed = sum("failed" in row and (row["case"] in blocks) == kept for row in rows)
        console.print(
            f"{title}: {same} of {len(mine)} equal ({same / len(mine):.1%}, wanted "
            f"{LEAST_SHARE_EQUAL:.0%}), {near} within {WITHIN:.1%}, worst "
            f"{max(excess(row) for row in mine):.3%}, {failed} failed"
        )


def excess(row: dict[str, Any]) -> float:
    """What the search costs more, as a share of the least cost."""
    if row["exact"] == 0:
        return 0.0 if row["found"] == 0 else float("inf")
    return row["found"] / row["exact"] - 1


def is_same(row: dict[str, Any]) -> bool:
    """Equal but for rounding."""
    return excess(row) <= SAME


if __name__ == "__main__":
    main()
