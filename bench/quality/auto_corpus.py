"""The automatic mode on every module of the corpus, as autoshard-opt runs it.

    python bench/quality/auto_corpus.py [--cluster v5e:4x4] [NAME ...]

Each module goes through ``autoshard-opt NAME --autoshard-recursive-programming='cluster=..'
--plan-json=.. -o ..`` in a process of its own; ``seconds`` is the whole command: start, parse, plan
and write. ``plan`` is what the plan itself took. Then the written module is read again: every
argument, result and op with results must carry an ``mhlo.sharding`` in the V2 form, and the JSON
every field that is promised. The last column says what is missing, and the whole run then exits 1.
A plan that does not fit is a result, with the error's numbers. The ``.expert`` modules bring a mesh
of 64 devices and are planned for ``--expert-cluster``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.errors import AutoshardError
from autoshard.ir import mlir, new_context, parse_file
from autoshard.sharding import canonical_v2
from bench.common.corpus import Entry, count_ops, entries, machine, ops_with_results

FIELDS = (
    "step_seconds",
    "compute_seconds",
    "communication_seconds",
    "peak_bytes_per_device",
    "lower_bound_seconds",
    "gap",
    "planning_seconds",
    "collectives",
)
COLLECTIVE_FIELDS = ("kind", "axes", "bytes", "times", "seconds", "location")

_NO_FIT = re.compile(r"needs ([\d.]+ \w+) on each of \d+ devices, .* more than the ([\d.]+ \w+)")


@dataclass(frozen=True)
class Row:
    """What came of one module."""

    name: str
    cluster: str
    seconds: float
    """The whole command."""
    exit_code: int
    ops: int | None
    """Number of ops of the written module."""
    plan: dict[str, Any] | None
    """The JSON."""
    note: str
    """What is missing, or why there is no plan; empty if all is there."""
    is_good: bool


def run(entry: Entry, cluster: str, options: str, timeout: float) -> Row:
    """Plan one module and look at what was written."""
    with tempfile.TemporaryDirectory() as folder:
        planned, plan_json = Path(folder) / "planned.mlir", Path(folder) / "plan.json"
        command = [
            *(sys.executable, "-m", "autoshard.cli.opt", str(entry.path)),
            f"--autoshard-recursive-programming=cluster={cluster} {options}".strip(),
            *(f"--plan-json={plan_json}", "-o", str(planned)),
        ]
        start = time.perf_counter()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return Row(entry.name, cluster, timeout, -1, None, None, "not done in time", False)
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            error = done.stderr.strip().splitlines()[-1:]
            found = _NO_FIT.search(error[0]) if error else None
            note = f"needs {found[1]} of {found[2]}" if found else "".join(error)[:300]
            return Row(
                entry.name, cluster, seconds, done.returncode, None, None, note, found is not None
            )
        plan = json.loads(plan_json.read_text())
        module = parse_file(planned, new_context())
        missing = [*missing_shardings(module), *missing_fields(plan)]
        note = "; ".join(missing)
        return Row(entry.name, cluster, seconds, 0, count_ops(module), plan, note, not missing)


def missing_shardings(module: mlir.Module) -> list[str]:
    """Arguments, results and ops without a V2 ``mhlo.sharding`` that parses, counted by kind."""
    missing: dict[str, int] = {}
    texts: set[str] = set()
    for what, attributes in sharding_owners(module):
        if "mhlo.sharding" not in attributes:
            missing[what] = missing.get(what, 0) + 1
        else:
            texts.add(mlir.StringAttr(attributes["mhlo.sharding"]).value)
    found = [f"no sharding on {count} x {what}" for what, count in sorted(missing.items())]
    for text in sorted(texts):
        try:
            canonical = canonical_v2(text)
        except AutoshardError as error:
            found.append(f"{text}: {error.message}")
            continue
        if canonical != text:
            found.append(f"{text} instead of {canonical}")
    return found


def sharding_owners(module: mlir.Module) -> Iterator[tuple[str, Any]]:
    """What must carry a sharding, and its attributes: boundary of functions, ops with results."""
    called = _planned_functions(module)
    for function in called:
        kind = mlir.FunctionType(mlir.TypeAttr(function.attributes["function_type"]).value)
        for key, types in (("arg_attrs", kind.inputs), ("res_attrs", kind.results)):
            if not types:
                continue
            dicts = (
                [mlir.DictAttr(d) for d in mlir.ArrayAttr(function.attributes[key])]
                if key in function.attributes
                else [mlir.DictAttr.get({}, module.context) for _ in types]
            )
            for attributes in dicts:
                yield ("an argument" if key == "arg_attrs" else "a result"), attributes
        for op in ops_with_results(function):
            yield op.name, op.attributes


def _planned_functions(module: mlir.Module) -> list[mlir.Operation]:
    """``main`` and what it calls; others are decompositions and comparators, planned as one op."""
    functions = {
        mlir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    reached = ["main"]
    for name in reached:
        for op in ops_with_results(functions[name]):
            if op.name == "func.call":
                callee = mlir.FlatSymbolRefAttr(op.attributes["callee"]).value
                if callee not in reached:
                    reached.append(callee)
    return [functions[name] for name in reached]


def missing_fields(plan: dict[str, Any]) -> list[str]:
    """Fields of the JSON that are missing, or say nothing."""
    missing = [name for name in FIELDS if plan.get(name) is None]
    if not isinstance(plan.get("planning_seconds"), dict):
        missing.append("planning_seconds by phase")
    for name in COLLECTIVE_FIELDS:
        without = sum(
            name not in one or (one[name] is None and name != "location")
            for one in plan.get("collectives", [])
        )
        if without:
            missing.append(f"{name} of {without} collectives")
    return [f"no {name}" for name in missing]


def cells(row: Row) -> list[str]:
    """A row of the table."""
    ops = "" if row.ops is None else f"{row.ops:,}"
    head = [row.name, row.cluster, ops, str(row.exit_code), f"{row.seconds:.1f}"]
    if row.plan is None:
        return [*head, *[""] * 8, row.note]
    plan = row.plan
    without_line = sum(one["location"] is None for one in plan["collectives"])
    gap = "none" if plan["gap"] is None else f"{100 * plan['gap']:.2f}"
    return [
        *head,
        f"{sum(plan['planning_seconds'].values()):.2f}",
        plan["mesh"],
        f"{1e3 * plan['step_seconds']:,.2f}",
        f"{1e3 * plan['communication_seconds']:,.2f}",
        f"{plan['peak_bytes_per_device'] / 2**30:.2f}",
        gap,
        str(len(plan["collectives"])),
        str(without_line),
        row.note or "-",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules; all if none is given")
    parser.add_argument("--cluster", default="v5e:4x4", help="what is planned for (v5e:4x4)")
    parser.add_argument("--expert-cluster", default="v5e:8x8", help="of 64 devices (v5e:8x8)")
    parser.add_argument("--options", default="", metavar="TEXT", help="more options of the pass")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a module (300)")
    given = parser.parse_args()
    heads = ["module", "cluster", "ops", "exit", "seconds", "plan s", "mesh", "step ms", "comm ms"]
    heads += ["peak GiB", "gap %", "collectives", "no line", "missing"]
    table = Table(*heads, title=f"planned on {machine()}")
    all_good = True
    for entry in entries(given.names):
        cluster = given.expert_cluster if entry.is_expert else given.cluster
        row = run(entry, cluster, given.options, given.timeout)
        all_good = all_good and row.is_good
        table.add_row(*cells(row))
        print(
            row.name, row.exit_code, f"{row.seconds:.1f} s", row.note, file=sys.stderr, flush=True
        )
    Console(width=None if sys.stdout.isatty() else 240).print(table)
    if not all_good:
        sys.exit(1)


if __name__ == "__main__":
    main()
