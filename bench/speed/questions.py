"""Seconds that answers about a plan of Llama-2-70B take, beside those of the plan.

    python bench/speed/questions.py [--unrolled]

"CPU s" is what the process computed, all threads together; it is less than "s" where other programs
had the processor. The targets: a why-not takes less than the plan, a frontier at most five times as
long, a sweep of twenty points less than ten seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

import autoshard
from bench.programs.llama import LLAMA2, train_step

CLUSTER = "v5p:4x4x4"
CLUSTERS = ["v5p:4x4x4", "v5p:4x4x8", "v5p:4x8x8", "v5p:8x8x8", "v5p:8x8x16"]
BANDWIDTHS = [0.5, 1, 2, 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--unrolled", action="store_true", help="80 layers on their own")
    given = parser.parse_args()
    config = dataclasses.replace(LLAMA2["70B"], batch=16, tokens=2048, scan=not given.unrolled)
    step, arguments = train_step(config)
    table = Table("what", "s", "CPU s", "of the plan's", "")

    def timed(what: str, ask: Callable[[], Any], said: Callable[[Any], str]) -> Any:
        wall, spent = time.perf_counter(), time.process_time()
        found = ask()
        seconds, computed = time.perf_counter() - wall, time.process_time() - spent
        part = "" if plan is None else f"{seconds / plan_seconds:.2f}"
        table.add_row(what, f"{seconds:.2f}", f"{computed:.2f}", part, said(found))
        return found

    plan: Any = None
    plan_seconds = 0.0
    plan = timed(
        "traced and planned",
        lambda: autoshard.plan(step, *arguments, cluster=CLUSTER, donate_argnums=(0, 1)),
        lambda plan: f"{plan.mesh}, {plan.step_seconds:.3f} s a step",
    )
    plan_seconds = plan.summary.total_planning_seconds
    table.add_row("planned", f"{plan_seconds:.2f}", "", "1.00", "")
    ops = timed("read again", lambda: plan.subject, lambda s: f"{len(s.imported.core_ops):,} ops")
    assert ops is plan.subject
    head = "[0]" if given.unrolled else ""
    timed("why not a weight whole", lambda: plan.why_not(f"p.layers{head}.wo=P()"), _verdict)
    timed("why the dearest collective", lambda: plan.why(1), lambda why: ", ".join(why.ends))
    timed("frontier", plan.frontier, lambda found: f"{len(found.points)} plans")
    timed("sensitivities", plan.sensitivities, lambda found: f"{len(found.rows)} numbers")
    timed(
        "what if, 20 points",
        lambda: plan.what_if(cluster=CLUSTERS, bandwidth=BANDWIDTHS),
        lambda found: f"{sum(point.fits for point in found.points)} fit",
    )
    Console(width=140).print(table)


def _verdict(found: Any) -> str:
    return f"{found.verdict}: {found.reason}"[:80]


if __name__ == "__main__":
    main()
