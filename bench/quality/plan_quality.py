"""What the search finds, beside the plans that experts write by hand (bench/common/hand_plans.py).

    python bench/quality/plan_quality.py [--modules PART ...] [--clusters NAME ...] [--ablations]

Every train step of the corpus on every cluster. A hand plan fixes mesh, parameters, optimizer
state and batch. What lies between is completed twice, by autoshard's own search and by Shardy's
propagation (the batch first, then parameters), and the faster one that fits counts; one cost model
and one memory limit judge all, so each hand plan is seen at its best. "ratio" is ours
over the best hand plan that fits; rows are sorted by it, worst first, and a row that failed stays
with its reason. Each module and cluster runs in a process of its own, and what it saved (--save)
is not measured again.

--ablations: the same step planned by recursion alone, with sweeps, with joint neighbourhoods, and
with equal layers folded, each with its seconds of search.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.ir import mlir
from bench.common import results
from bench.common.corpus import Entry, attach, entries, in_a_process, load, machine, propagate
from bench.common.hand_plans import HandPlan, hand_plans

if TYPE_CHECKING:
    from autoshard.importer.imported_program import ImportedProgram
    from autoshard.planned.summary import PlanSummary

CLUSTERS = ("v5e:4x4", "v5p:2x2x2", "v5p:4x4x4", "h100:8", "h100:4x8")
INTERIORS = ("search", "Shardy")
"""Who may complete a hand plan."""
MOST = 1.02
"""Ours over the best hand plan that fits: rows above it are marked and counted."""


@dataclass(frozen=True)
class Variant:
    """One setting of the search."""

    name: str
    sweeps: int
    joint: bool
    fold: bool


VARIANTS = (
    Variant("recursion alone", 0, False, False),
    Variant("with sweeps", 2, False, False),
    Variant("with joint neighbourhoods", 2, True, False),
    Variant("with folding: the default", 2, True, True),
)


# In a process of its own


def measure(
    name: str, cluster_name: str, limit: float, kinds: list[str], interiors: list[str]
) -> dict[str, Any]:
    """Plan one module on one cluster, by search and by hand."""
    from autoshard.cluster import Cluster

    (entry,) = entries([name])
    cluster = Cluster.of(cluster_name)
    start = time.perf_counter()
    ours = searched(load(entry), cluster, "")
    plans = hand_plans(entry.info["args"], cluster.num_devices, published(entry, cluster))
    step = open_step(entry, cluster)
    completed_by = {
        "search": lambda plan: by_search(step, cluster, plan),
        "Shardy": lambda plan: by_shardy(entry, cluster, plan),
    }
    by_hand: list[dict[str, Any]] = []
    for plan in plans:
        if kinds and not any(plan.name.startswith(kind) for kind in kinds):
            continue
        if time.perf_counter() - start > limit:
            row: dict[str, Any] = {"failed": f"not tried: {limit:.0f} s are over"}
        else:
            row = best_of({by: completed_by[by](plan) for by in INTERIORS if by in interiors})
        by_hand.append({"name": plan.name, "mesh": plan.mesh, **row})
    return {"ours": ours, "hand": by_hand}


def published(entry: Entry, cluster: Any) -> tuple[dict[str, int], list[Any]] | None:
    """The specs of the module's ``.expert`` sibling, if they are for as many devices."""
    sibling = expert_sibling(entry, cluster)
    if sibling is None:
        return None
    specs = [argument.get("expert_spec") for argument in sibling.info["args"]]
    return sibling.info["mesh"], specs


def expert_sibling(entry: Entry, cluster: Any) -> Entry | None:
    """The same step as its framework shards it by hand, if that is for as many devices."""
    name = entry.name.removesuffix(".train") + ".expert"
    for other in entries([]):
        if other.name == name and math.prod(other.info["mesh"].values()) == cluster.num_devices:
            return other
    return None


@dataclass(frozen=True)
class OpenStep:
    """A train step in which nothing is decided, to be planned by many hand plans."""

    module: mlir.Module
    """The program refers to its ops."""
    imported: ImportedProgram


def open_step(entry: Entry, cluster: Any) -> OpenStep:
    """Read a step."""
    from autoshard.importer.program import import_program
    from autoshard.passes.import_strategies import import_strategies
    from autoshard.planned.write import mesh_of, populate_rules

    module = load(entry)
    with module.context, mlir.Location.unknown():
        attach(module, "", {})
        import_strategies(module, cluster.level_mesh())
        populate_rules(module)
        return OpenStep(module, import_program(module, mesh_of(module)))


def by_search(step: OpenStep, cluster: Any, plan: HandPlan) -> dict[str, Any]:
    """Seconds and bytes of a hand plan that autoshard's search completes."""
    from autoshard import _core
    from autoshard.importer.imported_program import NO_VALUE
    from autoshard.importer.pins import DimPin, Pin, Pinned, core_pin
    from autoshard.passes.memory_limit import memory_limit_of
    from autoshard.planned.given_plan import Costed
    from autoshard.sharding import Mesh

    mesh = Mesh.parse(plan.mesh)
    arguments = step.imported.functions[-1].arguments
    pins = [
        Pinned(
            arguments[index],
            Pin(tuple(DimPin(tuple(map(mesh.axis_index, axes))) for axes in cut)),
            None,
            plan.name,
        )
        for index, cut in plan.cuts.items()
        if arguments[index] != NO_VALUE
    ]
    pins += step.imported.pins
    program = step.imported.program.changed(
        axis_sizes=[axis.size for axis in mesh.axes], pins=[core_pin(pinned) for pinned in pins]
    )
    limit = memory_limit_of(cluster, "")
    start = time.perf_counter()
    try:
        found = _core.recursive_programming(
            program,
            cluster.to_core(mesh, 0.0),
            mem_coeff=None,
            memory_limit=limit,
            merge_axes=False,
        )
    except _core.DoesNotFit as error:
        return {"failed": "does not fit", "peak": error.args[1], "limit": limit}
    except _core.Contradiction as error:
        return {"failed": f"Contradiction: {error}"}
    seconds = time.perf_counter() - start
    imported = replace(step.imported, program=program, mesh=mesh, pins=pins)
    costed = Costed(imported, found, mesh, cluster)
    summary = replace(costed.summary, memory_limit=limit)
    return row_of(summary, seconds)


def searched(
    module: Any,
    cluster: Any,
    mesh: str,
    variant: Variant = VARIANTS[-1],
    memory_limit: float | None = None,
) -> dict[str, Any]:
    """Seconds and bytes of the plan that keeps the pins of a module.

    One that does not fit keeps its bytes and the reason. The limit is in bytes; None: the default.
    """
    from autoshard.errors import AutoshardError, AutoshardWarning, DoesNotFitError
    from autoshard.passes.recursive_programming import RecursiveProgramming, plan_automatically

    warnings.simplefilter("ignore", AutoshardWarning)
    options = RecursiveProgramming(
        mesh=mesh,
        sweeps=variant.sweeps,
        joint=variant.joint,
        fold=variant.fold,
        memory_limit="" if memory_limit is None else f"{memory_limit:.0f}",
    )
    start = time.perf_counter()
    try:
        summary = plan_automatically(module, cluster, options)
    except DoesNotFitError as error:
        return {"failed": "does not fit", "peak": error.peak_bytes, "limit": error.memory_limit}
    except AutoshardError as error:
        return {"failed": f"{type(error).__name__}: {error.message[:300]}"}
    return row_of(summary, time.perf_counter() - start)


def row_of(summary: PlanSummary, seconds: float) -> dict[str, Any]:
    """What is kept of a plan."""
    return {
        "step": summary.step_seconds,
        "compute": summary.compute_seconds,
        "communication": summary.communication_seconds,
        "peak": summary.peak_bytes_per_device,
        "limit": summary.memory_limit,
        "bound": summary.lower_bound_seconds,
        "mem_coeff": summary.mem_coeff,
        "mesh": summary.mesh,
        "seconds": seconds,
        "collectives": [
            f"{c.kind}({','.join(c.axes)}) {c.bytes / 1e6:.3g} MB x {c.times:g} = "
            f"{(c.seconds or 0) * 1e3:.3g} ms {c.location or ''}"
            for c in summary.collectives[:6]
        ],
    }


def by_shardy(entry: Entry, cluster: Any, plan: HandPlan) -> dict[str, Any]:
    """The same for a hand plan that Shardy's propagation completes, the batch first."""
    module = load(entry)
    arguments = entry.info["args"]
    roles = {argument["index"]: argument["role"] for argument in arguments}
    cuts = {
        index: text if roles[index] == "batch" else text.replace('"}', '"}p1')
        for index, text in plan.sdy_cuts().items()
    }
    attach(module, plan.sdy_axes, cuts, plan.sdy_results(arguments))
    propagate(module)
    return searched(module, cluster, plan.mesh)


def best_of(completed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The faster one that fits; ``interior`` says who completed it."""
    rows = [{**row, "interior": by} for by, row in completed.items()]
    fitting = [row for row in rows if "failed" not in row]
    best = min(fitting, key=lambda row: row["step"], default=rows[0])
    return {**best, "both": [row.get("failed") or row["step"] for row in rows]}


def ablate(name: str, cluster_name: str) -> dict[str, Any]:
    """Plan one module by every variant of the search."""
    from autoshard.cluster import Cluster

    (entry,) = entries([name])
    cluster = Cluster.of(cluster_name)
    return {v.name: searched(load(entry), cluster, "", v) for v in VARIANTS}


# The tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", nargs="*", default=[], metavar="PART", help="parts of names")
    parser.add_argument("--clusters", nargs="*", default=CLUSTERS, metavar="NAME")
    parser.add_argument("--plans", nargs="*", default=[], metavar="KIND", help="kinds by hand")
    parser.add_argument(
        "--interiors", nargs="*", default=INTERIORS, choices=INTERIORS, help="who completes them"
    )
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a row (300)")
    parser.add_argument("--save", type=Path, help="keep rows, and skip those that are there")
    parser.add_argument("--show", type=Path, help="print the tables of a saved file")
    parser.add_argument("--details", action="store_true", help="every hand plan of every row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    results.add_option(parser, "plan_quality")
    options = parser.parse_args()
    if options.one:
        done = (
            ablate(options.one, options.cluster)
            if options.ablations
            else measure(
                options.one,
                options.cluster,
                0.8 * options.timeout,
                options.plans,
                options.interiors,
            )
        )
        print(json.dumps(done))
        return
    console = Console(width=None if sys.stdout.isatty() else 170)
    rows = saved(options.show) if options.show else collect(console, options)
    if options.ablations:
        file = options.csv and options.csv.with_stem(f"{options.csv.stem}-ablations")
        results.write(file, ablation_table(console, rows))
    else:
        results.write(options.csv, quality_table(console, rows))
    if options.details:
        for row in rows:
            details_table(console, row)
    console.print(f"Planned on {machine()}; seconds and bytes are modelled.")


def saved(path: Path) -> list[dict[str, Any]]:
    """Rows of earlier runs; of two for one module and cluster the later one."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return list({(row["module"], row["cluster"]): row for row in rows}.values())


def collect(console: Console, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every module on every cluster; rows that were saved stand."""
    rows = saved(options.save) if options.save else []
    known = {(row["module"], row["cluster"]) for row in rows}
    for entry in entries([]):
        wanted = not options.modules or any(part in entry.name for part in options.modules)
        if not wanted or not entry.name.endswith((".train", ".step")):
            continue
        for cluster in options.clusters:
            if (entry.name, cluster) in known:
                continue
            more = ["--cluster", cluster, "--timeout", str(options.timeout)]
            more += ["--ablations"] if options.ablations else []
            more += ["--plans", *options.plans] if options.plans else []
            more += ["--interiors", *options.interiors]
            made = in_a_process(__file__, entry.name, options.timeout, *more)
            row = {"module": entry.name, "cluster": cluster, **made}
            rows.append(row)
            if options.save:
                with options.save.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if not options.ablations:
                console.print(f"[dim]{entry.name} {cluster}: {' | '.join(cells(row))}")
    return rows


def best_by_hand(row: dict[str, Any]) -> dict[str, Any] | None:
    """The fastest hand plan that fits."""
    fitting = [plan for plan in row.get("hand", ()) if "failed" not in plan]
    return min(fitting, key=lambda plan: plan["step"], default=None)


def ratio(row: dict[str, Any]) -> float:
    """Ours over the best by hand; infinite if only a hand plan fits, 0 if none does."""
    best = best_by_hand(row)
    if "failed" in row or "failed" in row["ours"]:
        return float("inf") if best or "ours" not in row else 0.0
    return row["ours"]["step"] / best["step"] if best else 0.0


def cells(row: dict[str, Any]) -> list[str]:
    """Ours, the best by hand, and their ratio; what failed stays with its reason."""
    if "failed" in row:
        return [row["failed"], *[""] * 8]
    ours, best = row["ours"], best_by_hand(row)
    tried = [plan for plan in row["hand"] if not plan.get("failed", "").startswith("not tried")]
    fitting = sum("failed" not in plan for plan in row["hand"])
    mine = (
        [f"{ours['failed']} ({ours['peak'] / 1e9:.1f} GB)" if "peak" in ours else ours["failed"]]
        + [""] * 3
        if "failed" in ours
        else [
            f"{ours['step'] * 1e3:.1f}",
            f"{ours['communication'] * 1e3:.1f}",
            f"{ours['peak'] / 1e9:.1f}",
            ours["mesh"],
        ]
    )
    theirs = (
        ["none fits", "", ""]
        if best is None
        else [
            f"{best['step'] * 1e3:.1f}",
            f"{best['peak'] / 1e9:.1f}",
            best["name"] + (" (Shardy)" if best.get("interior") == "Shardy" else ""),
        ]
    )
    found = ratio(row)
    verdict = f"{found:.3f}" if best and "failed" not in ours else "-" if best is None else "lost"
    return [*mine, *theirs, f"{fitting} of {len(tried)}", verdict]


def quality_table(console: Console, rows: list[dict[str, Any]]) -> Table:
    """All rows, worst first."""
    table = Table(title="Search against plans by hand (ms a step, GB a device, modelled)")
    for heading in ("module", "cluster"):
        table.add_column(heading, overflow="fold")
    for heading in ("ours ms", "moving ms", "ours GB"):
        table.add_column(heading, justify="right")
    table.add_column("mesh", overflow="fold")
    for heading in ("best by hand ms", "its GB"):
        table.add_column(heading, justify="right")
    table.add_column("which", overflow="fold")
    table.add_column("fit", justify="right")
    table.add_column("ratio", justify="right")
    for row in sorted(rows, key=ratio, reverse=True):
        style = "bold red" if ratio(row) > MOST else ""
        table.add_row(row["module"], row["cluster"], *cells(row), style=style)
    console.print(table)
    lost = sum(ratio(row) > MOST for row in rows)
    console.print(f"{lost} of {len(rows)} rows above {MOST} of the best plan by hand.")
    return table


def details_table(console: Console, row: dict[str, Any]) -> None:
    """Every plan of one row."""
    table = Table(title=f"{row['module']} on {row['cluster']}")
    for heading in ("plan", "mesh", "ms", "compute", "moving", "GB", "largest collectives"):
        table.add_column(heading, overflow="fold")
    for plan in [{"name": "ours", **row.get("ours", {})}, *row.get("hand", ())]:
        peak = f"{plan['peak'] / 1e9:.1f}" if "peak" in plan else ""
        if "failed" in plan:
            table.add_row(plan["name"], plan.get("mesh", ""), plan["failed"], "", "", peak, "")
            continue
        times = (f"{plan[key] * 1e3:.1f}" for key in ("step", "compute", "communication"))
        table.add_row(plan["name"], plan["mesh"], *times, peak, "\n".join(plan["collectives"][:4]))
    console.print(table)


def ablation_table(console: Console, rows: list[dict[str, Any]]) -> Table:
    """Step time of every variant over that of the default, and seconds of planning."""
    table = Table(title="What each part of the search earns: step over the default's, seconds")
    for heading in ("module", "cluster"):
        table.add_column(heading, overflow="fold")
    for variant in VARIANTS:
        table.add_column(variant.name, justify="right")
    for row in rows:
        if "failed" in row:
            table.add_row(row["module"], row["cluster"], row["failed"])
            continue
        full = row[VARIANTS[-1].name]
        table.add_row(
            row["module"], row["cluster"], *(ablation_cell(row[v.name], full) for v in VARIANTS)
        )
    console.print(table)
    return table


def ablation_cell(plan: dict[str, Any], full: dict[str, Any]) -> str:
    """One variant of one row."""
    if "failed" in plan:
        return plan["failed"]
    over = f"{plan['step'] / full['step']:.3f}" if "failed" not in full else "fits"
    return f"{over}, {plan['seconds']:.2f} s"


if __name__ == "__main__":
    main()
