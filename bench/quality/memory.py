"""Train steps in less memory: values computed again and sent to the host, decided together.

    python bench/quality/memory.py [--models PART ...] [--clusters NAME ...] [--shares SHARE ...]
                                   [--save FILE] [--show FILE] [--csv]

Train steps of the corpus ($AUTOSHARD_CORPUS), planned by autoshard-plan within shares of the memory
that their plan without a limit takes. One by one: ``recompute=auto`` computes values again, and
where that does not suffice, ``host_offload=auto`` keeps states and parameters on the host.
Together: values that wait between the halves may be sent to the host as well, decided with what is
computed again. Steps are modelled; nothing is compiled. Each row runs in a process of its own. A
plan that is refused stays, with the bytes that it needs, and counts in no mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import corpus_folder, entries, in_a_process, machine
from bench.common.points import SavedRows
from bench.common.sources import of_corpus

CLUSTERS = ("v5e:4x4", "v5p:2x2x4", "h100:8")
SHARES = (1.0, 0.75, 0.5, 0.35)
NO_LIMIT = "1000TiB"

Point = tuple[str, str]
POINT = ("model", "cluster")


def measure(model: str, cluster: str, shares: Sequence[float]) -> dict[str, Any]:
    """The rows of one model on one cluster: a step in seconds by share and way."""
    from autoshard.errors import AutoshardError, AutoshardWarning

    warnings.simplefilter("ignore", AutoshardWarning)
    try:
        _, free = planned(model, cluster, NO_LIMIT, together=False)
    except AutoshardError as error:
        return {"failed": f"{type(error).__name__}: {error.message}"[:200]}
    rows: list[dict[str, Any]] = []
    for share in shares:
        row: dict[str, Any] = {"share": share}
        for way, together in (("one by one", False), ("together", True)):
            limit = str(int(share * free.peak_bytes_per_device) + 1)
            try:
                seconds, found = planned(model, cluster, limit, together=together)
            except AutoshardError as error:
                row[way] = {"refused": f"{type(error).__name__}: {error.message}"[:200]}
                continue
            row[way] = {
                "step": found.step_seconds,
                "peak": found.peak_bytes_per_device / free.peak_bytes_per_device,
                "planning": seconds,
                "again": found.recompute_seconds,
                "sent": found.host_transfer_bytes,
            }
        rows.append(row)
    return {"free": free.step_seconds, "peak": free.peak_bytes_per_device, "rows": rows}


def planned(model: str, cluster: str, limit: str, *, together: bool) -> tuple[float, Any]:
    """Seconds of planning, and the summary of the plan."""
    from autoshard.search.plan_pass import PlanProgram

    module, _ = of_corpus(model)
    options = PlanProgram(
        cluster=cluster, memory_limit=limit, recompute="auto", host_offload="auto"
    )
    start = time.perf_counter()
    with module.context:
        job = options.job_for(module)
        assert job.recomputing is not None
        job = replace(job, recomputing=replace(job.recomputing, host_offload=together))
        found = options.plan_with(job, "")
    return time.perf_counter() - start, found.summary


HEADS = (
    *("model", "cluster", "memory", "one by one, ms", "together, ms", "ratio"),
    *("sent one by one, MB", "sent together, MB", "planning one by one, s", "together, s", "note"),
)


def cells(row: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of a model in the table."""
    if "failed" in row:
        yield [row["model"], row["cluster"], *[""] * 8, row["failed"]]
    for one in row.get("rows", ()):
        apart, both = one["one by one"], one["together"]

        def number(part: dict[str, Any], key: str, unit: float = 1.0, digits: int = 2) -> str:
            return f"{part[key] / unit:.{digits}f}" if key in part else ""

        ratio = ratio_of(one)
        notes = [f"{way}: {one[way]['refused']}" for way in one if "refused" in str(one[way])]
        yield [
            *(row["model"], row["cluster"], f"{one['share']:.0%}"),
            *(number(apart, "step", 1e-3, 3), number(both, "step", 1e-3, 3)),
            "" if ratio is None else f"{ratio:.3f}",
            *(number(apart, "sent", 1e6, 1), number(both, "sent", 1e6, 1)),
            *(number(apart, "planning"), number(both, "planning")),
            " ".join(notes)[:120],
        ]


def ratio_of(one: dict[str, Any]) -> float | None:
    """Step of all together over that of one by one; None where one of them is refused."""
    apart, both = one["one by one"], one["together"]
    return both["step"] / apart["step"] if "step" in apart and "step" in both else None


def means(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Geometric means of the ratios, by share and of all."""
    ratios: dict[float, list[float]] = {}
    only: dict[float, int] = {}
    for one in (one for row in rows for one in row.get("rows", ())):
        ratio = ratio_of(one)
        if ratio is not None:
            ratios.setdefault(one["share"], []).append(ratio)
        elif "step" in one["together"]:
            only[one["share"]] = only.get(one["share"], 0) + 1
    for share in sorted(ratios, reverse=True):
        found = ratios[share]
        yield (
            f"{share:.0%}: {_mean(found):.3f} (best {min(found):.3f}, worst {max(found):.3f}) of"
            f" {len(found)}; planned together alone: {only.get(share, 0)}"
        )
    everything = [ratio for found in ratios.values() for ratio in found]
    if everything:
        yield f"geometric mean of all {len(everything)}: {_mean(everything):.3f}"


def _mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[".train"], help="parts of names")
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--timeout", type=float, default=900, help="seconds a row (900)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the table of a saved file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "memory")
    options = parser.parse_args()
    if options.one:
        model, cluster = json.loads(options.one)
        print(json.dumps(measure(model, cluster, options.shares)))
        return
    console = Console(width=None if sys.stdout.isatty() else 220)
    rows = SavedRows(POINT, options.show or options.save)
    if options.show is None and corpus_folder() is None:
        console.print("Skipped: no corpus, set AUTOSHARD_CORPUS.")
        return
    points: list[Point] = []
    if options.show is None:
        names = [one.name for one in entries([])]
        names = [name for name in names if any(part in name for part in options.models)]
        points = [(name, cluster) for name in names for cluster in options.clusters]
    more = ["--shares", *map(str, options.shares)]
    for point in rows.missing(points):
        row = rows.add(point, in_a_process(__file__, json.dumps(point), options.timeout, *more))
        for line in cells(row):
            console.print(f"[dim]{' | '.join(line)}", highlight=False)
    table = Table(*HEADS)
    lines = [line for row in rows for line in cells(row)]
    for line in lines:
        table.add_row(*line)
    console.print(table)
    for line in means(list(rows)):
        console.print(line)
    results.write_rows(options.csv, HEADS, lines)
    console.print(f"{machine()}.")


if __name__ == "__main__":
    main()
