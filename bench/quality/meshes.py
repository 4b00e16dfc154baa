"""The mesh that the automatic mode takes, beside every other mesh of the cluster.

    python bench/quality/meshes.py [--programs PART ...] [--clusters NAME ...]

A program is planned as the automatic mode plans it, and once on every mesh of up to three axes that
joins neighbours of the axes that the search decides one by one, forced as ``mesh_shape`` forces it.
"ratio" is the step of the automatic mode over the fastest of them that fits; ``MISSED`` and more is
a miss. Of plans that are that close the automatic mode takes the one on fewer axes, on one switch
up to ``MISSED_ON_SWITCH``. "CPU s" is the automatic search alone, "all CPU s" all forced ones.

Programs are steps of the corpus (those that take up to ``--seconds`` to be planned once), Llama
steps of bench/programs, and small train steps of test/unit/plan_cases.py. Every program is read in
a process of its own, and what it saved (--save) is not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test" / "unit"))

from rich.console import Console
from rich.table import Table

from autoshard.ir import mlir, new_context, parse_bytes
from bench.common import results
from bench.common.corpus import corpus_folder, entries, in_a_process, load, machine

if TYPE_CHECKING:
    from autoshard.cluster import Cluster

CLUSTERS = ("v5e:4x4", "v5e:4x8", "v5p:4x4x4", "h100:8", "h100:4x8")
MOST_AXES = 3
MISSED = 1.005
MISSED_ON_SWITCH = 1.015
"""What the search gives for fewer axes: docs/design/search.md."""

TRANSFORMERS = (
    (512, 8, 64, 2048, 8, 256),
    (1024, 4, 64, 4096, 16, 128),
    (1024, 16, 64, 4096, 8, 1024),
    (2048, 16, 128, 8192, 4, 2048),
    (4096, 8, 64, 2048, 2, 512),
    (4096, 8, 128, 2048, 2, 512),
    (4096, 32, 128, 16384, 16, 1024),
    (8192, 8, 128, 28672, 2, 4096),
)
"""Width, heads, size of a head, hidden width, sequences and tokens of four layers."""
HEADS = (25, 24, 12)
"""Numbers of heads of the step of docs/use/explain.md: few axes divide them."""
LLAMAS = ("7B:4", "7B:32:scan", "70B:4", "70B:80:scan")


def programs() -> list[str]:
    """Names of all programs, small ones first."""
    found = [f"transformer {' '.join(map(str, sizes))}" for sizes in TRANSFORMERS]
    found += [f"mlp with {count} heads" for count in HEADS]
    found += [f"llama {spec}" for spec in LLAMAS]
    if corpus_folder() is not None:
        found += [entry.name for entry in entries([]) if not entry.is_expert]
    return found


# In a process of its own


def module_of(name: str) -> mlir.Module:
    """A program, in a context of its own."""
    kind, _, rest = name.partition(" ")
    if kind == "transformer":
        from plan_cases import transformer

        return transformer(*map(int, rest.split()))
    if kind == "mlp":
        from plan_cases import mlp_with_heads

        return mlp_with_heads(int(rest.split()[1]))
    if kind == "llama":
        return _llama(rest)
    (entry,) = entries([name])
    return load(entry)


def _llama(spec: str) -> mlir.Module:
    import dataclasses

    from bench.programs.llama import LLAMA2, ROLES, train_step
    from bench.programs.lowered import lower

    size, layers, *flags = spec.split(":")
    config = dataclasses.replace(
        LLAMA2[size], layers=int(layers), scan="scan" in flags, batch=16, tokens=2048
    )
    step, arguments = train_step(config)
    return parse_bytes(lower(step, ROLES, *arguments).bytecode, new_context(), "llama")


def measure(name: str, cluster_names: Sequence[str], most_seconds: float) -> list[dict[str, Any]]:
    """A row for each cluster."""
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardWarning

    warnings.simplefilter("ignore", AutoshardWarning)
    return [_on_cluster(name, Cluster.of(cluster), most_seconds) for cluster in cluster_names]


def _on_cluster(name: str, cluster: Cluster, most_seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"program": name, "cluster": cluster.name}
    automatic = _planned(name, cluster, "")
    if "failed" in automatic:
        return {**row, **automatic}
    row["automatic"] = automatic
    if automatic["cpu"] > most_seconds:
        return {**row, "failed": f"{automatic['cpu']:.1f} s for one search"}
    levels = cluster.level_mesh()
    row["meshes"] = {
        shape: _planned(name, cluster, shape)
        for shape in shapes([axis.size for axis in levels.axes])
    }
    return row


def _planned(name: str, cluster: Cluster, shape: str) -> dict[str, Any]:
    from autoshard.errors import AutoshardError
    from autoshard.passes.recursive_programming import RecursiveProgramming, read_module

    options = RecursiveProgramming(mesh_shape=shape)
    try:
        program = read_module(_module(name), cluster, options)
        start = time.process_time()
        summary = program.searched(options).summary
    except AutoshardError as error:
        return {"failed": f"{type(error).__name__}: {error.message[:200]}"}
    return {
        "step": summary.step_seconds,
        "bound": summary.lower_bound_seconds,
        "mesh": "x".join(part.partition("=")[2] for part in summary.mesh.split(",")),
        "cpu": time.process_time() - start,
    }


_bytes: dict[str, bytes] = {}


def _module(name: str) -> mlir.Module:
    """The program anew: reading it leaves a mesh on it."""
    from autoshard.ir.inline import bytes_of

    if name not in _bytes:
        _bytes[name] = bytes_of(module_of(name))
    return parse_bytes(_bytes[name], new_context(), name)


def shapes(sizes: Sequence[int]) -> Iterator[str]:
    """Every way to join neighbours to up to ``MOST_AXES`` axes, ``2x4x4``."""
    for count in range(min(MOST_AXES, len(sizes))):
        for cuts in itertools.combinations(range(1, len(sizes)), count):
            ends = [0, *cuts, len(sizes)]
            joined = [sizes[a:b] for a, b in itertools.pairwise(ends)]
            yield "x".join(str(prod(part)) for part in joined)


# The table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="*", default=[], metavar="PART", help="parts of names")
    parser.add_argument("--clusters", nargs="*", default=CLUSTERS, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=5, help="CPU seconds of one search (5)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a program (900)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    results.add_option(parser, "meshes")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.clusters, options.seconds)))
        return
    console = Console(width=None if sys.stdout.isatty() else 150)
    rows = collect(console, options)
    results.write(options.csv, show(console, rows))
    console.print(f"Planned on {machine()}; seconds of steps are modelled.")


def collect(console: Console, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows; each is saved when it is there."""
    rows: list[dict[str, Any]] = []
    if options.save and options.save.exists():
        rows = [json.loads(line) for line in options.save.read_text().splitlines()]
    known = {(row["program"], row["cluster"]) for row in rows}
    for name in programs():
        if options.programs and not any(part in name for part in options.programs):
            continue
        clusters = [c for c in options.clusters if (name, c) not in known]
        if not clusters:
            continue
        more = ("--seconds", str(options.seconds), "--clusters", *clusters)
        made: Any = in_a_process(__file__, name, options.timeout, *more)
        if isinstance(made, dict):
            made = [{"program": name, "cluster": cluster, **made} for cluster in clusters]
        for row in made:
            rows.append(row)
            console.print(f"[dim]{' | '.join(cells(row))}")
            if options.save:
                with options.save.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return rows


def show(console: Console, rows: list[dict[str, Any]]) -> Table:
    """All rows, the worst ones first, and how many are misses."""
    table = Table(title="The automatic mesh, beside all others")
    heads = ("program", "cluster", "ms", "mesh", "best ms", "its mesh", "meshes", "CPU s")
    for heading in (*heads, "all CPU s", "ratio"):
        table.add_column(heading, overflow="fold")
    done = [row for row in rows if "failed" not in row]
    for row in sorted(done, key=ratio, reverse=True):
        table.add_row(*cells(row))
    for row in rows:
        if "failed" in row:
            table.add_row(*cells(row))
    console.print(table)
    for what, limit in (("missed", MISSED), ("above what one switch gives", MISSED_ON_SWITCH)):
        missed = sum(ratio(row) > limit for row in done)
        console.print(f"{what}, ratio > {limit}: {missed} of {len(done)}")
    return table


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the table."""
    if "failed" in row:
        return [row["program"], row["cluster"], row["failed"], *[""] * 7]
    automatic, meshes = row["automatic"], row["meshes"]
    shape = best_of(row)
    fastest = meshes[shape] if shape else automatic
    return [
        row["program"],
        row["cluster"],
        f"{1e3 * automatic['step']:.3f}",
        automatic["mesh"],
        f"{1e3 * fastest['step']:.3f}",
        shape,
        str(len(meshes)),
        f"{automatic['cpu']:.2f}",
        f"{sum(mesh.get('cpu', 0) for mesh in meshes.values()):.2f}",
        f"{ratio(row):.4f}",
    ]


def best_of(row: dict[str, Any]) -> str:
    """The mesh of the fastest forced plan that fits; empty if none does."""
    fitting = {s: mesh["step"] for s, mesh in row["meshes"].items() if "failed" not in mesh}
    return min(fitting, key=lambda shape: fitting[shape], default="")


def ratio(row: dict[str, Any]) -> float:
    """The automatic step over the fastest forced one."""
    shape = best_of(row)
    return row["automatic"]["step"] / row["meshes"][shape]["step"] if shape else 1.0


if __name__ == "__main__":
    main()
