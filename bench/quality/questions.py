"""Questions about plans of the corpus: do causes end, and do alternatives agree with planning anew?

    python bench/quality/questions.py [--cluster v5p:4x4x4] [--alternatives 20] [MODULE ...]

Of every train step of the corpus that fits: seconds of a plan, seconds a cause and a why-not take,
where the links of the ten dearest collectives end, and how often a random alternative (a pin of an
argument on the plan's mesh) is found at most 0.2% above the search from nothing with that pin.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.errors import DoesNotFitError
from autoshard.explain.causes import collectives, why
from autoshard.explain.question import Change, Subject, subject_of_module
from autoshard.explain.values import named_values
from autoshard.importer.pins import DimPin, Pin, Pinned
from autoshard.ir import parse_bytes, print_module
from autoshard.passes.recursive_programming import (
    RecursiveProgramming,
    search_module,
)
from bench.common.corpus import entries, load

DEAREST = 10
SAME = 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--cluster", default="v5p:4x4x4")
    parser.add_argument("--alternatives", type=int, default=20)
    given = parser.parse_args()
    columns = ("module", "ops", "plan s", "cause s", "ends", "unknown", "why-not s", "agree", "of")
    table = Table(*columns)
    for entry in entries(given.modules):
        if entry.is_expert:
            continue
        row = _row(entry, Cluster.of(given.cluster), given.alternatives)
        table.add_row(entry.name, *row)
        print("  ".join((entry.name, *row)), file=sys.stderr)
    Console(width=160).print(table)


def _row(entry: Any, cluster: Cluster, alternatives: int) -> tuple[str, ...]:
    module = load(entry)
    start = time.perf_counter()
    try:
        planned = search_module(module, cluster, RecursiveProgramming())
    except DoesNotFitError:
        return ("", "does not fit", *[""] * 6)
    took = time.perf_counter() - start
    copy = parse_bytes(print_module(planned.module, "bytecode"), module.context)
    subject = subject_of_module(entry.name, copy, planned.summary)
    ends: Counter[str] = Counter()
    unknown = 0
    start = time.perf_counter()
    count = min(DEAREST, len(collectives(subject.imported, subject.plan)))
    for number in range(1, count + 1):
        found = why(subject, number)
        ends.update(found.ends)
        unknown += not found.links
    per_cause = (time.perf_counter() - start) / max(1, count)
    agree, of, per_question = _alternatives(subject, alternatives)
    return (
        f"{subject.imported.program.num_ops:,}",
        f"{took:.2f}",
        f"{per_cause:.2f}",
        " ".join(f"{end} {times}" for end, times in sorted(ends.items())),
        str(unknown),
        f"{per_question:.2f}",
        str(agree),
        str(of),
    )


def _alternatives(subject: Subject, count: int) -> tuple[int, int, float]:
    """Random pins of arguments: how many agree, of how many, and seconds of one answer."""
    drawn = random.Random(0)
    arguments = [value for _, value in named_values(subject)]
    agree, spent = 0, 0.0
    for _ in range(count):
        change = Change(pins=(_random_pin(subject, drawn.choice(arguments), drawn),))
        start = time.perf_counter()
        found = subject.searched(change)
        spent += time.perf_counter() - start
        scratch = subject.from_nothing(change)
        if found.plan is None or scratch.plan is None:
            agree += found.fits == scratch.fits
        else:
            agree += found.plan.step_seconds <= scratch.plan.step_seconds * (1 + SAME)
    return agree, count, spent / max(1, count)


def _random_pin(subject: Subject, value: int, drawn: random.Random) -> Pinned:
    """A value cut by some of the axes, each in some dim that it divides, or whole."""
    shape: Sequence[int] = subject.imported.value_shapes[value]
    dims: list[tuple[int, ...]] = [() for _ in shape]
    left = list(shape)
    for number, axis in enumerate(subject.mesh.axes):
        fitting = [dim for dim, size in enumerate(left) if size and size % axis.size == 0]
        at = drawn.choice([*fitting, None])
        if at is not None:
            dims[at] += (number,)
            left[at] //= axis.size
    return Pinned(value, Pin(tuple(map(DimPin, dims))), None, str(dims), is_users=False)


if __name__ == "__main__":
    main()
