"""Recompute what the solver reports, in separate and slower code."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoshard.errors import SolverError
from autoshard.solver.problem import Problem
from autoshard.solver.solve import Certificate, Solution

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Report:
    """Cost and memory of a choice, recomputed."""

    cost: float
    peak_memory: int
    peak_point: int
    """A program point at which ``peak_memory`` is needed; 0 if nothing is ever live."""


def report_of(problem: Problem, choice: ArrayLike) -> Report:
    """Cost and peak of ``choice``, with Python's exact integers and sums.

    Raises:
        SolverError: ``choice`` does not name one existing option a node.
    """
    picked = np.asarray(choice, np.int64)
    counts = np.diff(problem.option_offset)
    if picked.shape != (problem.nodes,):
        raise SolverError(f"choice: has shape {picked.shape}, needs ({problem.nodes},)")
    wrong = np.flatnonzero((picked < 0) | (picked >= counts))
    if len(wrong):
        node = int(wrong[0])
        raise SolverError(f"choice[{node}]: is {picked[node]}, node has {counts[node]} options")
    index = problem.option_offset[:-1] + picked
    terms = [float(cost) for cost in problem.option_cost[index]]
    for edge in range(problem.edges):
        i, j = problem.edge_from[edge], problem.edge_to[edge]
        entry = float(problem.tables[int(problem.edge_table[edge])][picked[i], picked[j]])
        weight = float(problem.edge_weight[edge]) if len(problem.edge_weight) else 1.0
        terms.append(entry if entry == math.inf else entry * weight)
    cost = math.inf if math.inf in terms else math.fsum(terms)
    changes: dict[int, int] = {}
    if len(problem.live_first) and len(problem.option_memory):
        for node in range(problem.nodes):
            first, last = int(problem.live_first[node]), int(problem.live_last[node])
            if first >= last:
                continue
            taken = int(problem.option_memory[index[node]])
            changes[first] = changes.get(first, 0) + taken
            changes[last] = changes.get(last, 0) - taken
    used = peak = point = 0
    for time in sorted(changes):
        used += changes[time]
        if used > peak:
            peak, point = used, time
    return Report(cost, peak, point)


def check_solution(problem: Problem, solution: Solution) -> Report:
    """Recompute cost and peak of a solution and compare.

    Raises:
        SolverError: They differ from what the solution says, the peak is over the limit, or the
            bound is above the cost.
    """
    if solution.choice is None:
        raise SolverError(f"nothing to check: {solution.diagnosis or solution.stop_reason.value}")
    report = report_of(problem, solution.choice)
    if not math.isclose(report.cost, solution.cost, rel_tol=1e-12, abs_tol=1e-12):
        raise SolverError(f"cost: the solution says {solution.cost}, it is {report.cost}")
    if problem.memory_limit is not None:
        if report.peak_memory != solution.peak_memory:
            raise SolverError(
                f"peak: the solution says {solution.peak_memory}, it is {report.peak_memory}"
            )
        if report.peak_memory > problem.memory_limit:
            raise SolverError(
                f"peak: {report.peak_memory} bytes at point {report.peak_point}, "
                f"the limit is {problem.memory_limit}"
            )
    if solution.lower_bound > report.cost:
        raise SolverError(f"bound: {solution.lower_bound} is above the cost {report.cost}")
    return report


class _Network:
    """Costs of nodes and edges under fixed prices, with options by their place in the problem."""

    def __init__(self, problem: Problem, certificate: Certificate) -> None:
        sums = np.concatenate([[0.0], np.cumsum(certificate.price)])
        self.cost: list[Floats] = []
        for node in range(problem.nodes):
            cost = problem.option_cost[problem.options(node)].copy()
            if problem.memory_limit is not None:
                span = problem.live_first[node], problem.live_last[node]
                if span[0] < span[1]:
                    first, last = np.searchsorted(certificate.point, span)
                    cost += (sums[last] - sums[first]) * problem.option_memory[
                        problem.options(node)
                    ].astype(np.float64)
            self.cost.append(cost)
        self.edges: list[dict[int, Floats]] = [{} for _ in range(problem.nodes)]
        for edge in range(problem.edges):
            i, j = int(problem.edge_from[edge]), int(problem.edge_to[edge])
            table = problem.edge_costs(edge)
            if i == j:
                self.cost[i] = self.cost[i] + np.diagonal(table)
            else:
                self.join(i, j, table)

    def join(self, i: int, j: int, table: Floats) -> None:
        """Adds an edge; rows are the options of ``i``."""
        known = self.edges[i].get(j)
        total = table if known is None else known + table
        self.edges[i][j] = total
        self.edges[j][i] = total.T

    def restrict(self) -> bool:
        """Drops options without a partner until none is left to drop; False: a node is empty."""
        queue = set(range(len(self.cost)))
        while queue:
            node = queue.pop()
            keep = np.isfinite(self.cost[node])
            for table in self.edges[node].values():
                keep &= np.isfinite(table).any(axis=1)
            if not keep.any():
                return False
            if keep.all():
                continue
            self.cost[node] = self.cost[node][keep]
            for other, table in list(self.edges[node].items()):
                self.edges[node][other] = table[keep]
                self.edges[other][node] = table[keep].T
                queue.add(other)
        return True

    def merge(self, node: int, into: int) -> None:
        """Gives the costs and edges of ``node`` to the node that determines it."""
        table = self.edges[into].pop(node)
        del self.edges[node][into]
        allowed = np.isfinite(table)
        if not (allowed.sum(axis=1) == 1).all():
            raise SolverError(f"certificate: node {into} does not determine node {node}")
        follows = allowed.argmax(axis=1)
        self.cost[into] = (
            self.cost[into] + table[np.arange(len(follows)), follows] + self.cost[node][follows]
        )
        for other, edge in self.edges[node].items():
            del self.edges[other][node]
            self.join(into, other, edge[follows])
        self.edges[node] = {}
        self.cost[node] = np.zeros(1)


def check_certificate(problem: Problem, certificate: Certificate) -> float:
    """The lower bound that follows from a certificate, recomputed step by step.

    Returns:
        The bound, accurate to about 12 digits of the largest numbers involved; ``inf`` if the
        problem allows no choice at all.

    Raises:
        SolverError: The certificate does not fit the problem, or claims a higher bound.
    """
    if (certificate.price < 0).any():
        raise SolverError("certificate: prices must be >= 0")
    network = _Network(problem, certificate)
    if not network.restrict():
        return math.inf
    for node, into in zip(certificate.merged_node, certificate.merged_into, strict=True):
        network.merge(int(node), int(into))
    left = [cost.copy() for cost in network.cost]
    terms: list[float] = []
    at = 0
    seen: set[tuple[int, int]] = set()
    for from_, to in zip(certificate.edge_from, certificate.edge_to, strict=True):
        i, j = int(from_), int(to)
        table: Floats | None = network.edges[i].get(j)
        if table is None or (i, j) in seen or (j, i) in seen:
            raise SolverError(f"certificate: there is no edge between nodes {i} and {j} left")
        seen.add((i, j))
        to_i = certificate.message[at : at + len(left[i])]
        at += len(left[i])
        to_j = certificate.message[at : at + len(left[j])]
        at += len(left[j])
        terms.append(float((table - to_i[:, None] - to_j[None, :]).min()))
        left[i] += to_i
        left[j] += to_j
    if at != len(certificate.message):
        raise SolverError(f"certificate: {len(certificate.message)} messages, needs {at}")
    for i, edges in enumerate(network.edges):
        terms += [
            float(table.min())
            for j, table in edges.items()
            if i < j and (i, j) not in seen and (j, i) not in seen
        ]
    terms += [float(cost.min()) for cost in left]
    if problem.memory_limit is not None:
        terms += [-float(price) * problem.memory_limit for price in certificate.price]
    bound = math.fsum(terms)
    size = math.fsum(abs(term) for term in terms)
    if certificate.lower_bound > bound + 1e-9 * size + 1e-9:
        raise SolverError(
            f"certificate: claims the bound {certificate.lower_bound}, it proves {bound}"
        )
    return bound
