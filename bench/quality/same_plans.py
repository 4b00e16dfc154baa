"""Whether a change of the code changes plans: hashes of plans and exported texts, to be compared.

    python bench/quality/same_plans.py run BEFORE.json [--quick] [--jobs N] [--programs PART ...]
                                                       [--clusters NAME ...] [--modes MODE ...]
    python bench/quality/same_plans.py compare BEFORE.json AFTER.json

run: plans every module of the corpus and every seed model of bench/quality/experts.py, its layers
scanned, on ``CLUSTERS``, in every mode that applies. A row holds one hash of the planned module
with its summary (bit by bit, seconds of planning apart), one of what each exporter writes, and the
numbers that show what a change does. ``SMALL`` programs are planned for ``SMALL_CLUSTERS``, too.
What a file has already is not planned again; ``--quick`` is a part that takes two minutes. To plan
with another revision, name its package: ``PYTHONPATH=OTHER/python python
bench/quality/same_plans.py run ..``.

compare: lists the rows that differ and those that only one file has; exits 1 if there is one.

    auto           the search, nothing given
    symbolic       the search by the symbolic cost
    semi_auto      parameters cut by hand over a tensor axis, and propagation
    data_parallel  the batch cut over all devices, propagation, optimizer states spread
    recompute      the plan of ``auto``, of whose peak only ``RECOMPUTED_TO`` is allowed
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autoshard.ir.attributes import PLAN
from bench.common.corpus import attach, count_ops, entries, in_a_process, machine

CLUSTERS = ("v5p:4x4x4", "v5e:4x4", "h100:8", "h100:4x8")
SMALL_CLUSTERS = ("cpu:8", "v5p:1x1x1", "tpu7x:1x1x1", "ascend910b:8")
"""Clusters of other compilers, of one chip, and of one chip that is two devices."""
SMALL = (
    "gpt3_175b_scan_maxtext.train",
    "llama2_7b_scan_maxtext.train",
    "ppo_ant_brax.step",
    "resnet50_keras.train",
)
QUICK = (
    "gpt3_175b_scan_maxtext.train",
    "llama2_7b_scan_maxtext.train",
    "mixtral_8x7b_scan_maxtext.train",
    "ppo_ant_brax.step",
    "resnet50_keras.train",
    "seed:pangu-alpha-2.6b",
)
SLOW = (("resnet50_keras.train", "recompute"),)
"""Left out of the quick part: half a minute each."""
RECOMPUTED_TO = 0.7
RECOMPUTED_OPS = 4000
"""Larger programs are not computed again: that takes up to half an hour each."""
SEED = "seed:"

Row = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One program on one cluster; all its modes are planned by one process."""

    program: str
    """Program of the corpus, or ``seed:NAME``."""
    cluster: str

    def key(self, mode: str) -> str:
        """Key of the mode's row in the file."""
        return f"{self.program} | {self.cluster} | {mode}"


# In a process of its own


def measure(
    program: str, cluster_name: str, is_quick: bool, modes: Sequence[str]
) -> dict[str, Row]:
    """The row of each mode."""
    from autoshard.cluster import Cluster
    from autoshard.errors import AutoshardWarning

    warnings.simplefilter("ignore", AutoshardWarning)
    cluster = Cluster.of(cluster_name)
    step = _Step.read(program, cluster)
    rows: dict[str, Row] = {}
    for mode, plan in MODES.items():
        if (mode != "auto" and not step.is_open) or (is_quick and (program, mode) in SLOW):
            continue
        if modes and mode not in modes:
            continue
        start = time.perf_counter()
        row = _row_of(plan, step, rows)
        if row is not None:
            rows[mode] = {**row, "seconds": round(time.perf_counter() - start, 2)}
    return rows


@dataclass(frozen=True)
class _Step:
    """A program, and what it is planned for."""

    load: Callable[[], Any]
    """The module without shardings, each time anew."""
    arguments: list[dict[str, Any]]
    cluster: Any
    is_open: bool
    """No shardings stand on it: every mode applies."""

    @classmethod
    def read(cls, program: str, cluster: Any) -> _Step:
        from bench.quality import experts

        if program.startswith(SEED):
            (model,) = (m for m in experts.SEEDS if m.name == program.removeprefix(SEED))
            found = experts.seed_program(model, cluster.num_devices, scan=True)
            return cls(found.load, found.arguments, cluster, True)
        (entry,) = entries([program])
        found = experts.corpus_program(entry)
        return cls(found.load, found.arguments, cluster, not entry.is_expert)


def _row_of(plan: Callable[..., Any], step: _Step, rows: dict[str, Row]) -> Row | None:
    """Hashes of what a mode leaves, or why it failed; None where the mode does not apply."""
    from autoshard.errors import AutoshardError

    try:
        module = plan(step, rows)
        return None if module is None else _hashes(module)
    except AutoshardError as error:
        return {"failed": f"{type(error).__name__}: {error.message}"}


def _auto(step: _Step, rows: dict[str, Row], **options: Any) -> Any:
    from autoshard.passes.recursive_programming import RecursiveProgramming, plan_automatically

    module = step.load()
    plan_automatically(module, step.cluster, RecursiveProgramming(**options))
    return module


def _symbolic(step: _Step, rows: dict[str, Row]) -> Any:
    return _auto(step, rows, cost_model="symbolic")


def _recompute(step: _Step, rows: dict[str, Row]) -> Any:
    from autoshard.passes.recompute import Recompute, recompute

    if "peak" not in rows.get("auto", {}) or count_ops(step.load()) > RECOMPUTED_OPS:
        return None
    module = _auto(step, rows)
    limit = f"{RECOMPUTED_TO * rows['auto']['peak']:.0f}"
    recompute(module, step.cluster, Recompute(memory_limit=limit))
    return module


def _semi_auto(step: _Step, rows: dict[str, Row]) -> Any:
    return _by_hand(step, "tensor")


def _data_parallel(step: _Step, rows: dict[str, Row]) -> Any:
    return _by_hand(step, "data", "autoshard-optimizer-parallel{level=2}")


def _by_hand(step: _Step, kind: str, *more: str) -> Any:
    """The first hand plan of a kind, propagated, with what it costs; None if there is none."""
    from autoshard.ir import mlir
    from autoshard.passes.pipeline import run_passes
    from autoshard.planned.given_plan import cost_of_module
    from bench.common.hand_plans import hand_plans

    if step.cluster.num_devices == 1:
        return None
    plans = hand_plans(step.arguments, step.cluster.num_devices)
    plan = next((plan for plan in plans if plan.name.split()[0] == kind), None)
    if plan is None:
        return None
    module = step.load()
    attach(module, plan.sdy_axes, plan.sdy_cuts(), plan.sdy_results(step.arguments))
    passes = ("autoshard-import-strategies", "autoshard-sharding-propagation", *more)
    run_passes(module, passes)
    costed = cost_of_module(module, step.cluster)
    summary = costed.summary
    with module.context:
        module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
    return module


MODES: dict[str, Callable[..., Any]] = {
    "auto": _auto,
    "symbolic": _symbolic,
    "semi_auto": _semi_auto,
    "data_parallel": _data_parallel,
    "recompute": _recompute,
}


def _hashes(module: Any) -> Row:
    """Hashes of a planned module: the plan with its summary, and the text of each exporter."""
    from autoshard.ir import mlir, new_context, parse_bytes, print_module
    from autoshard.ir.inline import bytes_of
    from autoshard.passes.pipeline import run_passes

    with module.context:
        summary = json.loads(mlir.StringAttr(module.operation.attributes[PLAN]).value)
        exported: dict[str, str] = {}
        kept = bytes_of(module)
        for exporter in ("shardy", "gspmd"):
            copy = parse_bytes(kept, new_context(), "planned")
            run_passes(copy, [f"autoshard-export-{exporter}"])
            exported[exporter] = _hash(_without_summary(copy, print_module))
        plan = _without_summary(module, print_module)
    for key in ("planning_seconds", "cluster_toml", "compiler"):
        summary.pop(key, None)
    return {
        "plan": _hash(plan + json.dumps(summary, sort_keys=True).encode()),
        **exported,
        "step": summary["step_seconds"],
        "communication": summary["communication_seconds"],
        "peak": summary["peak_bytes_per_device"],
        "mesh": summary["mesh"],
    }


def _without_summary(module: Any, print_module: Callable[[Any], bytes]) -> bytes:

    if PLAN in module.operation.attributes:
        del module.operation.attributes[PLAN]
    return print_module(module)


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


# All rows


def points(options: argparse.Namespace) -> Iterator[Point]:
    """What is asked for, small programs first."""
    from bench.quality.experts import SEEDS

    all_entries = {entry.name: entry for entry in entries([])}
    names = [*all_entries, *(SEED + model.name for model in SEEDS)]
    for name in names:
        if options.quick and name not in QUICK and name not in SMALL:
            continue
        if options.programs and not any(part in name for part in options.programs):
            continue
        for cluster in (*CLUSTERS, *SMALL_CLUSTERS):
            is_small = cluster in SMALL_CLUSTERS
            if name not in SMALL if is_small else options.quick and name not in QUICK:
                continue
            if options.clusters and cluster not in options.clusters:
                continue
            # A module that brings its mesh has 64 devices.
            if name in all_entries and all_entries[name].is_expert and cluster != "v5p:4x4x4":
                continue
            yield Point(name, cluster)


def run(options: argparse.Namespace) -> None:
    """Plan what the file does not have yet; the file is whole after every point."""
    import autoshard

    path: Path = options.file
    kept = json.loads(path.read_text()) if path.exists() else {"about": {}, "rows": {}}
    kept["about"] = {"machine": machine(), "package": str(Path(autoshard.__file__).parent)}
    print(f"plans of {kept['about']['package']}, on {kept['about']['machine']}")
    done: set[str] = set(kept.get("done", ()))
    wanted = [p for p in points(options) if p.key("") not in done]

    def planned(point: Point) -> tuple[Point, dict[str, Any]]:
        more = ("--cluster", point.cluster, *(["--quick"] if options.quick else []))
        more += ("--modes", *options.modes) if options.modes else ()
        return point, in_a_process(__file__, point.program, options.timeout, *more)

    with ThreadPoolExecutor(options.jobs) as pool:
        for point, rows in pool.map(planned, wanted):
            if "failed" in rows:
                rows = {"process": rows}
            for mode, row in rows.items():
                kept["rows"][point.key(mode)] = row
                said = row.get("failed") or f"{1e3 * row['step']:,.2f} ms, {row['mesh']}"
                print(point.key(mode), row.get("seconds", ""), said[:100], flush=True)
            done.add(point.key(""))
            kept["done"] = sorted(done)
            new = path.with_suffix(".part")
            new.write_text(json.dumps(kept, indent=1, sort_keys=True))
            new.replace(path)


def compare(before: Path, after: Path) -> int:
    """Print what differs; how many rows do."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    for name, read in ((before, old), (after, new)):
        print(f"{name}: {len(read['rows'])} rows, {read['about'].get('package')}")
    changed = 0
    for key in sorted({*old["rows"], *new["rows"]}):
        told = _difference(old["rows"].get(key), new["rows"].get(key))
        if told:
            changed += 1
            print(f"{key}: {told}")
    print(f"{changed} rows differ")
    return changed


def _difference(old: Row | None, new: Row | None) -> str:
    """What a reader has to know of two rows; empty if they are equal."""
    if old is None or new is None:
        return "only after" if old is None else "only before"
    if "failed" in old or "failed" in new:
        failures = [row.get("failed", "planned") for row in (old, new)]
        return "" if failures[0] == failures[1] else " -> ".join(failures)
    parts = [what for what in ("plan", "shardy", "gspmd") if old[what] != new[what]]
    if not parts:
        return ""
    told = [f"{' and '.join(parts)} differ"]
    for what, scale, unit in (
        ("step", 1e3, "ms"),
        ("communication", 1e3, "ms"),
        ("peak", 2**-20, "MiB"),
    ):
        if old[what] != new[what]:
            told.append(f"{what} {old[what] * scale:,.3f} -> {new[what] * scale:,.3f} {unit}")
    if old["mesh"] != new["mesh"]:
        told.append(f"mesh {old['mesh']} -> {new['mesh']}")
    return ", ".join(told)


def main() -> None:
    if "--one" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one")
        parser.add_argument("--cluster")
        parser.add_argument("--quick", action="store_true")
        parser.add_argument("--modes", nargs="*", default=())
        given = parser.parse_args()
        print(json.dumps(measure(given.one, given.cluster, given.quick, given.modes)))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    planner = commands.add_parser("run", help="plan, and write hashes to a file")
    planner.add_argument("file", type=Path)
    planner.add_argument("--quick", action="store_true", help="a part that takes two minutes")
    planner.add_argument("--jobs", type=int, default=2, help="programs at a time (2)")
    planner.add_argument("--programs", nargs="*", metavar="PART", help="names that hold a part")
    planner.add_argument("--clusters", nargs="*", metavar="NAME", help="of these clusters only")
    modes = {"nargs": "*", "choices": MODES, "default": ()}
    planner.add_argument("--modes", **modes, help="these only; recompute needs auto, too")
    planner.add_argument("--timeout", type=float, default=1800, help="seconds a point (1800)")
    comparer = commands.add_parser("compare", help="list what differs between two files")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        run(options)
    elif compare(options.before, options.after):
        sys.exit(1)


if __name__ == "__main__":
    main()
