"""``autoshard-verify --check`` on plans of the corpus: verdict and seconds of each.

    python bench/truth/check_corpus.py [--cluster h100:8 ...] [NAME ...]

Each module is planned by autoshard-opt and checked by autoshard-verify, both in processes of their
own. ``seconds`` are those of the whole check command, ``cpu`` the processor seconds that it and the
processes it started took: on a machine that others use, too, these say more. Modules of which no
plan fits a cluster are left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import results
from bench.common.corpus import Entry, entries, machine

CLUSTERS = ("h100:8", "v5e:4x4", "v5p:4x4x4")

_SHOWN = 6
"""Sizes that a line lists."""


@dataclass(frozen=True)
class Row:
    """One plan and what was found."""

    name: str
    cluster: str
    seconds: float
    cpu_seconds: float
    verdict: str
    """``right``, ``WRONG``, or why nobody knows."""
    found: dict[str, Any] | None
    """The JSON of the check."""


def run(entry: Entry, cluster: str, timeout: float) -> Row | None:
    """Plan and check one module; None where no plan fits."""
    with tempfile.TemporaryDirectory() as folder:
        planned, found = Path(folder) / "planned.mlirbc", Path(folder) / "check.json"
        search = f"--autoshard-recursive-programming=cluster={cluster}"
        planning = (str(entry.path), search, "--emit=bytecode", "-o", str(planned))
        command = (sys.executable, "-m", "autoshard.cli.opt", *planning)
        if subprocess.run(command, capture_output=True).returncode:
            return None
        command = ("autoshard.cli.verify", str(planned), "--check", "--json", str(found))
        start, before = time.perf_counter(), _processor_seconds()
        done = subprocess.run(
            [sys.executable, "-m", *command, "--timeout", str(timeout)],
            capture_output=True,
            text=True,
        )
        seconds, processor = time.perf_counter() - start, _processor_seconds() - before
        if not found.exists():
            why = (done.stderr.strip().splitlines() or ["?"])[-1]
            return Row(entry.name, cluster, seconds, processor, why, None)
        said = json.loads(found.read_text())
        verdict = "right" if said["is_right"] else f"WRONG: {_place(said)}{said['message']}"
        return Row(entry.name, cluster, seconds, processor, verdict, said)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _place(said: dict[str, Any]) -> str:
    differs: dict[str, Any] = said["differs"] or {}
    where = differs.get("location")
    return f"{where}: " if where else ""


def _line(row: Row) -> str:
    text = f"{row.name:<36}{row.cluster:<11}{row.seconds:7.1f} s{row.cpu_seconds:7.1f} s cpu  "
    if row.found is None:
        return text + row.verdict
    said = row.found
    smaller = [f"{old}->{new}" for old, new in said["sizes"] if old != new][:_SHOWN]
    return (
        f"{text}{row.verdict}; {said['looked_at']} of {said['ops']} ops,"
        f" {said['compared']} results, {said['exact']} exact,"
        f" {said['unjudged']} rounding, {said['not_finite']:.1%} not finite; {', '.join(smaller)}"
    )


HEADS = ("module", "cluster", "ops", "looked at", "verdict", "seconds", "CPU seconds")


def _cells(row: Row) -> list[str]:
    said = row.found or {}
    looked = [str(said.get("ops", "")), str(said.get("looked_at", ""))]
    return [
        *(row.name, row.cluster, *looked, row.verdict),
        *(f"{row.seconds:.0f}", f"{row.cpu_seconds:.0f}"),
    ]


def main() -> None:
    """Print a line for each plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--cluster", action="append", help=f"default: {', '.join(CLUSTERS)}")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of one check (600)")
    results.add_option(parser, "check_corpus")
    given = parser.parse_args()
    print(machine())
    rows: list[Row] = []
    for entry in entries(given.names):
        if entry.is_expert:
            continue
        for cluster in given.cluster or CLUSTERS:
            row = run(entry, cluster, given.timeout)
            if row is not None:
                rows.append(row)
                print(_line(row), flush=True)
    results.write_rows(given.csv, HEADS, map(_cells, rows))
    slow = [row for row in rows if row.seconds > 60]
    right = sum(row.verdict == "right" for row in rows)
    print(f"{len(rows)} plans, {right} right, {len(slow)} took more than a minute")


if __name__ == "__main__":
    main()
