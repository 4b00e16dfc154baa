"""Every train step of the corpus cut into stages: how even, and what crosses; or the refusal.

    python bench/quality/pipeline.py [--stages 2,4,8] [--chip h100] [--slack 1.05] [NAME ...]

Loops over layers are cut by their trips first (``autoshard-split-loops``). Each step is cut into as
many micro-batches as stages, or the next count that divides its batch; the arguments that hold it
are found by structure. ``stages`` are the slowest and the fastest
stage over the mean, of forward and backward pass; ``best`` is the slowest stage in the best
of all contiguous cuts, by the same seconds: those that the cost model gives each op on one device.
``crosses`` is the most that goes over a cut in a micro-batch, both ways, and as how many arrays;
``tasks`` are programs in the loop. ``core`` is the whole decision in the core, with reading the
module; ``seconds`` is the timing of ops by the cost model; ``writes`` the rest of the pass.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.errors import AutoshardError, PlanError
from autoshard.ir import mlir, new_context, parse_file
from autoshard.ir.attributes import LEVEL, STAGE
from autoshard.ir.boundary import main_function
from autoshard.ir.micro_batch_loop import micro_batch_loop, micro_batches_of
from autoshard.ir.native import verify
from autoshard.ir.reading import shape_of
from autoshard.passes.micro_batch import MicroBatch, batch_by_structure
from autoshard.passes.split_loops import SplitLoops
from autoshard.planned.summary import bytes_text
from autoshard.rewrites import stages as rewrite
from bench.common.corpus import entries, machine


@dataclass
class Timed:
    """Seconds of calls, by what was called."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def of(self, name: str, function: Any) -> Any:
        """``function``, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = time.perf_counter() - start

        return timed


def micro_batches(path: Path, stages: int) -> int:
    """The least count, not under ``stages``, that divides the batch."""
    module = parse_file(path, new_context())
    with module.context, mlir.Location.unknown():
        main = main_function(module)
        batch = batch_by_structure(module, main)
        sizes = [shape_of(main.regions[0].blocks[0].arguments[number])[0] for number in batch]
    for count in range(max(stages, 2), min(sizes) + 1):
        if not any(size % count for size in sizes):
            return count
    raise PlanError(f"no count from {stages} on divides the batch, of {sizes[0]} examples")


def row(path: Path, stages: int, cluster: Cluster, slack: float, chunks: int) -> tuple[str, ...]:
    """One module in one number of stages."""
    name = path.name.split(".mlir")[0]
    try:
        count = micro_batches(path, stages)
        module = parse_file(path, new_context())
        SplitLoops(stages=stages, cluster=cluster.name).run(module)
        MicroBatch(micro_batches=count).run(module)
    except AutoshardError as error:
        return (name, str(stages), *[""] * 10, f"loops or micro-batches: {error}")
    cells = (name, str(stages), str(count))
    timed = Timed()
    kept = _core.TimedStep, rewrite.TimedStep.cut, rewrite.op_seconds
    core: Any = _core
    core.TimedStep = timed.of("reads", kept[0])
    rewrite.TimedStep.cut = timed.of("cuts", kept[1])
    rewrite.op_seconds = timed.of("ops", kept[2])
    try:
        with module.context, mlir.Location.unknown():
            cut = timed.of("all", rewrite.into_stages)
            count = micro_batches_of(module)
            found = cut(module, stages, count, cluster, slack, chunks)
    except AutoshardError as error:
        return (*cells, *[""] * 9, f"refused: {error}")
    finally:
        core.TimedStep, rewrite.TimedStep.cut, rewrite.op_seconds = kept
    verify(module)
    mean = sum(found.seconds) / stages
    taken = [sum(found.seconds[stage::stages]) for stage in range(stages)]
    widest = max(found.cuts, key=lambda cut: cut.bytes)
    loop = micro_batch_loop(main_function(module))
    labels = [
        (op.operation.attributes[STAGE], op.operation.attributes[LEVEL])
        for op in loop.regions[1].blocks[0].operations
        if STAGE in op.operation.attributes
    ]
    took = timed.seconds
    core_seconds = took["reads"] + took["cuts"]
    return (
        *cells,
        f"{len(labels):,}",
        str(found.units),
        f"{max(taken) / mean:.3f}",
        f"{min(taken) / mean:.3f}",
        f"{found.least_seconds / mean:.3f}",
        f"{bytes_text(widest.bytes)}, {widest.values}",
        str(len(set(labels))),
        f"{core_seconds:.2f}",
        f"{took['ops']:.1f} / {took['all'] - took['ops'] - core_seconds:.1f}",
        "cut",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="of the corpus, or paths of modules")
    parser.add_argument("--stages", default="2,4,8", help="a list: 2,4,8")
    parser.add_argument("--chip", default="h100", help="by which ops are timed")
    parser.add_argument("--chunks", type=int, default=1, help="parts of the model on each stage")
    parser.add_argument("--slack", type=float, default=1.05, help="of the slowest stage")
    options = parser.parse_args()
    counts = [int(count) for count in options.stages.split(",")]
    files = [Path(name) for name in options.names if Path(name).is_file()]
    named = [name for name in options.names if not Path(name).is_file()]
    if named or not files:
        corpus = entries(named)
        files += [it.path for it in corpus if named or it.name.endswith((".train", ".step"))]
    cluster = Cluster.of(f"{options.chip}:1")
    table = Table(title=f"{machine()}; seconds of {options.chip}")
    for column in ("module", "S", "M", "ops in loop", "units", "slowest", "fastest", "best"):
        table.add_column(column)
    for column in ("crosses", "tasks", "core s", "seconds / writes s"):
        table.add_column(column)
    table.add_column("outcome", overflow="fold")
    for path in files:
        for stages in counts:
            cells = row(path, stages, cluster, options.slack, options.chunks)
            print(*cells, sep=" | ", flush=True, file=sys.stderr)
            table.add_row(*cells)
    Console(width=220).print(table)


if __name__ == "__main__":
    main()
