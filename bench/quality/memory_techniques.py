"""Memory techniques beside each other: what a step needs, by plan and by compiler, and its seconds.

    python bench/quality/memory_techniques.py [--models NAME ...] [--cluster NAME] [--levels N ...]
                                              [--recompute off SHARE% ...] [--states device host]
                                              [--save FILE] [--show FILE] [--no-compile]

Train steps with the batch split over all devices and all else on each of them; on top of that
optimizer parallelism of level 0 (none) to 3, recompute off or auto, and optimizer states on the
device or in the memory of the host: sixteen rows a model. Recompute gets a share of the memory that
the plan needs without it, 75%, or what a device has, if that is less; where that is refused, the
least that the refusal says it needs, if that is less than without. Each row is planned, exported
and compiled ahead of time in a process of its own, no device needed. What does not fit by plan is
compiled all the same: the compiler says what it needs. What a pass refuses is a row with its words.

The models are of the corpus ($AUTOSHARD_CORPUS) and of bench/programs/storage.py. Compiled programs
are kept (bench/common/compile_cache.py); ``--save`` keeps the rows as well, and a later run with
the same file measures only what it lacks.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import attach, corpus_folder, in_a_process, machine
from bench.common.points import SavedRows, compiled_peak, compiled_row, peak_error
from bench.common.sources import Lowered, of_case, of_corpus

MODELS = {
    "vit_l16_hf.train": "v5e:4x4",
    "resnet50_keras.train": "h100:8",
    "llama2_7b_scan_maxtext.train": "v5e:8x8",
    "transformer adam, scan": "v5e:4x4",
    "resnet momentum, 4 blocks": "v5e:4x4",
}
"""And what each is compiled for: it fits there at one level at least."""
CLUSTER = "v5e:4x4"
"""Cluster that other models are compiled for."""
LEVELS = (0, 1, 2, 3)
RECOMPUTE = ("off", "75%")
"""Memory where values are computed again, as a share of what the plan needs without."""
STATES = ("device", "host")

Point = tuple[str, str, int, str, str]
"""Model, cluster, level, recompute, where the states are."""

POINT = ("model", "cluster", "level", "recompute", "states")


# One point, in a process of its own


def program_of(name: str) -> Lowered:
    """Program of the corpus, or a train step of bench/programs/storage.py."""
    from bench.programs.storage import CASES

    return of_case(CASES[name]()) if name in CASES else of_corpus(name)


def measure(point: Point, timeout: float, compiles: bool) -> dict[str, Any]:
    """The row of one point."""
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardError, AutoshardWarning
    from autoshard.passes.memory_limit import memory_limit_of

    warnings.simplefilter("ignore", AutoshardWarning)
    model, cluster_name, level, again, states = point
    cluster = Cluster.of(cluster_name)
    start = time.perf_counter()
    row: dict[str, Any] = {}
    try:
        module, summary = planned(model, cluster, level, states)
        if again != "off":
            without = summary.peak_bytes_per_device
            share = float(again.removesuffix("%")) / 100
            limit = min(share * without, memory_limit_of(cluster, ""))
            row |= {"without": without, "asked": limit}
            module, summary = recomputed(module, cluster, limit, without)
            row["limit"] = summary.memory_limit
    except AutoshardError as error:
        return row | {"refused": f"{type(error).__name__}: {error.message}"}
    row |= {
        "planning": time.perf_counter() - start,
        "step": summary.step_seconds,
        "compute": summary.compute_seconds,
        "communication": summary.communication_seconds,
        "host transfer": summary.host_transfer_seconds,
        "again": summary.recompute_seconds,
        "peak": summary.peak_bytes_per_device,
        "on host": summary.host_bytes_per_device,
    }
    return row | compiled(module, cluster, summary.mesh, timeout) if compiles else row


def planned(model: str, cluster: Any, level: int, states: str) -> tuple[Any, Any]:
    """Everything of a point but recompute: the module and the summary of its plan."""
    from autoshard.ir.boundary import follow_arguments, unpin
    from autoshard.passes.host_offload import HostOffload
    from autoshard.passes.import_strategies import ImportStrategies
    from autoshard.passes.optimizer_parallel import OptimizerParallel
    from autoshard.passes.pipeline import run_passes
    from autoshard.passes.recursive_programming import RecursiveProgramming, estimate_planned
    from autoshard.passes.sharding_propagation import ShardingPropagation

    module, arguments = program_of(model)
    devices = cluster.num_devices
    # Arrays of PRNG keys have dims in the module that their shape does not name.
    pinned = [one for one in arguments if not one["dtype"].startswith("key")]
    cuts = {one["index"]: ", ".join(["{}"] * len(one["shape"])) for one in pinned}
    for one in pinned:
        if one["role"] == "batch" and one["shape"] and one["shape"][0] % devices == 0:
            cuts[one["index"]] = ", ".join(['{"data"}', *["{}"] * (len(one["shape"]) - 1)])
    results = {one.get("aliases_result"): cuts[one["index"]] for one in pinned}
    results.pop(None, None)
    attach(module, f'"data"={devices}', cuts, results)
    follow_arguments(module, {})  # as mode data_parallel does
    moved = [str(o["index"]) for o in arguments if o["role"] == "opt_state" and o["shape"]]
    if states == "host":
        run_passes(module, [HostOffload(tuple(moved))])
    run_passes(module, [ImportStrategies(), ShardingPropagation()])
    unpin(module, (), ())
    if level:
        run_passes(module, [OptimizerParallel(level=level)])
    return module, estimate_planned(module, cluster, RecursiveProgramming(), {})


def recomputed(module: Any, cluster: Any, limit: float, without: float) -> tuple[Any, Any]:
    """With values computed again so that it fits ``limit`` bytes, or the least that it needs."""
    from autoshard.errors import DoesNotFitError
    from autoshard.passes.recompute import Recompute, recompute

    try:
        return module, recompute(module, cluster, Recompute(memory_limit=str(int(limit))))
    except DoesNotFitError as error:
        if error.peak_bytes >= without:
            raise
        least = Recompute(memory_limit=str(math.ceil(error.peak_bytes)))
        return module, recompute(module, cluster, least)


def compiled(module: Any, cluster: Any, mesh_text: str, timeout: float) -> dict[str, Any]:
    """What the compiler makes of a planned module."""
    from autoshard.errors import AutoshardError
    from autoshard.passes.pipeline import run_passes
    from autoshard.sharding import Mesh
    from autoshard.verify.step_time import estimate_step
    from bench.common.compile_cache import cached_compile

    try:
        run_passes(module, ["autoshard-export-shardy"])
        found = cached_compile(module, cluster, timeout=timeout)
    except AutoshardError as error:
        return {"failed": f"{type(error).__name__}: {error.message}"}
    row = compiled_row(found) | {"compiled on host": found.host_argument_bytes}
    if found.hlo_text is not None:
        mesh = Mesh.parse(mesh_text)
        row["estimate"] = estimate_step(found.hlo_text, mesh, cluster).step_seconds
    return row


# The table


HEADS = (
    *(
        "model",
        "cluster",
        "level",
        "recompute",
        "states",
        "limit GiB",
        "peak GiB",
        "compiled",
        "error",
    ),
    *("fits", "on host", "compiled", "step ms", "sent ms", "host ms", "again ms", "compiled ms"),
    "s",
)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""

    def gib(key: str) -> str:
        return f"{row[key] / 2**30:.2f}" if row.get(key) is not None else ""

    def ms(key: str) -> str:
        return f"{row[key] * 1e3:.1f}" if row.get(key) is not None else ""

    head = [str(row[name]) for name in POINT] + [gib("limit")]
    if "refused" in row:
        return [*head, row["refused"][:120]]
    theirs, error = compiled_peak(row), peak_error(row)
    if "failed" in row:
        return [*head, gib("peak"), row["failed"][:120]]
    return [
        *head,
        gib("peak"),
        "" if theirs is None else f"{theirs / 2**30:.2f}",
        "" if error is None else f"{error:+.1%}",
        {True: "yes", False: "NO"}.get(row.get("fits"), ""),
        gib("on host"),
        gib("compiled on host"),
        *(ms(key) for key in ("step", "communication", "host transfer", "again", "estimate")),
        f"{row['compile']:.0f}" if "compile" in row else "",
    ]


PAGE_HEADS = (
    *("model", "cluster", "level", "recompute", "states", "planned", "compiled", "difference"),
    *("on the host", "step, planned", "sent", "host link", "again", "step, compiled"),
)


def page_cells(row: dict[str, Any]) -> list[str]:
    """A row of docs/results/fitting.md: GiB and ms."""
    model, cluster, level, recompute, states = (row[name] for name in POINT)
    asked = row.get("limit", row.get("asked"))
    if recompute != "off" and asked is not None:
        recompute = f"auto, {asked / 2**30:.2f} allowed"
    head = [model, cluster, str(level), recompute, states]
    if "refused" in row:
        return [*head, f"{row['without'] / 2**30:.2f}: refused" if "without" in row else "refused"]
    theirs, error = compiled_peak(row), peak_error(row)
    compiled = "" if theirs is None else f"{theirs / 2**30:.2f}"
    host = row["on host"] / 2**30
    times = ("step", "communication", "host transfer", "again", "estimate")
    return [
        *head,
        f"{row['peak'] / 2**30:.2f}",
        compiled if row.get("fits", True) else f"{compiled}: refused",
        "" if error is None else f"{error:+.1%}",
        f"{host:.2f}" if host else "",
        *(f"{row[key] * 1e3:.1f}" if row.get(key) else "" for key in times),
    ]


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """All rows, in the order of the techniques."""
    made = Table(title="Memory techniques; bytes of one device, seconds of a step")
    for index, head in enumerate(HEADS):
        made.add_column(head, overflow="fold", justify="left" if index < 5 else "right")
    for row in rows:
        made.add_row(*cells(row))
    return made


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How far the plans are from the compiler, and whether limits are kept."""
    refused = [row for row in rows if "refused" in row or "failed" in row]
    errors = [(abs(error), row) for row in rows if (error := peak_error(row)) is not None]
    yield f"{len(rows)} rows, {len(refused)} refused or failed, {len(errors)} compiled."
    if not errors:
        return
    mean = sum(error for error, _ in errors) / len(errors)
    worst, where = max(errors, key=lambda each: each[0])
    yield f"Peak: mean error {mean:.1%}, worst {worst:.1%} ({' | '.join(cells(where)[:5])})."
    limited = [row for _, row in errors if "limit" in row]
    kept = sum((compiled_peak(row) or 0) <= row["limit"] for row in limited)
    if limited:
        yield f"The compiled program keeps the limit of recompute in {kept} of {len(limited)} rows."


def points(options: argparse.Namespace) -> Iterable[Point]:
    """Models in the order given; what changes most first."""
    for model in options.models:
        cluster = options.cluster or MODELS.get(model, CLUSTER)
        for states in options.states:
            for recompute in options.recompute:
                for level in options.levels:
                    yield model, cluster, level, recompute, states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--cluster", metavar="NAME", help="for all models; usually its own")
    parser.add_argument("--levels", nargs="+", type=int, default=LEVELS, choices=LEVELS)
    parser.add_argument("--recompute", nargs="+", default=RECOMPUTE, metavar="off|SHARE%")
    parser.add_argument("--states", nargs="+", default=STATES, choices=STATES)
    parser.add_argument("--timeout", type=float, default=600, help="seconds a compile (600)")
    parser.add_argument("--no-compile", action="store_true", help="planned numbers only")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the table of a saved file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "memory_techniques")
    options = parser.parse_args()
    if options.one:
        point: Point = tuple(json.loads(options.one))
        row = measure(point, options.timeout, not options.no_compile)
        print(json.dumps(row))
        return
    console = Console(width=None if sys.stdout.isatty() else 230)
    rows = SavedRows(POINT, options.show or options.save)
    has_corpus = corpus_folder() is not None
    for point in rows.missing(() if options.show else points(options)):
        if not has_corpus and "." in point[0]:
            console.print(f"{point[0]}: no corpus, set AUTOSHARD_CORPUS.")
            continue
        more = ["--timeout", str(options.timeout)]
        more += ["--no-compile"] if options.no_compile else []
        made = in_a_process(__file__, json.dumps(point), options.timeout + 120, *more)
        row = rows.add(point, made)
        console.print(f"[dim]{' | '.join(cells(row))}")
    console.print(table(list(rows)))
    results.write_rows(options.csv, PAGE_HEADS, map(page_cells, rows))
    for line in summary(list(rows)):
        console.print(line)
    compilers = sorted({row["compiler"] for row in rows if "compiler" in row})
    console.print(f"{machine()}. {'; '.join(compilers) or 'Nothing was compiled'}.")


if __name__ == "__main__":
    main()
