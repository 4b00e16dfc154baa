"""Every instance of the IOPDDL folder within its own time limit: cost, bound, gap, memory, time.

    python bench/quality/iopddl.py [--instances ABGLMNPU] [--seeds 3] [--fraction 1.0] [--exact]

The folder is ``AUTOSHARD_IOPDDL`` (default ``../shared/iopddl`` beside the checkout). Each run is a
process of its own; its limit counts from the start of the process, so parsing is included.
Score = best-known / ours. ``--exact`` also runs pytoulbar2 and highspy (extra ``bench``) on what
they can take: the instance without its memory limit is a bound, with it a reference.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.common import results

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "iopddl"
HEADS = (
    *("instance", "best-known", "ours", "best-known / ours", "bound / best-known"),
    *("published bound / best-known", "peak GiB", "first feasible s"),
)
FOLDER = Path(os.environ.get("AUTOSHARD_IOPDDL", _BESIDE))


@dataclass(frozen=True)
class Instance:
    name: str
    seconds: float
    """The contest's limit."""
    best_known: float
    published_bound: float


INSTANCES = [
    Instance("A", 60, 6.54864e9, 6.51381e9),
    Instance("B", 60, 532_843, 532_843),
    Instance("G", 120, 217_039, 216_931),
    Instance("L", 180, 1.97099e9, 1.91862e9),
    Instance("M", 180, 4.99282e10, 4.94074e10),
    Instance("N", 180, 1.9947e11, 1.7294e11),
    Instance("P", 240, 6.51833e11, 6.16246e11),
    Instance("U", 300, 2.444e9, 2.0189e9),
]

RUN = """
import json, resource, sys, time
begin = time.perf_counter()
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autoshard.solver import check_solution, read_iopddl, solve
problem = read_iopddl(sys.argv[1])
read = time.perf_counter() - begin
solution = solve(problem, max(1.0, float(sys.argv[2]) - read - 0.5), int(sys.argv[3]))
seconds = time.perf_counter() - begin
if solution.choice is not None:
    check_solution(problem, solution)
final = solution.cost
print(json.dumps({
    "cost": final, "bound": solution.lower_bound, "reason": solution.stop_reason.value,
    "seconds": seconds, "read": read,
    "first": next((read + p.seconds for p in solution.trace if p.cost < float("inf")), seconds),
    "within": next((read + p.seconds for p in solution.trace if p.cost <= 1.01 * final), seconds),
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
}))
"""


def run(instance: Instance, seconds: float, seed: int) -> dict[str, Any]:
    path = FOLDER / f"{instance.name}.json.gz"
    command = [sys.executable, "-c", RUN, str(path), str(seconds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{instance.name}, seed {seed}:\n{done.stderr}")
    return json.loads(done.stdout)


def exact_references(instance: Instance, seconds: float) -> None:
    """pytoulbar2 without the memory limit (a bound), highspy with it (an integer program)."""
    from bench.quality.exact import highs_reference, toulbar2_reference

    for name, reference in (("toulbar2", toulbar2_reference), ("highs", highs_reference)):
        begin = time.perf_counter()
        text = reference(FOLDER / f"{instance.name}.json.gz", seconds)
        print(f"    {name:9} {text}  [{time.perf_counter() - begin:.1f} s]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", default="".join(i.name for i in INSTANCES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the contest's limits")
    parser.add_argument("--exact", action="store_true")
    results.add_option(parser, "iopddl")
    arguments = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, "
        f"{arguments.seeds} seed(s), {arguments.fraction:g} of the limits"
    )
    print(
        "    best-known        median         worst   score    bound/best     gap  published"
        "  peak GiB  first s  1% s  end s  reasons"
    )
    scores = []
    rows: list[list[str]] = []
    for instance in INSTANCES:
        if instance.name not in arguments.instances:
            continue
        runs = [
            run(instance, arguments.fraction * instance.seconds, seed)
            for seed in range(arguments.seeds)
        ]
        costs = sorted(r["cost"] for r in runs)
        median, bound = statistics.median_high(costs), max(r["bound"] for r in runs)
        scores.append(instance.best_known / median)
        print(
            f"{instance.name} {instance.best_known:12.6g} {median:14.9g} {costs[-1]:13.9g}"
            f" {scores[-1]:7.4f} {bound / instance.best_known:13.4f}"
            f" {100 * (1 - min(1.0, bound / median)):6.2f}%"
            f" {instance.published_bound / instance.best_known:10.4f}"
            f" {max(r['rss'] for r in runs):9.2f} {max(r['first'] for r in runs):8.1f}"
            f" {statistics.median(r['within'] for r in runs):5.1f}"
            f" {max(r['seconds'] for r in runs):6.1f}"
            f"  {' '.join(sorted({r['reason'] for r in runs}))}",
            flush=True,
        )
        rows.append(
            [
                *(instance.name, f"{instance.best_known:.6g}", f"{median:.6g}"),
                *(f"{scores[-1]:.4f}", f"{bound / instance.best_known:.4f}"),
                f"{instance.published_bound / instance.best_known:.4f}",
                f"{max(r['rss'] for r in runs):.2f}",
                f"{max(r['first'] for r in runs):.1f}",
            ]
        )
        if arguments.exact:
            exact_references(instance, arguments.fraction * instance.seconds)
    results.write_rows(arguments.csv, HEADS, rows)
    print(f"score (median seed): {statistics.fmean(scores):.4f}")


if __name__ == "__main__":
    main()
