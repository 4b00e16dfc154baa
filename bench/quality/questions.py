"""Questions about plans of the corpus: do causes end, and do alternatives agree with planning anew?

    python bench/quality/questions.py [--cluster v5p:4x4x4] [--alternatives 20] [MODULE ...]

Of every program of the corpus that fits: seconds that a plan, a cause and a why-not take, in the
mean and at worst; where the links of the ten dearest collectives end; and how often the answer to a
random alternative (an argument pinned on the plan's mesh) is at most 0.2% above reading and
planning the file anew with that pin, or both say that nothing fits. "above" is the longest step of
an answer over the one that was planned anew, "faster" by how much the fastest answer is faster than
the plan itself, which the search missed. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.errors import AutoshardError, DoesNotFitError
from autoshard.explain.causes import collectives, why
from autoshard.explain.question import Subject, subject_of_module
from autoshard.explain.values import named_values, values_called
from autoshard.explain.why_not import why_not
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import parse_bytes, print_module
from autoshard.ir.boundary import pin
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.sharding import Sharding, to_v2
from bench.common import results
from bench.common.corpus import Entry, entries, in_a_process, load, machine

DEAREST = 10
SAME = 2e-3
HEADINGS = (
    "ops",
    "plan s",
    "cause s",
    "ends",
    "unknown",
    "why-not s",
    "worst s",
    "agree",
    "of",
    "above",
    "faster",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="all but .expert if none")
    parser.add_argument("--cluster", default="v5p:4x4x4")
    parser.add_argument("--alternatives", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=900, help="seconds a module (900)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "questions")
    given = parser.parse_args()
    if given.one:
        cluster = Cluster.of(given.cluster)
        print(json.dumps(measure(entries([given.one])[0], cluster, given.alternatives)))
        return
    table = Table(title=f"Questions about plans for {given.cluster}")
    table.add_column("module")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    options = ("--cluster", given.cluster, "--alternatives", str(given.alternatives))
    for name in given.modules or [one.name for one in entries([]) if not one.is_expert]:
        found = in_a_process(__file__, name, given.timeout, *options)
        print(name, found, file=sys.stderr, flush=True)
        cells = [found.get(heading, "") for heading in HEADINGS]
        table.add_row(name, *([found["failed"], *cells[1:]] if "failed" in found else cells))
    Console(width=180).print(table)
    print(f"Measured on {machine()}.")
    results.write(given.csv, table)


def measure(entry: Entry, cluster: Cluster, alternatives: int) -> dict[str, Any]:
    """Plan one module, and ask about the plan."""
    module = load(entry)
    start = time.process_time()
    try:
        planned = search_module(module, cluster, RecursiveProgramming())
    except DoesNotFitError:
        return {"failed": "does not fit"}
    took = time.process_time() - start
    copy = parse_bytes(print_module(planned.module, "bytecode"), module.context)
    subject = subject_of_module(entry.name, copy, planned.summary)
    ends: Counter[str] = Counter()
    unknown = 0
    start = time.process_time()
    count = min(DEAREST, len(collectives(subject.imported, subject.plan)))
    for number in range(1, count + 1):
        found = why(subject, number)
        ends.update(found.ends)
        unknown += not found.links
    per_cause = (time.process_time() - start) / max(1, count)
    asked = _alternatives(entry, subject, alternatives)
    return {
        "ops": str(subject.imported.program.num_ops),
        "plan s": f"{took:.2f}",
        "cause s": f"{per_cause:.2f}",
        "ends": " ".join(f"{end} {times}" for end, times in sorted(ends.items())),
        "unknown": str(unknown),
        "why-not s": f"{sum(asked.seconds) / len(asked.seconds):.2f}",
        "worst s": f"{max(asked.seconds):.2f}",
        "agree": str(asked.agree),
        "of": str(len(asked.seconds)),
        "above": f"{max(0.0, asked.above):.2%}",
        "faster": f"{max(0.0, asked.faster):.2%}",
    }


@dataclass
class _Asked:
    """Random alternatives that were asked about."""

    seconds: list[float] = field(default_factory=list[float])
    """What each answer took."""
    agree: int = 0
    above: float = 0.0
    """The largest share by which an answer's step is longer than that of planning anew."""
    faster: float = 0.0
    """The largest share by which an answer's step is shorter than the plan's."""

    def add(self, plan: float, step: float | None, anew: float | None) -> None:
        """One more: the step of the plan, of the answer, and of planning anew."""
        if step is None or anew is None:
            self.agree += step is anew
            return
        self.agree += step <= anew * (1 + SAME)
        self.above = max(self.above, step / anew - 1)
        self.faster = max(self.faster, 1 - step / plan)


def _alternatives(entry: Entry, subject: Subject, count: int) -> _Asked:
    """Random pins of arguments."""
    drawn, asked = random.Random(0), _Asked()
    arguments = list(subject.imported.functions[-1].arguments)
    numbers = [number for number, value in enumerate(arguments) if value != NO_VALUE]
    names: dict[int, str] = {}
    for name, value in named_values(subject):
        names.setdefault(value, name)
    for _ in range(count):
        number = drawn.choice(numbers)
        value = arguments[number]
        sharding = _random_sharding(subject, value, drawn)
        assert values_called(subject, names[value]) == [value]
        start = time.process_time()
        found = why_not(subject, [f"{names[value]}={sharding}"])
        asked.seconds.append(time.process_time() - start)
        step = None if found.extra_seconds is None else subject.step_seconds + found.extra_seconds
        anew = _planned_anew(entry, subject, number, sharding)
        asked.add(subject.step_seconds, step, anew)
        said = f"{asked.seconds[-1]:.2f} s {names[value]} {sharding}: {found.verdict} {step} {anew}"
        print(f"  {said}", file=sys.stderr, flush=True)
    return asked


def _planned_anew(entry: Entry, subject: Subject, number: int, sharding: Sharding) -> float | None:
    """Seconds of a step of the file with that pin, read and planned as if for the first time."""
    module = load(entry)
    with module.context:
        pin(module, "arg_attrs", {number: to_v2(sharding)})
    try:
        options = RecursiveProgramming(mesh=str(subject.mesh))
        return search_module(module, subject.cluster, options).summary.step_seconds
    except AutoshardError:
        return None


def _random_sharding(subject: Subject, value: int, drawn: random.Random) -> Sharding:
    """A value cut by some of the axes, each in some dim that it divides, or whole."""
    shape: Sequence[int] = subject.imported.value_shapes[value]
    dims: list[tuple[str, ...]] = [() for _ in shape]
    left = list(shape)
    for axis in subject.mesh.axes:
        fitting = [dim for dim, size in enumerate(left) if size and size % axis.size == 0]
        at = drawn.choice([*fitting, None])
        if at is not None:
            dims[at] = (*dims[at], axis.name)
            left[at] //= axis.size
    return Sharding.named(subject.mesh, *dims)


if __name__ == "__main__":
    main()
