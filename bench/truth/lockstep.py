"""Pipelines in lockstep as planned and as compilers make them, beside a program for each stage.

    python bench/truth/lockstep.py [--clusters v5e:4x4 h100:8] [--csv]

The step is a Llama's with 16 scanned layers that are computed again, 4 stages, 16 micro-batches.
``stages`` is what autoshard plans for programs of their own; lockstep is planned with a delay of
one turn and of two, and compiled ahead of time for all devices: no device is needed, but
``autoshard[tpu]`` and ``[gpu]``. The compiled peak is what lives at once by the compiler's count,
as in the other tables; ``needed`` is what it says that the program takes of a device. ``hidden
permutes`` counts those between whose start and done the compiler put a loop.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

import autoshard
from autoshard.cluster import Cluster
from autoshard.errors import CompileError
from autoshard.frontend import lockstep_planning
from autoshard.planned.summary import bytes_text, seconds_text
from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.programs.llama import LLAMA2, train_step

CONFIG = dataclasses.replace(
    LLAMA2["7B"],
    features=2048,
    hidden=5632,
    heads=16,
    kv_heads=16,
    layers=16,
    batch=64,
    tokens=1024,
    scan=True,
    remat=True,
)
STAGES, MICRO_BATCHES = 4, 16


def planned(cluster: str, execution: Any, delay: int = 1) -> autoshard.Plan:
    """The plan; one in lockstep has this delay."""
    step, arguments = train_step(CONFIG)
    of = lockstep_planning.InLockstep.of
    with patch.object(
        lockstep_planning.InLockstep, "of", staticmethod(lambda s, r, _: of(s, r, delay))
    ):
        return autoshard.plan(
            step,
            *arguments,
            cluster=cluster,
            pipeline=autoshard.Pipeline(STAGES, MICRO_BATCHES, execution=execution),
            batch_argnums=(2, 3),
            donate_argnums=(0, 1),
        )


def hidden_permutes(text: str) -> str:
    """Permutes between whose start and done there is a loop, and how many there are."""
    found = all_ = 0
    open_: dict[str, bool] = {}
    for line in text.splitlines():
        if start := re.match(r"\s*(?:ROOT )?%?(\S+) = .*collective-permute-start\(", line):
            open_[start[1]] = False
        elif done := re.search(
            r"collective-permute-done\(.*?%?(collective-permute-start\S*?)\)", line
        ):
            all_ += 1
            found += open_.pop(done[1], False)
        elif re.search(r" while\(", line):
            open_ = dict.fromkeys(open_, True)
    return f"{found} of {all_}"


def rows(cluster: str) -> Iterator[tuple[str, ...]]:
    """Those of one cluster."""
    plan = planned(cluster, "stages")
    pipeline: Any = plan.pipeline
    yield (
        cluster,
        f"stages, {pipeline.schedule}",
        "",
        seconds_text(plan.step_seconds),
        bytes_text(plan.peak_bytes),
        *("",) * 4,
    )
    for delay in (1, 2):
        plan = planned(cluster, "lockstep", delay)
        said = cluster, "lockstep", str(delay)
        said += seconds_text(plan.step_seconds), bytes_text(plan.peak_bytes)
        try:
            program = cached_compile(
                plan.exported("autoshard-export-shardy"), Cluster.parse(cluster), timeout=600
            )
        except CompileError as error:
            yield *said, str(error).splitlines()[0], "", "", ""
            continue
        if program.live_bytes is None:
            yield *said, "does not fit", "", bytes_text(program.needed_bytes), ""
            continue
        more = f"{plan.peak_bytes / program.live_bytes - 1:+.1%}"
        needed = bytes_text(program.needed_bytes)
        hidden = hidden_permutes(program.hlo_text or "")
        yield *said, bytes_text(program.live_bytes), more, needed, hidden


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", nargs="+", default=["v5e:4x4", "h100:8"], metavar="NAME")
    results.add_option(parser, "lockstep-compiled")
    options = parser.parse_args()
    heads = "cluster", "execution", "delay", "planned step", "planned peak"
    table = Table(*heads, "compiled peak", "error", "needed", "hidden permutes")
    for cluster in options.clusters:
        for row in rows(cluster):
            table.add_row(*row)
    Console(width=130).print(table)
    results.write(options.csv, table)


if __name__ == "__main__":
    main()
