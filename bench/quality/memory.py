"""Train steps in less memory than they take: our plans beside what people do by hand.

    python bench/quality/memory.py [--models PART ...] [--clusters NAME ...] [--shares SHARE ...]
                                   [--ways WAY ...] [--save FILE] [--show FILE]
                                   [--compile PART ...] [--csv]

Train steps of the corpus ($AUTOSHARD_CORPUS), planned by autoshard-plan within shares of the memory
that their plan without a limit takes, in four ways:

    one by one  ``recompute=auto`` computes values again; where that does not suffice,
                ``host_offload=auto`` keeps states and parameters on the host
    together    values that wait may be sent to the host as well, decided with what is computed
                again
    in parts    the same with ``micro_batches=auto``: the batch may be cut as well
    by hand     recipes of bench/common/memory_recipes.py on plans of the search within 100% to 35%
                of the memory: the fastest that fits, with 8% left free where one does that, as ours

Steps and peaks are modelled, seconds of planning are those of the processor; ``--compile`` asks a
compiler for peaks, for devices that have no more memory than the limit, and simulates the steps
that it schedules: compilers let values live as long as they like, if there is memory for them. Each
model and cluster is a process of its own. A plan that is refused stays in the table, with why, and
counts in no mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
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
APART, TOGETHER, PARTS = "one by one", "together", "in parts"
WAYS = (APART, TOGETHER, PARTS)

Point = tuple[str, str]
POINT = ("model", "cluster")
Row = dict[str, Any]


# One model on one cluster, in a process of its own


def measure(
    model: str, cluster: str, shares: Sequence[float], ways: Sequence[str], compiles: bool
) -> Row:
    """What each of these ways takes within each share of the memory."""
    from autoshard.cluster import Cluster
    from autoshard.compilers.partitioner import PartitionerTable
    from autoshard.errors import AutoshardError, AutoshardWarning

    warnings.simplefilter("ignore", AutoshardWarning)
    # What is known of the compilers is read from files, once in a process.
    _ = Cluster.of(cluster).compiler, PartitionerTable.of_installed()
    try:
        seconds, free = planned(model, cluster, NO_LIMIT)
    except AutoshardError as error:
        return {"failed": f"{type(error).__name__}: {error.message}"[:200]}
    peak = free.summary.peak_bytes_per_device
    found: Row = {"free": free.summary.step_seconds, "peak": peak, "planning": seconds, "rows": []}
    by_hand = recipes_of(model, cluster, peak, shares)
    for share in shares:
        limit = share * peak
        row: Row = {"share": share, "recipes": within(by_hand, limit)}
        for way in ways:
            if way == PARTS and share == 1:
                continue
            try:
                seconds, plan = planned(model, cluster, str(int(limit) + 1), way)
            except AutoshardError as error:
                row[way] = {"refused": f"{type(error).__name__}: {error.message}"[:900]}
                continue
            row[way] = {
                "step": plan.summary.step_seconds,
                "peak": plan.summary.peak_bytes_per_device / peak,
                "planning": seconds,
                "again": plan.summary.recompute_seconds,
                "sent": plan.summary.host_transfer_bytes,
                "parts": parts_of(plan),
            }
            if compiles and way == TOGETHER:
                row[way] |= compiled(plan, cluster, limit)
        found["rows"].append(row)
    return found


def planned(model: str, cluster: str, limit: str, way: str = "") -> tuple[float, Any]:
    """Seconds of planning on the processor, and the plan."""
    from autoshard.search.plan_pass import PlanProgram

    module, _ = of_corpus(model)
    options = PlanProgram(cluster=cluster, memory_limit=limit)
    if way:
        options = replace(options, recompute="auto", host_offload="auto")
    if way == PARTS:
        options = replace(options, micro_batches="auto")
    start = time.process_time()
    with module.context:
        if way == PARTS:
            _, found = options.planned(module)
            return time.process_time() - start, found
        job = options.job_for(module)
        if way:
            assert job.recomputing is not None
            sends = way == TOGETHER
            job = replace(job, recomputing=replace(job.recomputing, host_offload=sends))
        found = options.plan_with(job)
    return time.process_time() - start, found


def parts_of(plan: Any) -> int:
    """Micro-batches of a plan."""
    tried = plan.summary.tried_micro_batches
    return next((one.micro_batches for one in tried if one.outcome == "taken"), 1)


def recipes_of(
    model: str, cluster: str, peak: float, shares: Sequence[float]
) -> list[tuple[str, float, float]]:
    """(recipe, seconds, bytes) of all recipes on plans of the search within each share."""
    from autoshard.search.plan_pass import PlanProgram
    from bench.common.memory_recipes import plans, recipes

    module, _ = of_corpus(model)
    limits = [NO_LIMIT, *(str(int(share * peak) + 1) for share in shares)]
    with module.context:
        job = PlanProgram(cluster=cluster, memory_limit=NO_LIMIT).job_for(module)
        found = list(plans(job, limits))
        return [one for costed in found for one in recipes(costed, min(shares) * peak)]


def within(by_hand: Iterable[tuple[str, float, float]], limit: float) -> dict[str, float]:
    """Seconds of the fastest plan of each recipe that fits; 8% of the limit are left free if one
    does that, but by the search alone, which leaves nothing."""
    from autoshard.passes.memory_limit import MEMORY_MARGIN

    fastest: dict[str, tuple[bool, float]] = {}
    for recipe, seconds, size in by_hand:
        is_search = recipe == "the search alone"
        if size <= limit:
            rank = (not is_search and size > (1 - MEMORY_MARGIN) * limit, seconds)
            fastest[recipe] = min(rank, fastest.get(recipe, rank))
    return {recipe: seconds for recipe, (_, seconds) in fastest.items()}


def compiled(plan: Any, cluster: str, limit: float) -> Row:
    """The compiler's peak of a plan, whose module is exported, and its step as scheduled.

    Devices have ``limit`` bytes, but not more than those of the cluster.
    """
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardError
    from autoshard.passes.pipeline import run_passes
    from autoshard.passes.recursive_programming import RecursiveProgramming
    from bench.common.points import compiled_peak
    from bench.truth import fidelity

    try:
        run_passes(plan.module, ["autoshard-export-shardy"])
        trips = RecursiveProgramming().trip_count
        mesh = plan.summary.mesh
        full = Cluster.of(cluster)
        memory = replace(full.chip.memory_bytes, value=float(min(limit, full.usable_memory_bytes)))
        less = replace(full, chip=replace(full.chip, memory_bytes=memory))
        row = fidelity.compiled(plan.module, less, mesh, trips, 1200)
    except AutoshardError as error:
        return {"compile failed": f"{type(error).__name__}: {error.message}"[:200]}
    if "failed" in row:
        return {"compile failed": row["failed"][:200]}
    return {"compiled": compiled_peak(row), "compiled step": row.get("as scheduled")}


# The table

HEADS = (
    *(
        "model",
        "cluster",
        "memory",
        "GiB",
        "in parts, ms",
        "parts",
        "together, ms",
        "one by one, ms",
    ),
    *("by hand, ms", "recipe", "over by hand", "over one by one", "sent, MB"),
    *("compiled GiB", "compiled, ms", "planning, CPU s", "without a limit, CPU s", "note"),
)


def cells(row: Row) -> Iterator[list[str]]:
    """The rows of a model in the table."""
    if "failed" in row:
        yield [row["model"], row["cluster"], *[""] * (len(HEADS) - 3), row["failed"]]
    for one in row.get("rows", ()):
        both, recipe = one.get(TOGETHER, {}), best_recipe(one)
        cut = one.get(PARTS, {})

        def number(part: Row, key: str, unit: float = 1.0, digits: int = 2) -> str:
            return f"{part[key] / unit:.{digits}f}" if part.get(key) is not None else ""

        notes = [f"{way}: refused" for way in WAYS if "refused" in one.get(way, {})]
        notes += [both["compile failed"]] if "compile failed" in both else []
        yield [
            *(row["model"], row["cluster"], f"{one['share']:.0%}"),
            f"{one['share'] * row['peak'] / 2**30:.2f}",
            *(number(cut, "step", 1e-3, 2), number(cut, "parts", digits=0)),
            *(number(one.get(way, {}), "step", 1e-3, 2) for way in (TOGETHER, APART)),
            "" if recipe is None else f"{recipe[1] * 1e3:.2f}",
            "none fits" if recipe is None else recipe[0],
            *(_text(over_by_hand(one)), _text(over_apart(one))),
            *(number(both, "sent", 1e6, 0), number(both, "compiled", 2**30)),
            number(both, "compiled step", 1e-3, 2),
            *(number(both, "planning", digits=1), number(row, "planning", digits=1)),
            " ".join(notes)[:120],
        ]


def _text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def best_recipe(one: Row) -> tuple[str, float] | None:
    """The fastest recipe that fits, and its seconds."""
    return min(one["recipes"].items(), key=lambda each: each[1], default=None)


def over_by_hand(one: Row) -> float | None:
    """Step of all together over that of the best recipe; None where one of them is missing."""
    recipe, both = best_recipe(one), one.get(TOGETHER, {})
    return both["step"] / recipe[1] if recipe and "step" in both else None


def over_apart(one: Row) -> float | None:
    """Step of all together over that of one by one; None where one of them is refused."""
    apart, both = one.get(APART, {}), one.get(TOGETHER, {})
    return both["step"] / apart["step"] if "step" in apart and "step" in both else None


def means(rows: Sequence[Row]) -> Iterator[str]:
    """Geometric means of the ratios by share, with the best and the worst."""
    all_of = [one for row in rows for one in row.get("rows", ())]
    for name, ratio_of in (("by hand", over_by_hand), ("one by one", over_apart)):
        shares = sorted({one["share"] for one in all_of}, reverse=True)
        groups = [(f"{share:.0%}", [o for o in all_of if o["share"] == share]) for share in shares]
        for share, ones in (*groups, ("all", all_of)):
            ratios = [ratio for one in ones if (ratio := ratio_of(one)) is not None]
            if not ratios:
                continue
            alone = sum("step" in one.get(TOGETHER, {}) and ratio_of(one) is None for one in ones)
            yield (
                f"together over {name}, {share}: {_mean(ratios):.3f} (best {min(ratios):.3f}, worst"
                f" {max(ratios):.3f}) of {len(ratios)}; planned together alone: {alone}"
            )
    times = [
        one[TOGETHER]["planning"] / row["planning"]
        for row in rows
        for one in row.get("rows", ())
        if "planning" in one.get(TOGETHER, {})
    ]
    if times:
        yield f"planning over that without a limit: {_mean(times):.1f} (worst {max(times):.1f})"
    peaks = [
        (one[TOGETHER]["compiled"], one["share"] * row["peak"])
        for row in rows
        for one in row.get("rows", ())
        if one.get(TOGETHER, {}).get("compiled")
    ]
    if peaks:
        yield f"compiled within the limit: {sum(a <= b for a, b in peaks)} of {len(peaks)}"


def _mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[".train"], help="parts of names")
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--compile", nargs="+", default=[], help="parts of names to compile")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a row (3600)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the table of a saved file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "memory")
    options = parser.parse_args()
    if options.one:
        model, cluster = json.loads(options.one)
        compiles = any(part in model for part in options.compile)
        print(json.dumps(measure(model, cluster, options.shares, options.ways, compiles)))
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
    more = ["--shares", *map(str, options.shares), "--ways", *options.ways]
    more += ["--compile", *options.compile] if options.compile else []
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
