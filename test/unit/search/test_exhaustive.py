"""The exhaustive reference itself, against plain enumeration."""

from __future__ import annotations

import itertools
from math import inf

import numpy as np
import pytest
from exhaustive import TooLargeError, least_cost

from autoshard.solver import Problem


def enumerated(problem: Problem) -> float:
    best = inf
    for choice in itertools.product(
        *(range(problem.options(n).stop - problem.options(n).start) for n in range(problem.nodes))
    ):
        cost = sum(
            problem.option_cost[problem.options(n).start + option]
            for n, option in enumerate(choice)
        )
        for e in range(problem.edges):
            ends = int(problem.edge_from[e]), int(problem.edge_to[e])
            cost += problem.edge_costs(e)[choice[ends[0]], choice[ends[1]]]
        best = min(best, float(cost))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_elimination_equals_enumeration(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, random.integers(1, 7))
    costs = [random.integers(0, 20, n).astype(float) for n in sizes]
    edges = []
    for _ in range(random.integers(0, 10)):
        a, b = (int(n) for n in random.integers(0, len(sizes), 2))
        table = random.integers(0, 20, (sizes[a], sizes[b])).astype(float)
        table[random.random(table.shape) < 0.15] = inf
        edges.append((a, b, table))
    problem = Problem.from_lists(costs, edges)
    assert least_cost(problem) == enumerated(problem)


def test_a_network_that_is_too_dense_is_refused() -> None:
    random = np.random.default_rng(0)
    nodes = range(9)
    edges = [(a, b, random.random((40, 40))) for a in nodes for b in nodes if a < b]
    with pytest.raises(TooLargeError, match="9 nodes left"):
        least_cost(Problem.from_lists([random.random(40) for _ in nodes], edges))
