"""Exact solvers on IOPDDL files, as references for bench/quality/iopddl.py (extra ``bench``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autoshard.solver import Problem, read_iopddl

LARGEST_ENTRIES = 1_000_000
"""Table entries a reference is given; larger instances take them hours and gigabytes."""


def entries(problem: Problem) -> int:
    return sum(problem.tables[t].size for t in problem.edge_table)


def toulbar2_reference(path: Path, seconds: float) -> str:
    """The optimum without the memory limit: a lower bound on the optimum with it."""
    import pytoulbar2

    problem = read_iopddl(path)
    if entries(problem) > LARGEST_ENTRIES:
        return f"not run: {entries(problem):,} table entries"
    top = 10**15
    network = pytoulbar2.CFN(top, 0)
    for node in range(problem.nodes):
        costs = problem.option_cost[problem.options(node)]
        network.AddVariable(f"x{node}", range(len(costs)))
        network.AddFunction([f"x{node}"], [min(int(min(c, top)), top) for c in costs])
    for edge in range(problem.edges):
        table = np.minimum(problem.edge_costs(edge), top)
        ends = [f"x{problem.edge_from[edge]}", f"x{problem.edge_to[edge]}"]
        network.AddFunction(ends, [int(c) for c in table.ravel()])
    found = network.Solve(timeLimit=max(1, int(seconds)))
    return f"without limit: {found[1]:.9g}" if found else "without limit: nothing found in time"


def highs_reference(path: Path, seconds: float) -> str:
    """The integer program with one binary an option and one column a table entry."""
    import highspy

    problem = read_iopddl(path)
    if entries(problem) > LARGEST_ENTRIES:
        return f"not run: {entries(problem):,} table entries"
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("time_limit", float(seconds))
    infinity = highspy.kHighsInf
    columns = len(problem.option_cost)
    allowed = np.isfinite(problem.option_cost)
    costs = [np.where(allowed, problem.option_cost, 0.0)]
    upper = [allowed.astype(float)]
    rows: list[tuple[float, float, list[int], list[float]]] = []
    for node in range(problem.nodes):
        span = problem.options(node)
        rows.append(
            (1.0, 1.0, list(range(span.start, span.stop)), [1.0] * (span.stop - span.start))
        )
    for edge in range(problem.edges):
        table = problem.edge_costs(edge)
        i, j = (problem.options(int(n)) for n in (problem.edge_from[edge], problem.edge_to[edge]))
        at = columns
        columns += table.size
        finite = np.isfinite(table)
        costs.append(np.where(finite, table, 0.0).ravel())
        upper.append(finite.astype(float).ravel())
        index = at + np.arange(table.size).reshape(table.shape)
        for side, options in ((index, i), (index.T, j)):
            for option, line in enumerate(side):
                rows.append(
                    (0.0, 0.0, [*line.tolist(), options.start + option], [1.0] * len(line) + [-1.0])
                )
    if problem.memory_limit is not None:
        starts = sorted({int(t) for t in problem.live_first})
        for point in starts:
            live = np.flatnonzero((problem.live_first <= point) & (point < problem.live_last))
            options = np.concatenate(
                [
                    np.arange(problem.options(int(n)).start, problem.options(int(n)).stop)
                    for n in live
                ]
                or [np.zeros(0, int)]
            )
            taken = problem.option_memory[options].astype(float)
            kept = taken > 0
            rows.append(
                (
                    -infinity,
                    float(problem.memory_limit),
                    options[kept].tolist(),
                    taken[kept].tolist(),
                )
            )
    cost, top = np.concatenate(costs), np.concatenate(upper)
    model.addVars(columns, np.zeros(columns), top)
    model.changeColsCost(columns, np.arange(columns, dtype=np.int32), cost)
    binaries = np.arange(len(problem.option_cost), dtype=np.int32)
    model.changeColsIntegrality(
        len(binaries), binaries, np.full(len(binaries), highspy.HighsVarType.kInteger)
    )
    for low, high, index, value in rows:
        model.addRow(low, high, len(index), np.array(index, np.int32), np.array(value))
    model.run()
    info = model.getInfo()
    return f"with limit: cost {info.objective_function_value:.9g}, bound {info.mip_dual_bound:.9g}"
