"""Kernels of one device on a GPU, beside what plans say of them.

    python bench/truth/gpu_kernels.py prepare FOLDER [--programs PART ...]
    python bench/truth/gpu_kernels.py run FOLDER        where the GPU is
    python bench/truth/gpu_kernels.py table [FILE] [--csv FILE]

``prepare`` plans the programs of bench/programs/gpu_kernels.py for one GPU; it needs none. ``run``
needs one, and of packages jax and autoshard alone: it compiles all, kernels tuned, runs each
five times and writes FOLDER/measured.csv, in which a program has the seconds of its kernels. FILE
of ``table`` is that one, or a table that was made before (default: bench/results/gpu_kernels.csv):
what was measured then stands beside the plan of today.
"""

from __future__ import annotations

import argparse
import bisect
import csv
import json
import math
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import results

CLUSTER = "h200:1"
RUNS, COMPILES = 5, 6
HEADS = (
    *("program", "planned us", "measured us", "planned over measured"),
    *("planned GiB", "compiled GiB", "longest kernel"),
)
MEASURED = ("program", "measured us", "compiled GiB", "longest kernel")


# Without a GPU


def plans(parts: list[str]) -> Iterator[tuple[str, Any, Sequence[Any]]]:
    """The plan of each program whose name has one of the parts, and its arguments."""
    import autoshard
    from bench.programs.gpu_kernels import programs

    for name, (function, arguments) in programs().items():
        if any(part in name for part in parts or [""]):
            yield name, autoshard.plan(function, *arguments, cluster=CLUSTER), arguments


def prepare(folder: Path, parts: list[str]) -> None:
    """NAME.mlir.gz as the compiler takes it, and NAME.json with its arguments."""
    from autoshard.ir import new_context, parse_bytes
    from autoshard.passes.pipeline import run_passes
    from bench.truth.gpu_runs import MODULE, write_program

    folder.mkdir(parents=True, exist_ok=True)
    for name, plan, arguments in plans(parts):
        stem = re.sub(r"\W+", "_", name)
        module = parse_bytes(plan.bytecode, new_context(), name)
        run_passes(module, ["autoshard-export-shardy"])
        about = {
            "program": name,
            "arguments": [
                {"shape": list(one.shape), "dtype": str(one.dtype), "role": "batch"}
                for one in arguments
            ],
        }
        (folder / f"{stem}.json").write_text(json.dumps(about))
        write_program(folder / f"{stem}{MODULE}", module)


def table(measured: Path, parts: list[str]) -> list[Sequence[str]]:
    """A row for each program that was measured, as the programs stand in their file."""
    lines = [line for line in measured.read_text().splitlines() if not line.startswith("#")]
    known = {row["program"]: row for row in csv.DictReader(lines)}
    rows: list[Sequence[str]] = []
    for name, plan, _ in plans(parts):
        if name not in known:
            continue
        ran, summary = known[name], plan.summary
        seconds = float(ran["measured us"])
        rows.append(
            (
                *(name, f"{1e6 * summary.compute_seconds:.1f}", f"{seconds:.1f}"),
                f"{1e6 * summary.compute_seconds / seconds:.2f}",
                f"{summary.peak_bytes_per_device / 2**30:.2f}",
                *(ran["compiled GiB"], ran["longest kernel"]),
            )
        )
    return rows


# Where the GPU is


def run(folder: Path) -> None:
    """Compile programs side by side, then run and profile them one by one."""
    tuned = folder.absolute() / "tuned"
    tuned.mkdir(exist_ok=True)
    os.environ["XLA_FLAGS"] = f"--xla_gpu_per_fusion_autotune_cache_dir={tuned}"
    import jax

    from autoshard.ir.compile import compile_module
    from bench.truth.gpu_runs import (
        MODULE,
        ONE_BY_ONE,
        arguments_of,
        kernel_runs,
        profile_in,
        read_program,
        results_of,
    )

    jax.devices()  # once, before there are threads
    abouts = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

    def compiled(stem: str) -> Any:
        module = read_program(folder / f"{stem}{MODULE}")
        try:
            return compile_module(module, jax.devices(), options=ONE_BY_ONE)
        except jax.errors.JaxRuntimeError as error:
            return str(error).splitlines()[0]

    with ThreadPoolExecutor(COMPILES) as pool:
        made = dict(zip(abouts, pool.map(compiled, abouts), strict=True))
    ready: dict[str, tuple[Any, list[Any]]] = {}
    for stem, program in made.items():
        if isinstance(program, str):
            print(f"{stem}: {program}")
            continue
        arguments = arguments_of(abouts[stem]["arguments"], program)
        jax.block_until_ready(results_of(program, arguments))
        ready[stem] = program, arguments
    with tempfile.TemporaryDirectory() as trace:
        with jax.profiler.trace(trace):
            for stem, (program, arguments) in ready.items():
                with jax.profiler.TraceAnnotation(f"program {stem}"):
                    for _ in range(RUNS):
                        jax.block_until_ready(results_of(program, arguments))
                time.sleep(0.002)  # clocks of host and device are not quite one
        profile = profile_in(trace)
    begins = sorted(
        (event.start_ns, event.name.removeprefix("program "))
        for plane in profile.planes
        for line in plane.lines
        for event in line.events
        if event.name.startswith("program ")
    )
    kernels: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel in kernel_runs(profile):
        place = bisect.bisect_right(begins, (kernel.start_ns, "~")) - 1
        if place >= 0:
            kernels[begins[place][1]][kernel.kernel] += 1e6 * kernel.seconds / RUNS
    rows: list[Sequence[str]] = []
    for stem, (program, _) in ready.items():
        took = kernels[stem]
        peak = program.executable.get_compiled_memory_stats().peak_memory_in_bytes
        longest = max(took, key=lambda name: took[name], default="")
        rows.append(
            (
                *(abouts[stem]["program"], f"{sum(took.values()):.1f}", f"{peak / 2**30:.2f}"),
                longest[:40],
            )
        )
    results.write_rows(folder / "measured.csv", MEASURED, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("prepare", "run", "table"))
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER or FILE")
    parser.add_argument("--programs", nargs="+", default=[], metavar="PART")
    results.add_option(parser, "gpu_kernels")
    options = parser.parse_args()
    if options.what == "table":
        measured = options.folder or results.FOLDER / "gpu_kernels.csv"
        _show(table(measured, options.programs), options.csv)
    elif options.folder is None:
        parser.error("give FOLDER")
    elif options.what == "prepare":
        prepare(options.folder, options.programs)
    else:
        run(options.folder)


def _show(rows: list[Sequence[str]], path: Path | None) -> None:
    results.show("Kernels on a GPU, beside their plans", HEADS, rows, ("program", "longest kernel"))
    off = [abs(math.log(float(row[1]) / float(row[2]))) for row in rows]
    print(
        f"{len(rows)} programs: a factor of {math.exp(sum(off) / len(off)):.2f} in the mean,"
        f" {math.exp(sorted(off)[len(off) // 2]):.2f} in the median"
    )
    results.write_rows(path, HEADS, rows)


if __name__ == "__main__":
    main()
