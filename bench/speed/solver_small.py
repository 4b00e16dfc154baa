"""Small networks without memory limit, as planning solves them by the thousand.

    python bench/speed/solver_small.py [--runs 20]

1,000 nodes x 8 options x 1,500 edges: a program-like order, most edges to recent nodes, tables of
reshard costs shared by many edges. Prints the time to within 0.1 % of the bound.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time

import numpy as np

from autoshard.solver import Problem, solve

GAP = 1e-3


def network(seed: int, nodes: int = 1000, options: int = 8, edges: int = 1500) -> Problem:
    """Reshard between layouts: free on the diagonal, else bytes times what must move."""
    rng = np.random.default_rng(seed)
    moved = rng.integers(1, 8, (options, options)) / 8.0
    np.fill_diagonal(moved, 0.0)
    sizes = 2.0 ** rng.integers(0, 6, 12)
    tables = tuple(moved * size for size in sizes)
    to = np.concatenate([np.arange(1, nodes), rng.integers(1, nodes, edges - nodes + 1)])
    back = np.where(rng.random(edges) < 0.7, 1, 1 + rng.integers(0, 40, edges))
    compute = rng.random((nodes, options)) * 16 * (rng.random((nodes, 1)) < 0.4)
    return Problem(
        option_offset=np.arange(nodes + 1, dtype=np.int32) * options,
        option_cost=compute.ravel(),
        edge_from=np.maximum(to - back, 0).astype(np.int32),
        edge_to=to.astype(np.int32),
        edge_table=rng.integers(0, len(tables), edges).astype(np.int32),
        tables=tables,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    milliseconds, in_the_core, gaps = [], [], []
    for seed in range(arguments.runs):
        problem = network(seed)
        best = core = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            solution = solve(problem, threads=1, gap=GAP)
            best = min(best, 1e3 * (time.perf_counter() - begin))
            core = min(core, 1e3 * solution.seconds)
        milliseconds.append(best)
        in_the_core.append(core)
        gaps.append(solution.gap)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, {arguments.runs} networks, best of 3 each"
    )
    print(
        f"milliseconds from Python: median {statistics.median(milliseconds):.2f}, "
        f"worst {max(milliseconds):.2f} (target 5)"
    )
    print(
        f"in the core, as planning calls it: median {statistics.median(in_the_core):.2f}, "
        f"worst {max(in_the_core):.2f}"
    )
    print(
        f"gap: median {100 * statistics.median(gaps):.4f} %, worst {100 * max(gaps):.4f} % "
        f"(target {100 * GAP:g} %)"
    )


if __name__ == "__main__":
    main()
