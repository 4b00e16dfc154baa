"""The command ``autoshard-solve``: solve one IOPDDL file."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.solver.checker import check_solution
from autoshard.solver.iopddl import read_iopddl
from autoshard.solver.solve import Solution, solve
from autoshard.writing import write_file

INFEASIBLE = 2
"""Exit status if no choice was found; 1 is an error, 0 a solution."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autoshard-solve",
        description="Choose one option per node of an IOPDDL problem, under its memory limit.",
    )
    parser.add_argument("file", metavar="FILE.json[.gz]", help="the problem")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="wall time of the search (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=0, help="another way through the search")
    parser.add_argument("--threads", type=int, default=2, help="1 or 2 (default: 2)")
    parser.add_argument("--gap", type=float, default=0.0, help="stop at this relative gap")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the choice as JSON")
    return parser


def _cost(value: float) -> str:
    return f"{value:,.0f}" if abs(value) < 2**53 and value == math.floor(value) else f"{value:.6g}"


def _result(solution: Solution, seconds_read: float) -> dict[str, Any]:
    found = solution.choice is not None
    return {
        "cost": solution.cost if found else None,
        "lower_bound": solution.lower_bound if math.isfinite(solution.lower_bound) else None,
        "gap": solution.gap if found else None,
        "peak_memory": solution.peak_memory if found else None,
        "stop_reason": solution.stop_reason.value,
        "diagnosis": solution.diagnosis or None,
        "iterations": solution.iterations,
        "seconds": solution.seconds,
        "seconds_read": seconds_read,
        "trace": [
            [
                point.seconds,
                point.cost if math.isfinite(point.cost) else None,
                point.lower_bound if math.isfinite(point.lower_bound) else None,
            ]
            for point in solution.trace
        ],
        "choice": [] if solution.choice is None else solution.choice.tolist(),
    }


def _print_result(solution: Solution) -> None:
    if solution.choice is None:
        print(f"no choice: {solution.diagnosis or solution.stop_reason.value}")
        return
    print(f"cost         {_cost(solution.cost)}")
    print(f"lower bound  {_cost(solution.lower_bound)}  (gap {100 * solution.gap:.3f} %)")
    print(f"peak memory  {solution.peak_memory:,} bytes")
    print(f"stopped      {solution.stop_reason.value} after {solution.seconds:.1f} s")


def run(arguments: argparse.Namespace) -> int:
    """Read, solve, check, print, write. Returns the exit status."""
    begin = time.perf_counter()
    problem = read_iopddl(arguments.file)
    seconds_read = time.perf_counter() - begin
    live = sys.stderr.isatty() and not arguments.json

    def show(seconds: float, cost: float, bound: float) -> None:
        best = _cost(cost) if math.isfinite(cost) else "none yet"
        low = _cost(bound) if math.isfinite(bound) else "none yet"
        print(f"\r{seconds:7.1f} s  cost {best}  bound {low}\x1b[K", end="", file=sys.stderr)

    solution = solve(
        problem,
        arguments.seconds,
        arguments.seed,
        threads=arguments.threads,
        gap=arguments.gap,
        progress=show if live else None,
    )
    if live:
        print("\r\x1b[K", end="", file=sys.stderr)
    if solution.choice is not None:
        check_solution(problem, solution)
    result = _result(solution, seconds_read)
    if arguments.json:
        print(json.dumps(result))
    else:
        _print_result(solution)
    if arguments.output and solution.choice is not None:
        write_file(arguments.output, f"{json.dumps(result)}\n".encode())
    return 0 if solution.choice is not None else INFEASIBLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; errors go to standard error without a traceback."""
    try:
        return run(_parser().parse_args(arguments))
    except AutoshardError as error:
        print(f"autoshard-solve: error: {error}", file=sys.stderr)
        return 1
