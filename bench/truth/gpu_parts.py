"""One device's part of partitioned programs on a GPU, beside what their plans say.

    python bench/truth/gpu_parts.py prepare FOLDER [--programs NAME ...] [--plans KIND ...]
    python bench/truth/gpu_parts.py run FOLDER        where the GPU is
    python bench/truth/gpu_parts.py table FOLDER [--csv FILE]
    python bench/truth/gpu_parts.py ahead FOLDER [--csv FILE]

``prepare`` plans programs of bench/truth/fidelity.py for eight GPUs and writes them as the compiler
takes them; it needs no GPU. ``run`` needs one, and of packages jax and autoshard alone: it compiles
each program for eight GPUs of which one is there (JAX's ``jax_mock_gpu_topology``), kernels tuned
on it, and runs the part of that one. Collectives are not run: they take no time, and what they make
is whatever lies in its memory. ``table`` puts the plan's seconds of compute and its peak, as they
were when it was made, and today's estimate of the very program that ran beside what was measured:
seconds of all kernels of a step, seconds of a step, and the most memory that the allocator gave.
``ahead`` compiles the programs that ran ahead of time, where no kernels are tuned, and puts their
peaks beside those of the compile on the GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import results

CLUSTER = "h200:8"
STEPS, PROFILED_STEPS = 10, 2
TIME_LIMIT_SECONDS = 240.0
FLAGS = "--xla_gpu_per_fusion_autotune_cache_dir={tuned} --xla_gpu_shard_autotuning=false"
"""Nobody else is there to tune kernels with."""
HEADS = (
    *("program", "mesh", "planned ms", "estimated ms", "kernels ms", "step ms"),
    *("plan error", "estimate error", "planned GiB", "compiled GiB", "allocated GiB", "peak error"),
)
AHEAD = ("program", "on the GPU", "ahead of time", "without Triton's products")
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{\}, (?:may|must)-alias\)")


# Without a GPU


def prepare(folder: Path, programs: list[str], kinds: list[str], cluster_name: str) -> None:
    """Plan and export programs: NAME.mlir.gz, and NAME.json with what the plan says."""
    from autoshard.cluster import Cluster
    from autoshard.passes.pipeline import run_passes
    from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
    from bench.common.corpus import attach
    from bench.common.hand_plans import hand_plans
    from bench.truth.fidelity import PROGRAMS, chosen
    from bench.truth.gpu_runs import MODULE, write_program

    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster.of(cluster_name)
    for program in programs:
        for kind in kinds:
            stem = re.sub(r"\W+", "_", f"{program} {kind}")
            if (folder / f"{stem}{MODULE}").exists():
                continue
            module, arguments = PROGRAMS[program].bytecode()
            mesh = ""
            if kind != "ours":
                plan = chosen(hand_plans(arguments, cluster.num_devices), kind)
                attach(module, plan.sdy_axes, plan.sdy_cuts())
                mesh = plan.mesh
            summary = search_module(module, cluster, RecursiveProgramming(mesh=mesh)).summary
            run_passes(module, ["autoshard-export-shardy"])
            about = {
                "program": program if kind == "ours" else f"{program}, {kind}",
                "cluster": cluster_name,
                "devices": cluster.num_devices,
                "mesh": summary.mesh,
                "planned compute": summary.compute_seconds,
                "planned peak": summary.peak_bytes_per_device,
                "arguments": [
                    {name: one[name] for name in ("shape", "dtype", "role")} for one in arguments
                ],
            }
            (folder / f"{stem}.json").write_text(json.dumps(about))
            write_program(folder / f"{stem}{MODULE}", module)
            print(f"{program}, {kind}: {summary.mesh}, {summary.compute_seconds * 1e3:.2f} ms")


def table(folder: Path) -> list[Sequence[str]]:
    """A row for each program that ran, the worst plan first."""
    rows: list[tuple[float, Sequence[str]]] = []
    for path in folder.glob("*.result.json"):
        ran = json.loads(path.read_text())
        stem = path.name.removesuffix(".result.json")
        about = json.loads((folder / f"{stem}.json").read_text())
        text = gzip.decompress((folder / f"{stem}.hlo.gz").read_bytes()).decode()
        planned, estimated = about["planned compute"], _estimated(text, about)
        kernels = ran["kernels"]
        live = ran["reported peak"]
        error = planned / kernels - 1
        milliseconds = (planned, estimated, kernels, min(ran["step"], ran["median step"]))
        cells = (
            *(about["program"], about["mesh"]),
            *(f"{1e3 * one:.2f}" for one in milliseconds),
            *(f"{error:+.1%}", f"{estimated / kernels - 1:+.1%}"),
            *(f"{one / 2**30:.2f}" for one in (about["planned peak"], live, ran["peak"])),
            f"{about['planned peak'] / live - 1:+.1%}",
        )
        rows.append((-abs(error), cells))
    return [row for _, row in sorted(rows)]


def ahead(folder: Path, names: list[str]) -> list[Sequence[str]]:
    """A row for each program that ran: GiB at the peak, as compiled there and ahead of time."""
    from autoshard.cluster import Cluster
    from autoshard.ir import read_bytes
    from bench.common.compile_cache import cached_compile
    from bench.truth.gpu_runs import MODULE

    rows: list[Sequence[str]] = []
    for path in sorted(folder.glob("*.result.json")):
        stem = path.name.removesuffix(".result.json")
        if names and stem not in names:
            continue
        about = json.loads((folder / f"{stem}.json").read_text())
        data = read_bytes(folder / f"{stem}{MODULE}")[0]
        cells = [about["program"], f"{json.loads(path.read_text())['reported peak'] / 2**30:.2f}"]
        for options in ({}, {"xla_gpu_enable_triton_gemm": "False"}):
            made = cached_compile(data, Cluster.of(about["cluster"]), compiler_options=options)
            cells.append("" if made.live_bytes is None else f"{made.live_bytes / 2**30:.2f}")
        rows.append(cells)
        print(" | ".join(cells), flush=True)
    return rows


def _estimated(text: str, about: dict[str, Any]) -> float:
    from autoshard.cluster import Cluster
    from autoshard.sharding import Mesh
    from autoshard.verify.step_time import estimate_step

    mesh = Mesh.parse(about["mesh"])
    return estimate_step(text, mesh, Cluster.of(about["cluster"])).compute_seconds


# Where the GPU is


def run(folder: Path, names: list[str], seconds: float) -> None:
    """Run every prepared program that has no result yet, each in a process of its own."""
    from bench.truth.gpu_runs import MODULE

    end = time.monotonic() + seconds
    tuned = folder.absolute() / "tuned"
    tuned.mkdir(exist_ok=True)
    environment = os.environ | {"XLA_FLAGS": FLAGS.format(tuned=tuned)}
    for module in sorted(folder.glob(f"*{MODULE}")):
        path = folder / f"{module.name.removesuffix(MODULE)}.json"
        result = path.with_suffix(".result.json")
        if (names and path.stem not in names) or result.exists():
            continue
        left = min(TIME_LIMIT_SECONDS, end - time.monotonic())
        if left < 20:
            print(f"{path.stem}: no time left", flush=True)
            continue
        command = [sys.executable, __file__, "one", str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=left, env=environment, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{path.stem}: not done after {left:.0f} s", flush=True)
            continue
        if done.returncode:
            path.with_suffix(".log").write_text(done.stderr)
            print(f"{path.stem}: exit {done.returncode}, see {path.stem}.log", flush=True)
            continue
        row = json.loads(result.read_text())
        print(
            f"{path.stem}: compiled in {row['compile']:.1f} s, step {row['step'] * 1e3:.2f} ms,"
            f" kernels {row['kernels'] * 1e3:.2f} ms, peak {row['peak'] / 2**30:.2f} GiB",
            flush=True,
        )


def run_one(path: Path) -> None:
    """Compile, run and profile the program of NAME.json: NAME.result.json and NAME.hlo.gz."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    import jax

    from autoshard.ir.compile import compile_module
    from bench.truth.gpu_runs import (
        MODULE,
        ONE_BY_ONE,
        arguments_of,
        kernel_runs,
        leave_numbers,
        over,
        profile_in,
        read_program,
        results_of,
    )

    about = json.loads(path.read_text())
    if about["devices"] > 1:
        jax.config.update("jax_mock_gpu_topology", f"1x{about['devices']}x1")
    module = read_program(path.with_suffix(MODULE))
    (device,) = jax.local_devices()
    if len(jax.devices()) != about["devices"]:
        sys.exit(f"{len(jax.devices())} devices of {about['devices']}")
    start = time.perf_counter()
    compiled = compile_module(module, jax.devices())
    seconds = time.perf_counter() - start
    stats = compiled.executable.get_compiled_memory_stats()
    leave_numbers(stats.temp_size_in_bytes)
    arguments = arguments_of(about["arguments"], compiled)
    head = compiled.hlo_text().partition("\n")[0]
    aliases = [(int(output or 0), int(argument)) for output, argument in _ALIAS.findall(head)]

    def step(given: list[Any]) -> list[Any]:
        made, taken = results_of(compiled, given), list(given)
        for output, argument in aliases:
            taken[argument] = over(given[argument], made[output][0])
        return taken

    for _ in range(3):
        arguments = jax.block_until_ready(step(arguments))
    walls: list[float] = []
    for _ in range(STEPS):
        start = time.perf_counter()
        arguments = jax.block_until_ready(step(arguments))
        walls.append(time.perf_counter() - start)
    memory = device.memory_stats() or {}
    start = time.perf_counter()
    for _ in range(STEPS):
        arguments = step(arguments)
    jax.block_until_ready(arguments)
    chained = (time.perf_counter() - start) / STEPS
    compiled = compile_module(module, jax.devices(), options=ONE_BY_ONE)
    path.with_suffix(".hlo.gz").write_bytes(gzip.compress(compiled.hlo_text().encode(), mtime=0))
    arguments = jax.block_until_ready(step(arguments))
    with tempfile.TemporaryDirectory() as trace:
        with jax.profiler.trace(trace):
            for _ in range(PROFILED_STEPS):
                arguments = jax.block_until_ready(step(arguments))
        ops: dict[str, float] = defaultdict(float)
        for kernel in kernel_runs(profile_in(trace)):
            ops[kernel.op] += kernel.seconds / PROFILED_STEPS
    result = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "compile": seconds,
        "step": chained,
        "median step": median(walls),
        "kernels": sum(ops.values()),
        "ops": ops,
        "peak": memory.get("peak_bytes_in_use", 0),
        "temporary": stats.temp_size_in_bytes,
        "reported peak": stats.peak_memory_in_bytes,
    }
    path.with_suffix(".result.json").write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("prepare", "run", "one", "table", "ahead"))
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--plans", nargs="+", default=["ours"], metavar="KIND")
    parser.add_argument("--cluster", default=CLUSTER, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for all runs")
    results.add_option(parser, "gpu_parts")
    options = parser.parse_args()
    match options.what:
        case "prepare":
            prepare(options.folder, options.programs, options.plans, options.cluster)
        case "run":
            run(options.folder, options.programs, options.seconds)
        case "one":
            run_one(options.folder)
        case "ahead":
            results.write_rows(options.csv, AHEAD, ahead(options.folder, options.programs))
        case _:
            _show(table(options.folder), options.csv)


def _show(rows: list[Sequence[str]], path: Path | None) -> None:
    results.show("One device's part on a GPU, beside its plan", HEADS, rows, HEADS[:2])
    for name in ("plan error", "estimate error", "peak error"):
        off = [abs(float(row[HEADS.index(name)].rstrip("%"))) for row in rows]
        print(f"{name}: {sum(off) / len(off):.1f} % in the mean, {max(off):.1f} % at worst")
    results.write_rows(path, HEADS, rows)


if __name__ == "__main__":
    main()
