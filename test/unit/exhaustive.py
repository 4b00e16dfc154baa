"""The least cost of a cost network by trying everything, in numpy and without the solver.

Trying everything means bucket elimination (Dechter 1999): the best option of a node is found for
every combination of options of its neighbours, the node goes, a table over the neighbours stays.
Before that, options that can never be needed are dropped (dead-end elimination, Goldstein 1994).
The result is exact; what would need too large a table is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import NDArray
from plan_cases import imported

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.ir import mlir
from autoshard.solver import Problem

LARGEST_TABLE = 30_000_000
"""Entries; a quarter of a gigabyte."""
LARGEST_WORK = 4_000_000_000
"""Entries looked at to eliminate one node."""

Costs = NDArray[np.float64]


def problem_of(core: _core.SolverProblem) -> Problem:
    """A network of the core, without its memory."""
    return Problem(
        option_offset=np.array(core.option_offset, np.int32),
        option_cost=np.array(core.option_cost, np.float64),
        edge_from=np.array(core.edge_from, np.int32),
        edge_to=np.array(core.edge_to, np.int32),
        edge_table=np.array(core.edge_table, np.int32),
        edge_weight=np.array(core.edge_weight, np.float64),
        tables=tuple(np.array(t.cost).reshape(t.rows, t.cols) for t in core.tables),
    )


class TooLargeError(Exception):
    """The network has no order of elimination with small tables."""


def least_cost(problem: Problem) -> float:
    """The cost of the best choice, without regard to memory; infinite if nothing is allowed.

    Raises:
        TooLargeError: It would take more than ``LARGEST_TABLE`` entries.
    """
    costs = [problem.option_cost[problem.options(n)].copy() for n in range(problem.nodes)]
    edges: dict[tuple[int, int], Costs] = {}
    for e in range(problem.edges):
        a, b = int(problem.edge_from[e]), int(problem.edge_to[e])
        table = problem.edge_costs(e)
        if a == b:
            costs[a] = costs[a] + np.diag(table)
            continue
        if a > b:
            a, b, table = b, a, table.T
        edges[a, b] = edges[a, b] + table if (a, b) in edges else table.copy()
    _drop_options(costs, edges)
    if any(not len(c) for c in costs):
        return inf
    tables = [_Table((node,), cost) for node, cost in enumerate(costs)]
    tables += [_Table(pair, table) for pair, table in edges.items()]
    return _eliminate(tables, [len(c) for c in costs])


def _drop_options(costs: list[Costs], edges: dict[tuple[int, int], Costs]) -> None:
    """Drop options until all that are left may be in a best choice."""
    pairs: list[list[tuple[int, int]]] = [[] for _ in costs]
    for pair in edges:
        for node in pair:
            pairs[node].append(pair)
    waiting = set(range(len(costs)))
    while waiting:
        node = waiting.pop()
        tables = [edges[p] if p[0] == node else edges[p].T for p in pairs[node]]
        kept = _needed(costs[node], tables)
        if kept.all():
            continue
        costs[node] = costs[node][kept]
        for pair in pairs[node]:
            edges[pair] = edges[pair][kept] if pair[0] == node else edges[pair][:, kept]
            waiting.update(pair)


def _needed(cost: Costs, tables: list[Costs]) -> NDArray[np.bool_]:
    """Which options of a node are allowed and not beaten by one other whatever is around."""
    kept = np.isfinite(cost)
    for table in tables:
        kept &= np.isfinite(table).any(axis=1)
    found = np.flatnonzero(kept)
    # worst[a, b]: what b may cost more than a, at most
    worst = cost[found] - cost[found, None]
    for table in tables:
        rows = table[found]
        possible = np.isfinite(rows)
        base = np.where(possible, rows, 0.0)
        for a in range(len(found)):
            over = rows[:, possible[a]] - base[a, possible[a]]
            worst[a] += over.max(axis=1)
    for a in range(len(found)):
        better = (worst[a] <= 0) & kept[found]
        better[a] = False
        if better.any():
            kept[found[a]] = False
    return kept


@dataclass(frozen=True)
class _Table:
    """Costs of combinations of options of ``nodes``; one dim a node, nodes increasing."""

    nodes: tuple[int, ...]
    costs: Costs


def _eliminate(tables: list[_Table], sizes: list[int]) -> float:
    left = set(range(len(sizes)))
    total = 0.0
    while left:
        neighbours = {
            n: tuple(sorted({m for t in tables if n in t.nodes for m in t.nodes} - {n}))
            for n in left
        }
        _, node = min((prod(sizes[m] for m in neighbours[n]), n) for n in left)
        around = neighbours[node]
        shape = tuple(sizes[n] for n in around)
        if prod(shape) > LARGEST_TABLE or prod(shape) * sizes[node] > LARGEST_WORK:
            raise TooLargeError(f"{len(left)} nodes left, the next table has shape {shape}")
        mine = [t for t in tables if node in t.nodes]
        best = np.full(shape, inf)
        for option in range(sizes[node]):
            entry = np.zeros(shape)
            for table in mine:
                costs = np.take(table.costs, option, axis=table.nodes.index(node))
                rest = [n for n in table.nodes if n != node]
                entry += costs.reshape([sizes[n] if n in rest else 1 for n in around])
            np.minimum(best, entry, out=best)
        tables = [t for t in tables if node not in t.nodes]
        if around:
            tables.append(_Table(around, best))
        else:
            total += float(best)
        left.discard(node)
    return total


def exact_and_found(module: mlir.Module, cluster: Cluster) -> tuple[int, float, float, float]:
    """Number of ops, least seconds of any plan, seconds that the search finds, and its bound.

    Memory costs nothing and is not limited. All axes are decided at once for the first, and the
    search runs as it always does.
    """
    program = imported(module, cluster.level_mesh())
    core = cluster.to_core(program.mesh)
    network = _core.recursive_programming_network(program.program, core)
    exact = least_cost(problem_of(network))
    plan = _core.recursive_programming(program.program, core, mem_coeff=0.0, memory_limit=inf)
    return program.program.num_ops, exact, plan.step_seconds, plan.lower_bound_seconds
