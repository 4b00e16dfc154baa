"""Every train step of the corpus in micro-batches: cut, or refused with line, rule and reason.

    python bench/quality/micro_batches.py [--micro-batches 2,4,8] [NAME or FILE ...]
    python bench/quality/micro_batches.py --per-micro-batch keras/src/backend/jax/nn.py:1053 NAME

The arguments that hold the batch are found by structure, as the pass does. ``core`` is the decision
what each value is in time; ``rules`` reads the factor rules of each class of ops; ``whole`` is the
pass with inlining and rewriting. The module that comes out is verified by MLIR; it is not run.
``before`` counts lines that are computed of the whole batch before the loop. A count that does not
divide the batch is left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard import _core
from autoshard.errors import PlanError
from autoshard.importer.micro_batch_cuts import cut_of
from autoshard.ir import mlir, new_context, parse_file
from autoshard.ir.boundary import main_function
from autoshard.ir.module import operations_of, structure_of
from autoshard.ir.native import verify
from autoshard.ir.reading import shape_of
from autoshard.passes.micro_batch import batch_by_structure
from autoshard.planned.write import populate_rules
from autoshard.rewrites.micro_batches.inline import inline
from autoshard.rewrites.micro_batches.rewrite import into_micro_batches
from bench.common.corpus import entries, machine


@dataclass(frozen=True)
class Analysis:
    """What it takes to decide."""

    batch: list[int]
    size: int
    """Examples."""
    ops: int
    core_seconds: float
    rules_seconds: float


def analysis(path: Path, count: int) -> Analysis:
    """Seconds of the core alone, and of the rules that it asks for."""
    module = parse_file(path, new_context())
    with module.context, mlir.Location.unknown():
        main = main_function(module)
        batch = batch_by_structure(module, main)
        inline(module)
        populate_rules(module)
        main = main_function(module)
        operations = operations_of(module.operation)
        structure = structure_of(module)
        rules = 0.0

        def describe(number: int) -> _core.OpCut:
            nonlocal rules
            start = time.perf_counter()
            made = cut_of(operations[number])
            rules += time.perf_counter() - start
            return made

        start = time.perf_counter()
        with suppress(_core.CannotMicroBatch):  # the pass says why, too
            _core.micro_batch_times(
                structure,
                main=operations.index(main),
                arguments=batch,
                micro_batches=count,
                each=[],
                describe=describe,
            )
        took = time.perf_counter() - start
        size = min(shape_of(main.regions[0].blocks[0].arguments[number])[0] for number in batch)
    return Analysis(batch, size, len(operations), took - rules, rules)


def rows(path: Path, counts: list[int], lines: list[str]) -> list[tuple[str, ...]]:
    """One module: for each count ops, seconds, and what came of it."""
    found: list[tuple[str, ...]] = []
    for count in counts:
        name = path.name.split(".mlir")[0]
        try:
            analysed = analysis(path, count)
        except PlanError as error:
            return [(name, "", "", "", "", "", "", f"refused: {error}")]
        if analysed.size % count:
            continue
        cells = (name, str(count), f"{analysed.ops:,}", f"{analysed.core_seconds:.2f}")
        cells = (*cells, f"{analysed.rules_seconds:.2f}")
        module = parse_file(path, new_context())
        start = time.perf_counter()
        with module.context, mlir.Location.unknown():
            try:
                made = into_micro_batches(module, analysed.batch, count, lines)
            except PlanError as error:
                found.append((*cells, "", "", f"refused: {error}"))
                continue
        whole = time.perf_counter() - start
        verify(module)
        found.append((*cells, f"{whole:.1f}", str(len(made.whole)), "cut"))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="of the corpus, or paths of modules")
    parser.add_argument("--micro-batches", default="4", help="a list: 2,4,8")
    parser.add_argument("--per-micro-batch", action="append", default=[], metavar="LINE")
    options = parser.parse_args()
    counts = [int(count) for count in options.micro_batches.split(",")]
    files = [Path(name) for name in options.names if Path(name).is_file()]
    named = [name for name in options.names if not Path(name).is_file()]
    if named or not files:
        corpus = entries(named)
        files += [it.path for it in corpus if named or it.name.endswith((".train", ".step"))]
    table = Table(title=machine())
    for column in ("module", "micro-batches", "ops", "core s", "rules s", "whole s", "before"):
        table.add_column(column)
    table.add_column("outcome", overflow="fold")
    for path in files:
        print(path.name, flush=True, file=sys.stderr)
        for row in rows(path, counts, options.per_micro_batch):
            table.add_row(*row)
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
