"""Programs that run in turns on the same parameters: planned together, and each alone.

    python bench/quality/together.py [--only CASE ..] [--no-compile] [--csv]

For ``v5p:2x2x2``: a train and a decode step of Llama, a prefill and decode steps, and PPO. A row is
a program, as ``autoshard.plan`` has it alone and as ``autoshard.plan_together`` has it, by plan and
as XLA:TPU compiles it. Needs ``autoshard[tpu]`` to compile, no TPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

import autoshard
from bench.common import results
from bench.common.corpus import machine
from bench.programs import llama, serving

CLUSTER, MIB = "v5p:2x2x2", 2**20


@dataclass(frozen=True)
class Case:
    """Programs on the same parameters."""

    name: str
    programs: list[tuple[Any, ...]]
    """A function and its arguments, of which the first is what is shared."""
    weights: tuple[float, ...]
    each: list[dict[str, Any]]


def cases() -> Iterator[Case]:
    """All of them."""
    config = dataclasses.replace(
        llama.LLAMA2["7B"], layers=8, batch=16, tokens=1024, parameter_dtype="bfloat16"
    )
    step, (params, *others) = llama.train_step(config)

    def train(params: Any, *rest: Any) -> Any:
        return step(params, *rest)

    decode, read = serving.decode(config, 64)
    yield Case(
        "train, decode",
        [(train, params, *others), (decode, params, *read)],
        (1, 500),
        [{"donate_argnums": (0, 1)}, {"donate_argnums": 1}],
    )
    decode, read = serving.decode(config, 8)
    prefill, prompt = serving.prefill(config, 8, 512)
    yield Case(
        "prefill, decode",
        [(prefill, params, *prompt), (decode, params, *read)],
        (1, 500),
        [{"donate_argnums": 1}, {"donate_argnums": 1}],
    )
    rollout, update, (params, *start), rest = serving.ppo(4096, 128, 1024)
    yield Case(
        "PPO",
        [(rollout, params, *start), (update, params, *rest)],
        (1, 4),
        [{}, {"donate_argnums": (0, 1)}],
    )


def rows(case: Case, compiles: bool) -> Iterator[list[str]]:
    """A row a program and way."""
    together = autoshard.plan_together(
        case.programs, share="params", weights=case.weights, each=case.each, cluster=CLUSTER
    )
    print(together, flush=True)
    for number, (fn, *arguments) in enumerate(case.programs):
        alone = autoshard.plan(fn, *arguments, cluster=CLUSTER, **case.each[number])
        for way, plan in (("alone", alone), (together.way.name, together.plans[number])):
            yield [case.name, fn.__name__, way, *numbers(plan, compiles)]
    for move in together.moves:
        if move is not None:
            yield [case.name, "move", together.way.name, *numbers(move, compiles)]


def numbers(plan: autoshard.Plan, compiles: bool) -> list[str]:
    """Mesh, milliseconds and MiB on a device by plan, then by compiler."""
    found = [str(plan.mesh), f"{plan.step_seconds * 1e3:.3f}", f"{plan.peak_bytes / MIB:.0f}"]
    if not compiles:
        return [*found, "", ""]
    verified: Any = plan.verify()
    estimate, peak = verified.estimate, verified.program.peak_bytes
    return [
        *found,
        "" if estimate is None else f"{estimate.step_seconds * 1e3:.3f}",
        "" if peak is None else f"{peak / MIB:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="CASE")
    parser.add_argument("--no-compile", action="store_true")
    results.add_option(parser, "together")
    given = parser.parse_args()
    print(machine())
    heads = ("case", "program", "way", "mesh", "ms", "MiB", "compiled ms", "compiled MiB")
    table = Table(*heads)
    for case in cases():
        if given.only is None or case.name in given.only:
            for row in rows(case, not given.no_compile):
                print(*row, sep="  ", flush=True)
                table.add_row(*row)
    Console(width=160).print(table)
    results.write(given.csv, table)


if __name__ == "__main__":
    main()
