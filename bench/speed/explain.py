"""What explaining a plan takes, and how much shorter tables are where equal layers are folded.

    python bench/speed/explain.py [MODULE ...]

Every row is one program, planned for v5p:4x4x4 in a process of its own: a train step of Llama-2-70B
of bench/programs, or a module of the corpus. "record s" is the record of a plan that was just made,
"again s" that of its module, which is read and priced again; "text s" makes the headline and its
tables, "page s" the page of HTML, of which "timeline KB" is the picture of the step, drawn for it;
seconds are those of the processor. "rows" are the arguments, results, ops and collectives of the
plan, "folded" those of the record, in which equal layers are one row.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import count_ops, entries, in_a_process, load, machine
from bench.speed.plan_speed import entry_of, lower_llama

CLUSTER = "v5p:4x4x4"
LLAMAS = ("llama:70B:40:scan", "llama:70B:40", "llama:70B:80")


def measure(module: str, folder: str) -> dict[str, Any]:
    """Plan one program and explain the plan."""
    from autoshard.cluster import Cluster
    from autoshard.errors import DoesNotFitError
    from autoshard.explain.page_timeline import timeline_svg
    from autoshard.explain.record_build import record_of, record_of_module
    from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
    from autoshard.report.explanation import Explanation

    if module.startswith("llama:"):
        lower_llama(module, folder)
    planned = load(entry_of(module, folder))
    try:
        found, planning = timed(
            lambda: search_module(planned, Cluster.of(CLUSTER), RecursiveProgramming())
        )
    except DoesNotFitError:
        return {"failed": "does not fit"}
    record, recording = timed(
        lambda: record_of(planned, found.costed(), found.summary, module, "auto")
    )
    _, reading = timed(lambda: record_of_module(planned, module))
    text, writing = timed(lambda: str(Explanation(record)))
    page, drawing = timed(Explanation(record).to_html)
    tables = (record.arguments, record.results, record.ops, record.collectives)
    return {
        "ops": count_ops(planned),
        "planning": planning,
        "record": recording,
        "again": reading,
        "text": writing,
        "page": drawing,
        "lines": text.count("\n") + 1,
        "rows": sum(row.count for table in tables for row in table),
        "folded": sum(map(len, tables)),
        "record_bytes": len(record.to_json()),
        "page_bytes": len(page.encode()),
        "timeline_bytes": len(timeline_svg(record.timeline, found.summary.step_seconds).encode()),
    }


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and seconds of the processor."""
    start = time.process_time()
    found = run()
    return found, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="all if none")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=120, help="seconds a row (120)")
    results.add_option(parser, "explain")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.folder)))
        return
    corpus = [entry.name for entry in entries([]) if not entry.is_expert]
    console = Console(width=None if sys.stdout.isatty() else 170)
    table = Table(title=f"Explaining plans for {CLUSTER}")
    table.add_column("program", overflow="fold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for module in options.modules or [*LLAMAS, *corpus]:
            found = in_a_process(__file__, module, options.timeout, "--folder", folder)
            console.print(f"[dim]{module}: {found.get('failed', 'done')}")
            table.add_row(module, *cells(found))
    console.print(table)
    console.print(f"Measured on {machine()}.")
    results.write(options.csv, table)


HEADINGS = (
    "ops",
    "plan s",
    "record s",
    "again s",
    "text s",
    "page s",
    "rows",
    "folded",
    "lines of text",
    "record MB",
    "page MB",
    "timeline KB",
)


def cells(found: dict[str, Any]) -> list[str]:
    """One row of the table; what failed stays in it."""
    if "failed" in found:
        return [found["failed"], *[""] * (len(HEADINGS) - 1)]
    return [
        f"{found['ops']:,}",
        *(f"{found[name]:.3f}" for name in ("planning", "record", "again", "text", "page")),
        *(f"{found[name]:,}" for name in ("rows", "folded", "lines")),
        *(f"{found[name] / 1e6:.2f}" for name in ("record_bytes", "page_bytes")),
        f"{found['timeline_bytes'] / 1e3:.0f}",
    ]


if __name__ == "__main__":
    main()
