"""Seconds to plan ``pipeline="auto"``: stages, micro-batches, schedule and shardings at once.

    python bench/quality/pipeline_planning.py [--model llama2-70b] [--clusters h100:8x8 ..]
                                              [--scan] [--stages S --micro-batches M] [--csv]

A train step of bench/programs/transformer.py, its layers unrolled and computed again, with as many
sequences as given. Each cluster is planned in a process of its own. ``tracing`` is JAX's, before
anything is planned; seconds are those of the processor, and of a clock. ``planned`` are the
pipelines that were planned, ``told`` those that a search for one stage that does all, their cut, or
others' plans told to be slower.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import in_a_process, machine
from bench.common.points import Row, SavedRows

CLUSTERS = ("h100:8x8", "h100:32x8", "h100:128x8")
HEADS = (
    *("program", "cluster", "sequences", "ops", "asked", "stages × micro-batches", "mesh"),
    *("planned", "told", "step s", "tracing CPU s", "planning CPU s", "planning s"),
)


def measure(cluster: str, options: argparse.Namespace) -> Row:
    """Plan once."""
    import autoshard
    from autoshard.errors import AutoshardWarning, DoesNotFitError
    from autoshard.frontend.lower import traced_for
    from autoshard.frontend.planning import plan_traced
    from autoshard.frontend.request import Request
    from autoshard.ir import new_context, parse_bytes
    from autoshard.ir.module import operations_of
    from bench.programs.transformer import named, train_step

    warnings.simplefilter("ignore", AutoshardWarning)
    began = time.process_time()
    config = named(options.model, scan=options.scan, remat=True, batch=options.batch)
    step = train_step(config)
    donated: Any = ((0, 1), None)
    traced = traced_for(step.function, (step.arguments, {}), static=(None, None), donate=donated)
    asked: Any = "auto"
    if options.stages:
        asked = autoshard.Pipeline(options.stages, options.micro_batches or 4 * options.stages)
    request = Request(cluster=cluster, batch_argnums=(3, 4), pipeline=asked)
    source = traced.source(request)
    module = parse_bytes(source.program.bytecode, new_context(), "step")
    row: Row = {"ops": len(operations_of(module.operation))}
    row["tracing"] = time.process_time() - began
    start, began = time.perf_counter(), time.process_time()
    try:
        plan = plan_traced(traced, request)
    except DoesNotFitError as error:
        return row | {"failed": f"{error.peak_bytes / 2**30:.1f} GiB do not fit"}
    row["cpu"], row["clock"] = time.process_time() - began, time.perf_counter() - start
    tried = () if plan.summary is None else plan.summary.tried_pipelines
    told = sum(one.outcome == "bounded" for one in tried)
    found: Any = plan.pipeline
    shape = "no stages"
    if found is not None:
        chunks = f", {found.asked.chunks} chunks" if found.asked.chunks > 1 else ""
        shape = f"{found.asked.stages} × {found.asked.micro_batches}{chunks}"
    return row | {
        "shape": shape,
        "mesh": str(plan.mesh),
        "planned": max(len(tried) - told, 1),
        "told": told,
        "step": plan.step_seconds,
    }


def table_rows(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """One a cluster."""
    for row in rows:
        about = row["program"], row["cluster"], row["batch"], f"{row.get('ops', 0):,}"
        if "failed" in row:
            yield *about, row["asked"], row["failed"], *[""] * (len(HEADS) - 6)
            continue
        yield (
            *about,
            *(row["asked"], row["shape"], row["mesh"], str(row["planned"]), str(row["told"])),
            *(f"{row['step']:.3f}", f"{row['tracing']:.0f}"),
            *(f"{row['cpu']:.0f}", f"{row['clock']:.0f}"),
        )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", default="llama2-70b", help="in bench/programs/transformer.py")
    parser.add_argument("--clusters", nargs="*", default=CLUSTERS)
    parser.add_argument("--batch", type=int, default=256, help="sequences (256)")
    parser.add_argument("--scan", action="store_true", help="layers as a scan, not unrolled")
    parser.add_argument("--stages", type=int, default=0, help="no search for stages")
    parser.add_argument("--micro-batches", type=int, default=0, help="four a stage")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds a cluster (7200)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the table of a saved file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "pipeline_planning")
    options = parser.parse_args()
    if options.one:
        with contextlib.redirect_stdout(sys.stderr):
            found = measure(options.one, options)
        print(json.dumps(found))
        return
    program = f"{options.model}, {'scanned' if options.scan else 'unrolled'}"
    asked = f"{options.stages} stages" if options.stages else "auto"
    point = ("program", "cluster", "batch", "asked")
    rows = SavedRows(point, options.show or options.save)
    points = [(program, cluster, str(options.batch), asked) for cluster in options.clusters]
    for each in rows.missing([] if options.show else points):
        more = ["--model", options.model, "--batch", str(options.batch)]
        more += ["--stages", str(options.stages), "--micro-batches", str(options.micro_batches)]
        more += ["--scan"] if options.scan else []
        made = in_a_process(__file__, each[1], options.timeout, *more)
        print(*each, made, file=sys.stderr)
        rows.add(each, made)
    table = Table(*HEADS)
    for cells in table_rows(list(rows)):
        table.add_row(*cells)
    console = Console(width=None if sys.stdout.isatty() else 220)
    console.print(table)
    if options.csv:
        results.write_rows(options.csv, HEADS, table_rows(list(rows)))
    console.print(machine())


if __name__ == "__main__":
    main()
