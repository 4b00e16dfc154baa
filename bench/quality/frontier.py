"""Frontiers with values let go, beside plans for each limit alone.

    python bench/quality/frontier.py [--models PART ...] [--save FILE] [--csv]

Train steps of the corpus ($AUTOSHARD_CORPUS) on one cluster each, with ``recompute=auto``, and with
``host_offload=auto`` as well. Each plan of a frontier stands beside the one that autoshard-plan
makes within the bytes that it needs, which leaves 8% of them free where it can. Steps and peaks are
modelled, seconds are those of the processor. Each row is a process of its own.
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

from bench.common import results
from bench.common.corpus import corpus_folder, in_a_process, machine
from bench.common.points import SavedRows
from bench.common.sources import of_corpus

PROGRAMS = (
    ("gpt2_xl_hf.train", "v5e:4x4"),
    ("llama2_7b_hf.train", "v5p:2x2x4"),
    ("bert_large_hf.train", "v5e:4x4"),
    ("vit_l16_hf.train", "v5e:4x4"),
    ("llama2_7b_scan_maxtext.train", "v5e:4x4"),
)
HOSTS = ("marks", "auto")
NO_LIMIT = "1000TiB"
POINT = ("model", "cluster", "host")
Row = dict[str, Any]

# One program, in a process of its own


def measure(model: str, cluster: str, host: Any) -> Row:
    """The frontier, and plans for each of its limits."""
    from autoshard.cluster import Cluster
    from autoshard.compilers.partitioner import PartitionerTable
    from autoshard.errors import AutoshardWarning, DoesNotFitError
    from autoshard.search.fitted_frontier import FrontierSearch
    from autoshard.search.host_candidates import candidates
    from autoshard.search.plan_pass import PlanProgram
    from autoshard.sharding import Axis, Mesh

    warnings.simplefilter("ignore", AutoshardWarning)
    # What is known of the compilers is read from files, once in a process.
    _ = Cluster.of(cluster).compiler, PartitionerTable.of_installed()
    module, _ = of_corpus(model)

    def planned(limit: str, **options: Any) -> tuple[float, Any]:
        start = time.process_time()
        with module.context:
            asked = PlanProgram(cluster=cluster, memory_limit=limit, **options)
            found = asked.plan_with(asked.job_for(module))
        return time.process_time() - start, found.summary

    free_seconds, _ = min(planned(NO_LIMIT) for _ in range(2))
    start = time.process_time()
    with module.context:
        job = PlanProgram(cluster=cluster, recompute="auto", host_offload=host).job_for(module)
        mesh = Mesh((Axis("data", job.num_devices),))
        waiting = (lambda: candidates(job.read(()), mesh)) if host == "auto" else None
        found = FrontierSearch(job, waiting).run()
    seconds = time.process_time() - start
    points: list[Row] = []
    for plan in found:
        point: Row = {"step": plan.step_seconds, "peak": plan.peak_bytes}
        try:
            spent, alone = planned(str(plan.peak_bytes), recompute="auto", host_offload=host)
            point |= {"alone": alone.step_seconds, "planning": spent}
        except DoesNotFitError:
            pass
        points.append(point)
    return {"free": free_seconds, "seconds": seconds, "points": points}


# The table

HEADS = (
    *("model", "cluster", "host", "plans", "GiB", "step, ms", "over planned alone"),
    *("alone refused", "CPU s", "alone, CPU s", "over alone", "without a limit, CPU s"),
)


def cells(row: Row) -> list[str]:
    """A row of the table."""
    if "failed" in row:
        return [row["model"], row["cluster"], row["host"], row["failed"][:120]]
    points = row["points"]
    first, last = points[0], points[-1]
    fitting = [point for point in points if "alone" in point]
    ratios = [point["step"] / point["alone"] for point in fitting]
    alone = sum(point["planning"] for point in fitting[1:]) / max(1, len(fitting) - 1)
    return [
        *(row["model"], row["cluster"], row["host"], str(len(points))),
        f"{first['peak'] / 2**30:.2f} to {last['peak'] / 2**30:.2f}",
        f"{first['step'] * 1e3:.1f} to {last['step'] * 1e3:.1f}",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
        str(len(points) - len(fitting)),
        f"{row['seconds']:.1f}",
        f"{alone:.1f}",
        f"{row['seconds'] / alone:.1f}" if alone else "",
        f"{row['free']:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[""], help="parts of names (all)")
    parser.add_argument("--hosts", nargs="+", default=HOSTS, choices=HOSTS)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a row (3600)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "frontier")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    console = Console(width=None if sys.stdout.isatty() else 220)
    if corpus_folder() is None:
        console.print("Skipped: no corpus, set AUTOSHARD_CORPUS.")
        return
    rows = SavedRows(POINT, options.save)
    points = [
        (model, cluster, host)
        for host in options.hosts
        for model, cluster in PROGRAMS
        if any(part in model for part in options.models)
    ]
    for point in rows.missing(points):
        row = rows.add(point, in_a_process(__file__, json.dumps(point), options.timeout))
        console.print(f"[dim]{' | '.join(cells(row))}", highlight=False)
    table = Table(*HEADS)
    lines = [cells(row) for row in rows]
    for line in lines:
        table.add_row(*line)
    console.print(table)
    results.write_rows(options.csv, HEADS, lines)
    console.print(f"{machine()}.")


if __name__ == "__main__":
    main()
