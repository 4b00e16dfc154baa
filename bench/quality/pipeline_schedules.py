"""Schedules of pipelines: the bubbles beside closed forms, uneven stages beside trying everything.

    python bench/quality/pipeline_schedules.py [--cases 400] [--draw]

No device is needed. Seconds are whole numbers, so bubbles are compared exactly. ``worst`` is the
schedule's seconds over the best ones under the same limits, of random stages of 2 to 6 seconds each
for the forward pass, gradients of inputs and gradients of weights, with transfers of 0 or 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test" / "unit"))

from rich.console import Console
from rich.table import Table
from schedule_oracle import best_seconds

from autoshard.schedule.gantt import gantt
from autoshard.schedule.rules import RULES, Rule, limits_of, pipeline_schedule
from autoshard.schedule.work import StageSeconds
from bench.common.corpus import machine

SIZES = (
    *((2, 1, 4), (4, 1, 4), (4, 1, 16), (8, 1, 8), (8, 1, 32), (16, 1, 64)),
    *((2, 2, 4), (4, 2, 8), (4, 4, 16), (8, 2, 16), (8, 4, 32)),
)
"""Stages, chunks a stage, micro-batches."""


def closed_form(rule: Rule, stages: int, chunks: int, micro_batches: int) -> Fraction:
    """The bubble of equal stages with forward pass and both gradients alike."""
    parts = 3 if rule == "zero_bubble" else chunks
    return Fraction(stages - 1, parts * micro_batches + stages - 1)


def bubbles() -> Table:
    """By rule and size."""
    table = Table(title="equal stages")
    for column in ("rule", "stages", "chunks", "micro-batches", "bubble", "closed form", "ms"):
        table.add_column(column, justify="right")
    table.add_column("micro-batches kept, by stage")
    for rule in RULES:
        for stages, chunks, micro_batches in SIZES:
            if chunks > 1 and rule != "1f1b":
                continue
            start = time.perf_counter()
            each = [StageSeconds(1, 1, 1)] * (stages * chunks)
            made = pipeline_schedule(rule, each, stages, micro_batches)
            took = 1e3 * (time.perf_counter() - start)
            found = Fraction(made.idle_seconds) / Fraction(stages * made.seconds)
            wanted = closed_form(rule, stages, chunks, micro_batches)
            sizes = map(str, (stages, chunks, micro_batches, found, wanted, round(took)))
            table.add_row(rule, *sizes, " ".join(map(str, made.in_flight())))
    return table


def uneven(cases: int) -> Table:
    """By rule."""
    numbers = random.Random(1)
    ratios: dict[Rule, list[float]] = {"1f1b": [], "zero_bubble": []}
    for _ in range(cases):
        stages = numbers.choice([2, 2, 3])
        count = numbers.randint(2, 4 if stages == 2 else 3)
        chunks = [StageSeconds(*(numbers.randint(2, 6) for _ in range(3))) for _ in range(stages)]
        transfer = numbers.choice([0, 0, 1])
        for rule, found in ratios.items():
            made = pipeline_schedule(rule, chunks, stages, count, transfer_seconds=transfer)
            best = best_seconds(made.works, count, limits_of(rule, stages, 1), transfer)
            found.append(made.seconds / best)
    table = Table(title=f"{cases} random pipelines of 2 or 3 stages, beside trying everything")
    for column in ("rule", "best", "within 2 %", "mean", "worst"):
        table.add_column(column, justify="right")
    for rule, found in ratios.items():
        near = sum(it <= 1.02 for it in found)
        mean, worst = sum(found) / len(found), max(found)
        table.add_row(rule, str(found.count(1)), str(near), f"{mean:.4f}", f"{worst:.3f}")
    return table


def main() -> None:
    """Print both tables, and charts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--draw", action="store_true", help="charts of four stages")
    options = parser.parse_args()
    console = Console(width=160)
    console.print(bubbles(), uneven(options.cases), machine())
    for rule in RULES if options.draw else ():
        print(rule, gantt(pipeline_schedule(rule, [StageSeconds(1, 1, 1)] * 4, 4, 8)), sep="\n")


if __name__ == "__main__":
    main()
