"""CPU seconds of planning within little memory, and the planned steps.

    python bench/speed/recompute_speed.py [ROW ...]

Each row is a train step of the corpus that does not fit as it is: ``recompute="auto"`` makes it
fit, alone or with the host. It is planned in a process of its own, before that without a limit and
without either. Parsing the file is not counted, nor is reading the descriptions of the cluster and
its compiler. Steps and peaks are those of the plan, not of a compiler.

ROW is a part of a row's name; without one all rows are run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import entries, in_a_process, load, machine


@dataclass(frozen=True)
class Row:
    """One program of the corpus, and what it has to fit."""

    module: str
    cluster: str
    limit: str
    host: Literal["marks", "auto"] = "marks"

    @property
    def name(self) -> str:
        """As it is asked for."""
        with_host = ", with the host" if self.host == "auto" else ""
        return f"{self.module} on {self.cluster} within {self.limit}{with_host}"


ROWS = (
    Row("gpt2_xl_hf.train", "v5e:4x4", "6GiB"),
    Row("gpt2_xl_hf.train", "v5e:4x4", "6GiB", host="auto"),
    Row("llama2_7b_hf.train", "v5p:2x2x2", "40GiB"),
    Row("vit_l16_hf.train", "h100:8", "13.46GiB", host="auto"),
    Row("llama2_7b_scan_maxtext.train", "v5e:4x4", "14.99GiB", host="auto"),
    Row("gptj_6b_hf.train", "v5e:4x4", "16.27GiB", host="auto"),
)

HEADS = ("total s", "CPU s", "without a limit, CPU s", "over that", "step s", "peak GiB")


def measure(row: Row) -> dict[str, float]:
    """Plan one program."""
    from autoshard.cluster import Cluster
    from autoshard.compilers.partitioner import PartitionerTable
    from autoshard.search.plan_pass import PlanProgram

    # What is known of the compilers is read from files, once in a process.
    _ = Cluster.of(row.cluster).compiler, PartitionerTable.of_installed()
    planning = PlanProgram(
        cluster=row.cluster, memory_limit=row.limit, recompute="auto", host_offload=row.host
    )
    _, free, _ = _planned(row, PlanProgram(cluster=row.cluster, memory_limit="1000TiB"))
    total, busy, planned = _planned(row, planning)
    summary = planned.summary
    assert summary is not None
    return {
        "total": total,
        "busy": busy,
        "free": free,
        "step": summary.step_seconds,
        "peak": summary.peak_bytes_per_device,
    }


def _planned(row: Row, planning: Any) -> tuple[float, float, Any]:
    """Seconds of a plan, those of the processor, and the plan."""
    module = load(entries([row.module])[0])
    start, busy = time.perf_counter(), time.process_time()
    _, planned = planning.planned(module)
    return time.perf_counter() - start, time.process_time() - busy, planned


def table_of(rows: Sequence[Row], found: Sequence[dict[str, Any]]) -> Table:
    """All rows; what failed stays in the table."""
    table = Table(title="Planning within little memory; steps and peaks by plan")
    for heading in ("program", "cluster", "limit", "host"):
        table.add_column(heading, overflow="fold")
    for heading in HEADS:
        table.add_column(heading, justify="right")
    for row, made in zip(rows, found, strict=True):
        asked = (row.module, row.cluster, row.limit, row.host)
        if "failed" in made:
            table.add_row(*asked, "failed", *[""] * (len(HEADS) - 1))
            continue
        seconds = (f"{made['total']:.1f}", f"{made['busy']:.1f}", f"{made['free']:.1f}")
        over = f"{made['busy'] / made['free']:.1f}"
        table.add_row(*asked, *seconds, over, f"{made['step']:.3f}", f"{made['peak'] / 2**30:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of names; all if none")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a row (600)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    results.add_option(parser, "recompute_speed")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(ROWS[options.one])))
        return
    wanted = [
        number
        for number, row in enumerate(ROWS)
        if not options.rows or any(part in row.name for part in options.rows)
    ]
    console = Console(width=None if sys.stdout.isatty() else 170)
    found: list[dict[str, Any]] = []
    for number in wanted:
        found.append(in_a_process(__file__, str(number), options.timeout))
        done = found[-1].get("failed") or f"{found[-1]['busy']:.1f} s of CPU"
        console.print(f"[dim]{ROWS[number].name}: {done}")
    table = table_of([ROWS[number] for number in wanted], found)
    console.print(table)
    console.print(f"Measured on {machine()}; clusters as modelled.")
    results.write(options.csv, table)


if __name__ == "__main__":
    main()
