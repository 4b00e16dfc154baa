"""Memory and seconds of the stages of pipelines, planned, beside those of the compiled tasks.

    python bench/truth/stages.py [--programs PART ...] [--clusters NAME ...] [--save FILE]
                                 [--show FILE]

A point is a program, its pipeline and a cluster. Each task of the pipeline is compiled ahead of
time for the devices of a stage, as ``plan.pipeline.verify()`` does it; no device is needed. The
peak of a stage is what it keeps while a task runs, by the plan's order, and what that task needs
besides: by the plan, by the compiler's own count (``needed_peaks``), and as the compiler allocates
it where nothing else is on the devices. Seconds are those of one micro-batch: by the plan, and of
the compiled tasks as scheduled; of them the step is simulated once more. Compiled programs are kept
(bench/common/compile_cache.py); ``--save`` keeps the rows as well, and a later run with the same
file measures only what it lacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from bench.common import results
from bench.common.corpus import in_a_process, machine
from bench.common.points import Row, SavedRows

CLUSTERS = ("v5e:4x4", "v5p:2x2x4", "h100:4x8")
POINT = ("program", "cluster")
PEAK_MEAN, PEAK_WORST = 0.05, 0.10
"""The aims: errors of the peaks of stages, and none that is said to fit does not."""

Case = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
"""A step, the shapes of its arguments, and which of them are donated."""


@dataclasses.dataclass(frozen=True)
class Piped:
    """A program, and the pipeline that it is run as."""

    case: Callable[[], Case]
    stages: int
    micro_batches: int
    schedule: str = "1f1b"


def _llama(**changes: Any) -> Case:
    from bench.programs.llama import Config, train_step

    sizes = Config(1024, 2816, heads=16, kv_heads=16, layers=4, batch=64, tokens=1024)
    step, arguments = train_step(dataclasses.replace(sizes, **changes))
    return step, arguments, (0, 1)


def _gpt2() -> Case:
    """Tied embedding, clip of the global norm."""
    from transformers import GPT2Config

    from bench.programs.published import language_model

    config = GPT2Config(n_embd=1024, n_layer=4, n_head=16, vocab_size=50_304)
    return language_model("FlaxGPT2LMHeadModel", config, 32, 1024)


def _roberta() -> Case:
    from bench.programs.published import roberta

    return roberta(layers=4, batch=64)


def _feed_forward() -> Case:
    from bench.programs.storage import feed_forward

    return feed_forward(remat=False, layers=6, tokens=65536)


PROGRAMS = {
    "feed-forward layers": Piped(_feed_forward, 4, 4, "zero_bubble"),
    "llama, 4 layers": Piped(_llama, 4, 8),
    "llama, 8 layers, scan, remat": Piped(
        functools.partial(_llama, layers=8, scan=True, remat=True), 2, 4
    ),
    "llama, 3 layers, remat": Piped(
        functools.partial(_llama, layers=3, remat=True, features=2048, hidden=5632), 2, 4
    ),
    "gpt2 medium, 4 layers": Piped(_gpt2, 2, 8),
    "roberta large, 4 layers": Piped(_roberta, 2, 4, "gpipe"),
}


# One point, in a process of its own


def needed_peaks(found: Any) -> tuple[float, ...] | None:
    """Bytes of each stage by the compiler's own counts; None where a task does not fit alone.

    A task needs what lives at once, as the compiler counts it, or what it allocates where that is
    less. XLA:TPU allocates more where there is room: a task of RoBERTa on v5e:4x4 gets 1,059 MiB of
    16 GiB and 656 of 900 MiB, with 662 and 652 that live at once. But it counts what lies in vector
    memory, too, which takes nothing of what is allocated.
    """
    step, costs = found.step, {}
    for name, one in found.tasks.items():
        allocated, live = one.program.peak_bytes, one.program.live_bytes
        if allocated is None:
            return None
        needed = allocated if live is None else min(allocated, live)
        besides = needed - step.held_bytes(name)
        costs[name] = dataclasses.replace(step.costs[name], transient_bytes=besides)
    return step.peak_bytes_with(costs)


def measure(program: str, cluster_name: str, timeout: float) -> Row:
    """Plan and compile one point; the row."""
    import autoshard
    from autoshard.cluster.stages import cluster_of_a_stage
    from autoshard.errors import AutoshardWarning
    from autoshard.pipeline.staged_verification import verify_staged_step
    from bench.common.compile_cache import cached_compile

    warnings.simplefilter("ignore", AutoshardWarning)
    piped = PROGRAMS[program]
    step, arguments, donated = piped.case()
    asked = autoshard.Pipeline(piped.stages, piped.micro_batches, piped.schedule)
    plan = autoshard.plan(
        step, *arguments, cluster=cluster_name, pipeline=asked, donate_argnums=donated
    )
    pipeline = plan.pipeline
    assert pipeline is not None, "it was asked for"
    found = verify_staged_step(
        pipeline.step,
        cluster_of_a_stage(pipeline.cluster, piped.stages),
        use_shardy=True,
        timeout=timeout,
        device_order=pipeline.machines[0].numbers,
        compiler_options={},
        compiler=cached_compile,
    )
    costs, planned = found.costs, pipeline.step
    return {
        "mesh": str(plan.mesh),
        "tasks": len(found.tasks),
        "programs": len({id(one) for one in found.tasks.values()}),
        "planned peaks": planned.peak_bytes,
        "compiled peaks": needed_peaks(found),
        "allocated peaks": found.peak_bytes,
        "fits": found.fits,
        "planned seconds": planned.work_seconds(planned.costs),
        "compiled seconds": None if costs is None else planned.work_seconds(costs),
        "planned step": planned.step_seconds,
        "compiled step": found.step_seconds,
        "differences": found.differences,
        "transients": {
            name: (
                planned.costs[name].transient_bytes,
                None if found.transient_bytes is None else found.transient_bytes[name],
                planned.kept_bytes[name],
                planned.costs[name].seconds,
                None if costs is None else costs[name].seconds,
            )
            for name in found.tasks
        },
    }


# Tables

STAGE_HEADS = (
    *("program", "stages × micro-batches", "cluster", "stage"),
    *("planned GiB", "compiled GiB", "error", "allocated GiB", "planned ms", "as scheduled ms"),
)
STEP_HEADS = (
    *("program", "rule", "cluster", "mesh of a stage", "programs"),
    *("planned ms", "of compiled tasks ms", "difference"),
)


def stage_rows(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """One a stage."""
    for row in rows:
        piped, seconds = PROGRAMS[row["program"]], row["compiled seconds"]
        for stage, planned in enumerate(row["planned peaks"]):
            compiled = row["compiled peaks"] and row["compiled peaks"][stage]
            allocated = row["allocated peaks"] and row["allocated peaks"][stage]
            yield (
                *(row["program"], f"{piped.stages} × {piped.micro_batches}", row["cluster"]),
                *(str(stage), f"{planned / 2**30:.3f}"),
                "a task does not fit" if compiled is None else f"{compiled / 2**30:.3f}",
                "" if compiled is None else f"{planned / compiled - 1:+.1%}",
                "" if allocated is None else f"{allocated / 2**30:.3f}",
                f"{row['planned seconds'][stage] * 1e3:.3f}",
                "" if seconds is None else f"{seconds[stage] * 1e3:.3f}",
            )


def step_rows(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """One a point."""
    for row in rows:
        planned, compiled = row["planned step"], row["compiled step"]
        yield (
            *(row["program"], PROGRAMS[row["program"]].schedule, row["cluster"], row["mesh"]),
            *(str(row["programs"]), f"{planned * 1e3:.2f}"),
            "" if compiled is None else f"{compiled * 1e3:.2f}",
            "" if compiled is None else f"{planned / compiled - 1:+.1%}",
        )


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each aim."""
    for said in ("compiled", "allocated"):
        errors = [
            planned / theirs - 1
            for row in rows
            if row[f"{said} peaks"] is not None
            for planned, theirs in zip(row["planned peaks"], row[f"{said} peaks"], strict=True)
        ]
        if not errors:
            continue
        mean = sum(map(abs, errors)) / len(errors)
        within = sum(abs(error) <= PEAK_WORST for error in errors)
        yield (
            f"{len(errors)} stages beside what is {said}: mean error {mean:.1%} (aim"
            f" {PEAK_MEAN:.0%}), {within} within {PEAK_WORST:.0%}, from {min(errors):+.1%} to"
            f" {max(errors):+.1%}."
        )
    yield f"{sum(not row['fits'] for row in rows)} plans that were said to fit do not (aim 0)."


def main() -> None:
    """Measure what is not there yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="*", default=[], metavar="PART")
    parser.add_argument("--clusters", nargs="*", default=CLUSTERS, metavar="NAME")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a compile (600)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the tables of a saved file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    results.add_option(parser, "stages")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.cluster, options.timeout)))
        return
    rows = SavedRows(POINT, options.show or options.save)
    points = [
        (program, cluster)
        for cluster in options.clusters
        for program in PROGRAMS
        if not options.programs or any(part in program for part in options.programs)
    ]
    for program, cluster in rows.missing([] if options.show else points):
        more = ("--cluster", cluster, "--timeout", str(options.timeout))
        made = in_a_process(__file__, program, 20 * options.timeout, *more)
        print(program, cluster, made.get("failed", made.get("compiled peaks")), file=sys.stderr)
        rows.add((program, cluster), made)
    failed = [row for row in rows if "failed" in row]
    places = {program: place for place, program in enumerate(PROGRAMS)}
    measured = sorted(
        (row for row in rows if "failed" not in row),
        key=lambda row: (places[row["program"]], row["cluster"]),
    )
    console = Console(width=None if sys.stdout.isatty() else 200)
    for heads, cells in ((STAGE_HEADS, stage_rows(measured)), (STEP_HEADS, step_rows(measured))):
        table = Table(*heads)
        for row in cells:
            table.add_row(*row)
        console.print(table)
    if options.csv:
        results.write_rows(options.csv, STAGE_HEADS, stage_rows(measured))
        steps = options.csv.with_stem(f"{options.csv.stem}-steps")
        results.write_rows(steps, STEP_HEADS, step_rows(measured))
    for line in (*summary(measured), *(f"failed: {row}" for row in failed), machine()):
        console.print(line)


if __name__ == "__main__":
    main()
