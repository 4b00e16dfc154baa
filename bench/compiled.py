"""What the real compilers make of automatic plans: memory, collectives, and warnings.

    python bench/compiled.py [--cluster v5p:4x4x4] [--form shardy] [NAME ...]

Each module is planned for the cluster, exported and compiled in a process of its own, then

- ``peak`` of the plan stands beside the compiler's own (``get_compiled_memory_stats``),
- bytes that one device sends beside those of the compiled HLO, once as planned and once as the
  compiler writes them: XLA:TPU and XLA:CPU make all-reduces of all-gathers and reduce-scatters,
  XLA:CPU sends bf16 as f32,
- arguments and results that are split in another way than planned are counted, and values that
  the partitioner replicates ("involuntary full rematerialization").

Clusters of TPUs are compiled for ahead of time by libtpu, no TPU needed (the extra ``tpu``: libtpu
of the jax release). ``cpu:8`` is compiled for 8 virtual devices. The plan's memory limit is the
cluster's; ``--memory-limit`` gives another one, so that big steps can be tried on ``cpu:8``. No row
is left out: what fails says why.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.errors import AutoshardError
from corpus import entries, in_a_process, load, machine

DEFAULT = (
    "resnet50_keras.fwd",
    "ppo_ant_brax.step",
    "llama2_7b_scan_maxtext.train",
    "mixtral_8x7b_scan_maxtext.train",
)
"""Scanned or small: unrolled layers take the compilers minutes each."""

_REMATERIALIZED = "nvoluntary full rematerialization"


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Plan, export and compile one module; the row."""
    cluster = Cluster.parse(given.cluster)
    is_tpu = not given.cluster.startswith("cpu")
    if is_tpu:
        # Quiet, and beside other processes that use libtpu.
        os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_num_cpu_devices", 1 if is_tpu else cluster.num_devices)
    from autoshard.exporter.planned import read_plan
    from autoshard.frontend.devices import physical_place
    from autoshard.ir import compile as compiling
    from autoshard.passes.pipeline import run_passes
    from autoshard.passes.recursive_programming import RecursiveProgramming, plan_automatically
    from autoshard.sharding import Mesh
    from autoshard.verify.compiled import interface_differences
    from autoshard.verify.hlo_collectives import hlo_collectives
    from autoshard.verify.shardy_collectives import shardy_collectives

    (entry,) = entries([name])
    module = load(entry)
    options = RecursiveProgramming(cluster=given.cluster, memory_limit=given.memory_limit)
    try:
        plan = plan_automatically(module, cluster, options)
    except AutoshardError as error:
        return {"failed": f"{error.message[:110]}.."}
    row: dict[str, Any] = {
        "mesh": plan.mesh,
        "peak": plan.peak_bytes_per_device,
        "sent": sum(one.total_bytes for one in plan.collectives),
    }
    with module.context:
        planned = read_plan(module)
        entry_function = next(f for f in planned.functions if f.is_entry)
    run_passes(module, [f"autoshard-export-{given.form}"])
    if given.form == "shardy":
        exported = shardy_collectives(module, unknown_trip_count=options.trip_count)
        row["shardy"] = sum(one.total_bytes for one in exported)
        row["written"] = as_all_reduces(exported, is_tpu)
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log, errors_into(log):
        if is_tpu:
            from jax.experimental import topologies

            topology = topologies.get_topology_desc(platform="tpu", topology_name=given.cluster)
            devices = sorted(topology.devices, key=physical_place)
            compiled = compiling.compile_ahead_of_time(
                module, devices, use_shardy=given.form == "shardy"
            )
        else:
            compiled = compiling.compile_module(module, use_shardy=given.form == "shardy")
        log.seek(0)
        row["rematerialized"] = log.read().decode(errors="replace").count(_REMATERIALIZED)
    row["seconds"] = time.perf_counter() - start
    stats = compiled.executable.get_compiled_memory_stats()
    row["compiled_peak"] = (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
    )
    row["reported_peak"] = stats.peak_memory_in_bytes
    different = 0
    for placements, texts, role in (
        (entry_function.arguments, compiled.argument_shardings(), "argument"),
        (entry_function.results, compiled.result_shardings(), "result"),
    ):
        if len(texts) != len(placements):  # XLA names none where all of them are whole
            row["note"] = f"{len(texts)} {role} shardings for {len(placements)}"
            continue
        pairs = [
            (each.sharding, text)
            for each, text in zip(placements, texts, strict=True)
            if each is not None
        ]
        different += len(interface_differences([p for p, _ in pairs], [t for _, t in pairs], role))
    row["different"] = different
    try:
        text = compiled.hlo_text()
    except Exception as error:
        row["note"] = f"no HLO text: {str(error)[:80]}"
        return row
    if given.keep:
        with open(f"{given.keep}/{name}.hlo", "w", encoding="utf-8") as file:
            file.write(text)
    found = hlo_collectives(text, Mesh.parse(plan.mesh), unknown_trip_count=options.trip_count)
    row["hlo"] = sum(one.total_bytes for one in found)
    return row


@contextmanager
def errors_into(file: IO[bytes]) -> Generator[None]:
    """What native code writes to standard error goes to ``file``."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def as_all_reduces(planned: Iterable[Any], is_tpu: bool) -> float:
    """Bytes sent if every all-gather and reduce-scatter is written as an all-reduce.

    XLA:CPU keeps all-gathers, and sends bf16 as f32.
    """
    from autoshard.verify.collective import CollectiveKind, total_bytes
    from autoshard.verify.compiled import as_on_cpu

    if not is_tpu:
        return total_bytes(as_on_cpu(planned))
    written = []
    for one in planned:
        if one.kind is CollectiveKind.ALL_GATHER:
            whole = one.local_bytes * one.group_size
            one = replace(one, kind=CollectiveKind.ALL_REDUCE, local_bytes=whole)
        elif one.kind is CollectiveKind.REDUCE_SCATTER:
            one = replace(one, kind=CollectiveKind.ALL_REDUCE)
        written.append(one)
    return total_bytes(written)


def cells(name: str, row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    if "failed" in row:
        return [name, *[""] * 11, row["failed"]]

    def of(key: str, unit: float, digits: int = 2) -> str:
        return f"{row[key] / unit:,.{digits}f}" if key in row else ""

    ratio = row["peak"] / row["compiled_peak"] if row.get("compiled_peak") else float("nan")
    return [
        name,
        row["mesh"],
        of("seconds", 1, 0),
        of("peak", 2**30),
        of("compiled_peak", 2**30),
        of("reported_peak", 2**30),
        f"{ratio:.2f}",
        of("sent", 1e9, 3),
        of("shardy", 1e9, 3),
        of("written", 1e9, 3),
        of("hlo", 1e9, 3),
        f"{row['different']} / {row['rematerialized']}",
        row.get("note", "-"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules; a few if none is given")
    parser.add_argument("--cluster", default="v5p:4x4x4", help="TPUs, or cpu:N (v5p:4x4x4)")
    parser.add_argument("--form", default="shardy", choices=("shardy", "gspmd"))
    parser.add_argument("--memory-limit", default="", help="of a device, instead of the cluster's")
    parser.add_argument("--keep", metavar="FOLDER", help="write the compiled HLO there")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=590, help="seconds a module (590)")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given)))
        return
    if not given.cluster.startswith("cpu") and importlib.util.find_spec("libtpu") is None:
        print("Skipped: no libtpu. Install the one of the jax release: pip install autoshard[tpu].")
        return
    heads = ["module", "mesh", "compile s", "peak GiB", "compiled GiB", "reported GiB", "ratio"]
    heads += ["planned GB", "exported GB", "as written GB", "HLO GB", "moved / remat", "note"]
    title = f"{given.cluster}, {given.form}; planned and compiled on {machine()}"
    table = Table(*heads, title=title)
    more = [f"--cluster={given.cluster}", f"--form={given.form}"]
    more += [f"--memory-limit={given.memory_limit}"] if given.memory_limit else []
    more += [f"--keep={given.keep}"] if given.keep else []
    for entry in entries(given.names or list(DEFAULT)):
        row = in_a_process(__file__, entry.name, given.timeout, *more)
        table.add_row(*cells(entry.name, row))
        print(json.dumps({"module": entry.name, **row}), file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 240).print(table)


if __name__ == "__main__":
    main()
