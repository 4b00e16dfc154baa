"""Pipelines as they run: executed beside simulated schedules, host time, compile time.

    python bench/quality/pipeline_execution.py [--cases 30] [--unit 20]

Stages sleep: their ops take a known time and no processor, so 8 stages are as parallel on one core
as on eight devices. A C++ compiler is needed for the op. ``executed`` is the best of 3 steps, zeros
and updates included; ``simulated`` is the schedule alone. Host time is that of a step whose stages
do not sleep, over its instructions, and of taking an array of stacked layers apart. Compile time is
that of the transformer of ``examples/pipeline.py``, in stages and not, each without JAX's caches:
seconds of the processor, which other programs disturb less than those of a clock.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import autoshard
import pipeline as example
from autoshard.ir import mlir
from autoshard.ir.module import operations_of
from autoshard.pipeline.array_parts import joined, joined_sharding, parts_of
from autoshard.pipeline.order import StagedStep, works_of
from autoshard.pipeline.running import Settings, StagedRun
from autoshard.schedule.rules import RULES, Rule, schedule_of_works
from bench.common.corpus import machine

WIDTH = 64
EQUAL = tuple((stages, micro) for stages in (2, 4, 8) for micro in (8, 16))
"""Stages and micro-batches of the cases with equal stages; the others are random."""
INTERLEAVED = ((2, 8, 2), (2, 8, 4), (4, 8, 2), (4, 16, 2))
"""Stages, micro-batches and chunks of the cases behind them, each part of the model a unit."""
COMPILED_STAGES, COMPILED_LAYERS = (2, 4, 8), (8, 16)
"""Stages and layers of the transformer that is compiled."""


@dataclass(frozen=True)
class Case:
    """A pipeline whose stages sleep."""

    rule: Rule
    micro_batches: int
    naps: tuple[tuple[int, int, int], ...]
    """Units of the forward pass and of both gradients of each part of the model."""
    chunks: int = 1
    """Parts on each stage."""

    @property
    def stages(self) -> int:
        """How many."""
        return len(self.naps) // self.chunks


def register_nap() -> None:
    """Compile the op, and tell JAX and autoshard of it."""
    folder = Path(tempfile.mkdtemp())
    source = Path(__file__).with_name("nap.cc")
    flags = ["-std=c++17", "-w", "-shared", "-fPIC", "-I", jax.ffi.include_dir()]
    subprocess.run(["c++", *flags, str(source), "-o", str(folder / "nap.so")], check=True)
    library = ctypes.cdll.LoadLibrary(str(folder / "nap.so"))
    jax.ffi.register_ffi_target("nap", jax.ffi.pycapsule(library.Nap), platform="cpu")
    autoshard.register_rule("nap", "([i, j])->([i, j])")


def nap(x: jax.Array, microseconds: int) -> jax.Array:
    """``x``, later."""
    call = jax.ffi.ffi_call("nap", jax.ShapeDtypeStruct(x.shape, x.dtype))
    return call(x, microseconds=np.int64(microseconds))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def layer(x: jax.Array, weights: jax.Array, naps: tuple[int, int, int]) -> jax.Array:
    """A matmul that takes as long as it is told."""
    return nap(x @ weights, naps[0])


def _forward(x: Any, weights: Any, naps: tuple[int, int, int]) -> Any:
    return layer(x, weights, naps), (x, weights)


def _backward(naps: tuple[int, int, int], kept: Any, gradient: Any) -> Any:
    x, weights = kept
    return nap(gradient @ weights.T, naps[1]), nap(x, naps[2]).T @ gradient


layer.defvjp(_forward, _backward)


def step_of(case: Case, unit: float) -> Any:
    """A train step with a layer in each part."""
    naps = [tuple(round(part * unit * 1e6) for part in parts) for parts in case.naps]

    def step(weights: list[jax.Array], x: jax.Array) -> Any:
        def loss(weights: list[jax.Array]) -> jax.Array:
            hidden = x
            for part, (own, times) in enumerate(zip(weights, naps, strict=True)):
                run = autoshard.pipeline_stage(partial(layer, naps=times), part)
                hidden = run(hidden, own)
            return jnp.sum(jnp.square(hidden))

        value, gradients = jax.value_and_grad(loss)(weights)
        return [w - 1e-3 * g for w, g in zip(weights, gradients, strict=True)], value

    return step


def staged(case: Case, unit: float) -> tuple[StagedStep, StagedRun, list[Any]]:
    """The step compiled, by the schedule for the times that its stages sleep; its arguments."""
    weights = [jnp.eye(WIDTH) for _ in case.naps]
    x = jnp.ones((WIDTH * case.micro_batches, WIDTH))
    plan = autoshard.plan(
        step_of(case, unit),
        weights,
        x,
        cluster=f"cpu:{case.stages}",
        pipeline=autoshard.Pipeline(case.stages, case.micro_batches, case.rule, chunks=case.chunks),
    )
    assert plan.pipeline is not None
    found = plan.pipeline.step
    seconds = {name: _slept(module) for name, module in found.modules.items()}
    works = works_of(found.program, seconds, dict.fromkeys(found.sent_seconds, 0.0))
    schedule = schedule_of_works(case.rule, works, case.stages, case.micro_batches, case.chunks)
    found = replace(found, schedule=schedule)
    run = StagedRun(found, plan.pipeline.meshes, Settings("autoshard-export-shardy", {}))
    arguments = [
        jax.device_put(value, sharding)
        for value, sharding in zip([*weights, x], run.argument_shardings, strict=True)
    ]
    return found, run, arguments


def _slept(module: mlir.Module) -> float:
    """Seconds that a task sleeps."""
    found = 0
    for op in operations_of(module.operation):
        if op.name == "stablehlo.custom_call" and "@nap" in str(op):
            options = mlir.DictAttr(op.attributes["mhlo.backend_config"])
            found += mlir.IntegerAttr(options["microseconds"]).value
    return found / 1e6


def executed(run: StagedRun, arguments: list[Any]) -> tuple[float, float]:
    """Seconds of a step, and those until all of it was dispatched; the best of three."""
    jax.block_until_ready(run(arguments))
    found: list[tuple[float, float]] = []
    for _ in range(3):
        start = time.perf_counter()
        results = run(arguments)
        dispatched = time.perf_counter() - start
        jax.block_until_ready(results)
        found.append((time.perf_counter() - start, dispatched))
    return min(found)


def cases(count: int) -> list[Case]:
    """Equal stages by each rule, uneven ones, then interleaved ones; the same at every call.

    Args:
        count: Without those that are interleaved.
    """
    draw = random.Random(0)
    found = [
        Case(rule, micro_batches, ((1, 1, 1),) * stages)
        for stages, micro_batches in EQUAL
        for rule in RULES
    ]
    while len(found) < count:
        stages = draw.choice((2, 3, 4, 6, 8))
        naps = [tuple(draw.choice((1, 1, 2, 3)) for _ in range(3)) for _ in range(stages)]
        micro_batches = stages * draw.choice((1, 2))
        found.append(Case(draw.choice(RULES), micro_batches, tuple(naps)))
    return found[:count] + [
        Case("1f1b", micro_batches, ((1, 1, 1),) * stages * chunks, chunks)
        for stages, micro_batches, chunks in INTERLEAVED
    ]


def compile_seconds(stages: int | None, layers: int) -> float:
    """Seconds of the processor from the planned transformer to its first result."""
    jax.clear_caches()
    options: dict[str, Any] = {"micro_batches": 8}
    if stages is not None:
        options = {"pipeline": autoshard.Pipeline(stages, 8)}
    step = autoshard.jit(example.train_step, cluster="cpu:8", check="off", **options)
    params = example.parameters(layers)
    arguments = (params, example.OPTIMIZER.init(params), next(example.batches(1)))
    step.plan(*arguments)
    start = time.process_time()
    jax.block_until_ready(step(*arguments))
    return time.process_time() - start


def compile_times(console: Console) -> None:
    """Print what compiling takes in stages, over what it takes in one program."""
    compile_seconds(None, 2)  # the first compile of a process loads the compiler
    table = Table("layers", "one program", *(f"{stages} stages" for stages in COMPILED_STAGES))
    for layers in COMPILED_LAYERS:
        whole = compile_seconds(None, layers)
        split = [compile_seconds(stages, layers) for stages in COMPILED_STAGES]
        cells = [f"{seconds:.1f} s, {seconds / whole:.2f}" for seconds in split]
        table.add_row(str(layers), f"{whole:.1f} s", *cells)
    console.print("compile and first step, seconds of the processor")
    console.print(table)


def part_microseconds(repeats: int = 200) -> tuple[float, float]:
    """What it takes the host to take an array of stacked layers apart, and to put it together."""
    devices = np.array(jax.devices()).reshape(4, 2)
    spec = jax.sharding.PartitionSpec(None, "model")
    parts = [
        jax.sharding.NamedSharding(jax.sharding.Mesh(own, ("model",)), spec) for own in devices
    ]
    whole = joined_sharding(parts, 2, 0)
    array = jax.device_put(np.ones((8, 8)), whole)
    own = parts_of(array, (2, 8), parts)
    start = time.perf_counter()
    for _ in range(repeats):
        own = parts_of(array, (2, 8), parts)
    between = time.perf_counter()
    for _ in range(repeats):
        joined(own, array.shape, whole)
    end = time.perf_counter()
    return 1e6 * (between - start) / repeats, 1e6 * (end - between) / repeats


def main() -> int:
    """Print the tables; 1 if no case ran."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--cases", type=int, default=30, help="pipelines that are not interleaved (30)"
    )
    options.add_argument("--unit", type=float, default=20, help="milliseconds of a unit (20)")
    options.add_argument("--json", type=Path, help="where the rows go")
    given = options.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    register_nap()
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(machine())
    columns = "stages", "micro-batches", "chunks", "rule", "stage times", "simulated", "executed"
    table = Table(*columns, "more")
    rows: list[dict[str, Any]] = []
    for case in cases(given.cases):
        found, run, arguments = staged(case, given.unit / 1e3)
        seconds, _ = executed(run, arguments)
        more = seconds / found.schedule.seconds - 1
        is_equal = len(set(case.naps)) == 1
        times = "equal" if is_equal else " ".join("".join(map(str, n)) for n in case.naps)
        cells = [case.stages, case.micro_batches, case.chunks, case.rule, times]
        cells += [f"{1e3 * found.schedule.seconds:.0f} ms", f"{1e3 * seconds:.0f} ms"]
        table.add_row(*map(str, cells), f"{more:+.1%}")
        rows.append({"case": str(case), "simulated": found.schedule.seconds, "executed": seconds})
    console.print(table)
    ratios = sorted(row["executed"] / row["simulated"] - 1 for row in rows)
    within = sum(ratio <= 0.05 for ratio in ratios)
    console.print(f"{within} of {len(ratios)} within 5 %, {ratios[0]:+.1%} to {ratios[-1]:+.1%}")

    _, run, arguments = staged(Case("1f1b", 32, ((1, 1, 1),) * 8), 0.0)
    _, dispatched = executed(run, arguments)
    count = len(run.instructions.steps)
    console.print(
        f"host: {1e3 * dispatched:.0f} ms a step of {count} instructions, 8 stages and 32"
        f" micro-batches: {1e6 * dispatched / count:.0f} us each"
    )
    console.print(
        "host: an array of which each of 4 stages of 2 devices has a part is taken apart in"
        " {:.0f} us and put together in {:.0f} us".format(*part_microseconds())
    )
    compile_times(console)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    return int(not rows)


if __name__ == "__main__":
    sys.exit(main())
