"""Solve a cost network; what comes back, and how the bound can be certified."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoshard import _core
from autoshard._core import StopReason
from autoshard.errors import SolverError
from autoshard.solver.problem import Problem


@dataclass(frozen=True, slots=True)
class TracePoint:
    """Where the search stood at one time."""

    seconds: float
    cost: float
    """``inf`` before the first feasible choice."""
    lower_bound: float


@dataclass(frozen=True, slots=True)
class Solution:
    """What ``solve`` found."""

    choice: NDArray[np.int32] | None
    """Option of every node, or None if nothing feasible was found."""
    cost: float
    lower_bound: float
    """No choice costs less. Rounded down; equal to ``cost`` if the choice is proven optimal."""
    peak_memory: int
    """Bytes at the worst point."""
    stop_reason: StopReason
    iterations: int
    seconds: float
    trace: tuple[TracePoint, ...]
    diagnosis: str
    """What stands in the way, if nothing feasible was found."""
    priced_point: NDArray[np.int64]
    price: NDArray[np.float64]
    """Cost of one byte at ``priced_point``: what more memory would be worth."""

    @property
    def gap(self) -> float:
        """(cost - lower_bound) / cost; 0 if proven optimal, inf without a choice."""
        if self.choice is None:
            return math.inf
        if self.cost <= self.lower_bound:
            return 0.0
        return (self.cost - self.lower_bound) / max(abs(self.cost), 1e-300)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Numbers from which ``check_certificate`` recomputes a lower bound.

    passes/solver/problem.h says how.
    """

    lower_bound: float
    point: NDArray[np.int64]
    price: NDArray[np.float64]
    merged_node: NDArray[np.int32]
    merged_into: NDArray[np.int32]
    edge_from: NDArray[np.int32]
    edge_to: NDArray[np.int32]
    message: NDArray[np.float64]


def solve(
    problem: Problem,
    seconds: float = math.inf,
    seed: int = 0,
    start: ArrayLike | None = None,
    *,
    max_iterations: int | None = None,
    threads: int = 2,
    gap: float = 0.0,
    enumerate_below: float = 20_000,
    progress: Callable[[float, float, float], object] | None = None,
) -> Solution:
    """Find a choice of low cost and a bound on all choices.

    Args:
        problem: What to solve.
        seconds: Wall time; ``inf``: until nothing improves any more.
        seed: Another seed takes another way through the search.
        start: Option of every node to begin with, such as the solution of a similar problem.
        max_iterations: Epochs of search. A run that ends by this limit (or on its own) gives the
            same answer for the same seed and number of threads.
        threads: 1 or 2; only problems with a memory limit use the second.
        gap: Stop when ``(cost - lower_bound) <= gap * cost``.
        enumerate_below: Under a memory limit, try all choices if presolve leaves no more.
        progress: Called some ten times a second with seconds, cost and lower bound.

    Returns:
        The best choice found. Ctrl-C ends the search early and returns the best so far.

    Raises:
        SolverError: ``start`` does not fit the problem, or an option is out of range.
    """
    if not seconds >= 0:
        raise SolverError(f"seconds: must be 0 or more, is {seconds}")
    if not gap >= 0:
        raise SolverError(f"gap: must be 0 or more, is {gap}")
    if threads not in (1, 2):
        raise SolverError(f"threads: must be 1 or 2, is {threads}")
    limit = 2**63 - 1 if max_iterations is None else max_iterations
    if limit < 0:
        raise SolverError(f"max_iterations: must be 0 or more, is {max_iterations}")
    begin = None if start is None else np.ascontiguousarray(start, np.int32)
    if begin is not None and begin.ndim != 1:
        raise SolverError(f"start: has {begin.ndim} dimensions, needs 1")
    try:
        found = _core.solve(
            problem.core,
            seconds,
            seed % 2**64,
            limit,
            threads,
            gap,
            enumerate_below,
            begin,
            progress,
        )
    except ValueError as error:
        raise SolverError(str(error).replace("choice", "start", 1)) from None
    choice = cast(Any, found.choice)
    return Solution(
        choice=choice if len(choice) == problem.nodes and found.cost < math.inf else None,
        cost=found.cost,
        lower_bound=found.lower_bound,
        peak_memory=found.peak_memory,
        stop_reason=found.stop_reason,
        iterations=found.iterations,
        seconds=found.seconds,
        trace=tuple(
            TracePoint(point.seconds, point.cost, point.lower_bound) for point in found.trace
        ),
        diagnosis=found.diagnosis,
        priced_point=cast(Any, found.priced_point),
        price=cast(Any, found.price),
    )


def certify(
    problem: Problem, solution: Solution, *, passes: int = 500, seconds: float = 60.0
) -> Certificate:
    """Messages that prove a lower bound at the prices of ``solution``.

    The bound can be lower than ``solution.lower_bound``, which also uses that some options were
    shown to be part of nothing better than the best choice.
    """
    found = _core.certify(problem.core, solution.priced_point, solution.price, passes, seconds)
    return Certificate(
        lower_bound=found.lower_bound,
        point=cast(Any, found.point),
        price=cast(Any, found.price),
        merged_node=cast(Any, found.merged_node),
        merged_into=cast(Any, found.merged_into),
        edge_from=cast(Any, found.edge_from),
        edge_to=cast(Any, found.edge_to),
        message=cast(Any, found.message),
    )
