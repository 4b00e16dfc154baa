"""The solver against exhaustive search, and what it promises about bounds and determinism."""

from __future__ import annotations

import _thread
import itertools
import math
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import _core
from autoshard.errors import SolverError
from autoshard.solver import Problem, certify, check_certificate, check_solution, solve
from autoshard.solver.checker import report_of


def random_problem(rng: np.random.Generator, *, limited: bool, integral: bool) -> Problem:
    """Few nodes, many kinds of trouble: infinities, loops, parallel edges, single options."""
    nodes = int(rng.integers(1, 7))
    sizes = rng.integers(1, 5, nodes)

    def costs(*shape: int) -> np.ndarray:
        values = rng.integers(0, 15, shape) if integral else rng.uniform(-4, 10, shape)
        return np.where(rng.random(shape) < rng.choice([0, 0.1, 0.35]), np.inf, values)

    edges = []
    for _ in range(int(rng.integers(0, 9))):
        i, j = rng.integers(0, nodes, 2)
        if sizes[i] == sizes[j] and rng.random() < 0.3:  # tied nodes
            table = np.full((sizes[i], sizes[j]), np.inf)
            table[np.arange(sizes[i]), rng.permutation(sizes[i])] = rng.integers(0, 3)
        else:
            table = costs(sizes[i], sizes[j])
        edges.append((int(i), int(j), table))
    live = [sorted(rng.integers(0, 8, 2).tolist()) for _ in range(nodes)]
    memory = [rng.integers(0, 10, size) for size in sizes]
    return Problem.from_lists(
        [costs(size) for size in sizes],
        edges,
        memory=memory,
        live=[(first, last) for first, last in live],
        memory_limit=int(rng.integers(0, 30)) if limited else None,
    )


def best_cost(problem: Problem) -> float:
    """Cost of the best choice by trying all; inf if there is none."""
    best = math.inf
    for choice in itertools.product(*(range(n) for n in np.diff(problem.option_offset))):
        report = report_of(problem, choice)
        if problem.memory_limit is None or report.peak_memory <= problem.memory_limit:
            best = min(best, report.cost)
    return best


@pytest.mark.parametrize("enumerate_below", [0, 20_000])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("integral", [False, True])
def test_the_solver_agrees_with_exhaustive_search(
    limited: bool, integral: bool, enumerate_below: float
) -> None:
    rng = np.random.default_rng(2026 + 2 * limited + integral)
    feasible = missed = 0
    for case in range(800):
        problem = random_problem(rng, limited=limited, integral=integral)
        best = best_cost(problem)
        solution = solve(
            problem, seed=case, threads=1, max_iterations=12, enumerate_below=enumerate_below
        )
        if best == math.inf:
            assert solution.choice is None, case
            continue
        feasible += 1
        assert solution.choice is not None, case
        check_solution(problem, solution)
        assert solution.lower_bound <= best + 1e-9, case
        assert solution.cost >= best - 1e-9, case
        if solution.cost > best + 1e-9:
            assert solution.stop_reason == "iteration_limit", case
            missed += 1
    assert feasible > 300
    # Local search under a memory limit may miss; enumeration and elimination may not.
    assert missed <= (0.01 * feasible if limited and not enumerate_below else 0)


def chain(nodes: int, *, seed: int = 0, limit: int | None = None) -> Problem:
    """A chain with some long edges; memory and cost pull in opposite directions."""
    rng = np.random.default_rng(seed)
    memory = [np.sort(rng.integers(0, 50, 6))[::-1] for _ in range(nodes)]
    costs = [np.sort(rng.integers(0, 100, 6)) for _ in range(nodes)]
    edges = [(i, i + 1, rng.integers(0, 40, (6, 6))) for i in range(nodes - 1)]
    edges += [
        (int(i), int(i) + 7, rng.integers(0, 40, (6, 6)))
        for i in rng.integers(0, nodes - 8, nodes // 4)
    ]
    live = [(i, i + int(rng.integers(1, 30))) for i in range(nodes)]
    return Problem.from_lists(costs, edges, memory=memory, live=live, memory_limit=limit)


def test_a_certificate_proves_its_bound_to_the_separate_checker() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        problem = random_problem(rng, limited=bool(rng.random() < 0.7), integral=True)
        best = best_cost(problem)
        solution = solve(problem, threads=1, max_iterations=20)
        certificate = certify(problem, solution, passes=40)
        bound = check_certificate(problem, certificate)
        assert certificate.lower_bound <= bound + 1e-6
        assert bound <= best + 1e-6


def test_a_certificate_with_a_changed_number_is_refused() -> None:
    problem = chain(40, limit=150)
    certificate = certify(problem, solve(problem, threads=1, max_iterations=30))
    assert check_certificate(problem, certificate) > 0
    certificate.message[:] += np.linspace(0, 50, len(certificate.message))
    with pytest.raises(SolverError, match="claims the bound"):
        check_certificate(problem, certificate)


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_seeds_give_equal_answers(threads: int) -> None:
    problem = chain(300, limit=250)
    runs = [solve(problem, seed=5, threads=threads, max_iterations=25) for _ in range(2)]
    assert runs[0].cost == runs[1].cost
    assert runs[0].lower_bound == runs[1].lower_bound
    assert runs[0].choice is not None
    assert (runs[0].choice == runs[1].choice).all()


def test_a_tighter_limit_costs_no_less() -> None:
    loose, tight = (
        solve(chain(60, limit=limit), threads=1, max_iterations=40) for limit in (400, 200)
    )
    assert loose.cost <= tight.cost
    assert loose.lower_bound <= tight.cost


def test_a_start_is_never_left_for_something_worse() -> None:
    problem = chain(200, limit=250)
    first = solve(problem, threads=1, max_iterations=60)
    again = solve(problem, threads=1, max_iterations=1, start=first.choice)
    assert again.cost <= first.cost


def test_resolving_after_a_small_change_begins_where_the_last_search_ended() -> None:
    problem = chain(200, limit=250)
    first = solve(problem, threads=1, max_iterations=60)
    cost = problem.option_cost.copy()
    cost[:6] += 1
    changed = Problem(**{**vars_of(problem), "option_cost": cost})
    again = solve(changed, threads=1, max_iterations=10, start=first.choice)
    assert again.cost <= first.cost + 1


def random_grid(
    rng: np.random.Generator, size: int, options: int
) -> tuple[list[np.ndarray], list[tuple[int, int, np.ndarray]]]:
    """Costs of ``size * size`` nodes, and edges between neighbours."""
    costs = [rng.random(options) for _ in range(size * size)]
    edges = [
        (node, node + step, 0.3 * rng.random((options, options)))
        for node in range(size * size)
        for step in (1, size)
        if node + step < size * size and (step == size or (node + 1) % size)
    ]
    return costs, edges


def test_messages_of_a_similar_problem_are_a_good_beginning() -> None:
    options = 6
    costs, edges = random_grid(np.random.default_rng(3), 12, options)
    messages = _core.SolverMessages()

    def rounds(changed: list[np.ndarray], known: _core.SolverMessages | None) -> tuple[int, float]:
        problem = Problem.from_lists(changed, edges)
        found = _core.solve(
            problem.core, math.inf, 0, 500, 1, 0.001, 0, None, None, 0, known_messages=known
        )
        assert found.lower_bound <= found.cost <= found.lower_bound * 1.001
        return found.iterations, found.lower_bound

    rounds(costs, messages)
    # The middle option of one node, which may have been left out before, becomes the best.
    costs[40] = costs[40] + np.where(np.arange(options) == 3, -1, 0.1)
    begun, bound = rounds(costs, messages)
    anew, same = rounds(costs, None)
    assert begun < anew
    assert bound == pytest.approx(same, rel=0.001)


def test_messages_of_a_similar_problem_begin_another_one_by_its_nodes() -> None:
    rng = np.random.default_rng(3)
    costs, edges = random_grid(rng, 12, 6)
    count = len(costs)
    renumbered = [int(node) for node in rng.permutation(count)]
    known_as = [renumbered.index(node) for node in range(count)]
    again = [costs[node] for node in known_as]
    other = [(renumbered[a], renumbered[b], table) for a, b, table in edges]

    def rounds(problem: Problem, known: _core.SolverMessages) -> int:
        found = _core.solve(
            problem.core, math.inf, 0, 500, 1, 0.001, 0, None, None, 0, known_messages=known
        )
        assert found.lower_bound <= found.cost <= found.lower_bound * 1.001
        return found.iterations

    messages = _core.SolverMessages()
    anew = rounds(Problem.from_lists(again, other), _core.SolverMessages())
    rounds(Problem.from_lists(costs, edges), messages)
    messages.nodes = [-1 if node == 7 else known_as[node] for node in range(count)]
    assert 3 * rounds(Problem.from_lists(again, other), messages) < anew
    assert not messages.nodes


def vars_of(problem: Problem) -> dict[str, object]:
    return {name: getattr(problem, name) for name in problem.__dataclass_fields__}


def test_a_problem_without_nodes_costs_nothing() -> None:
    empty = Problem(option_offset=np.array([0]), option_cost=np.zeros(0))
    solution = solve(empty)
    assert (solution.cost, solution.lower_bound) == (0, 0)
    assert solution.choice is not None


def test_memory_that_cannot_fit_is_reported_with_its_moment() -> None:
    problem = Problem.from_lists(
        [[1, 2], [3]], memory=[[5, 4], [7]], live=[(0, 9), (3, 4)], memory_limit=10
    )
    solution = solve(problem)
    assert solution.stop_reason == "infeasible"
    assert "at point 3 the smallest allowed options exceed the limit by 1 bytes" in (
        solution.diagnosis
    )


def test_tables_that_allow_nothing_are_reported_with_a_node() -> None:
    problem = Problem.from_lists([[1], [2]], [(0, 1, [[np.inf]])])
    solution = solve(problem)
    assert solution.stop_reason == "infeasible"
    assert "has no allowed option" in solution.diagnosis


def test_weights_and_shared_tables_multiply() -> None:
    table = np.array([[5.0, 9.0], [0.0, 2.0]])
    problem = Problem(
        option_offset=np.array([0, 2, 4, 6]),
        option_cost=np.array([0, 30, 1, 0, 0, 0.5]),
        edge_from=np.array([0, 1]),
        edge_to=np.array([1, 2]),
        edge_table=np.array([0, 0]),
        edge_weight=np.array([2.0, 0.0]),
        tables=(table,),
    )
    solution = solve(problem)
    assert solution.cost == 0 + 1 + 2 * 5
    assert solution.stop_reason == "optimal"


def test_the_trace_descends_and_its_bounds_rise() -> None:
    trace = solve(chain(300, limit=250), threads=1, max_iterations=60).trace
    assert all(a.cost >= b.cost for a, b in itertools.pairwise(trace))
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(trace))
    assert all(a.lower_bound <= a.cost for a in trace)


def test_a_time_limit_too_short_for_anything_still_gives_a_choice() -> None:
    solution = solve(chain(300, limit=400), 0)
    assert solution.stop_reason in ("time_limit", "optimal")
    assert solution.choice is not None
    check_solution(chain(300, limit=400), solution)


def test_a_time_limit_is_kept() -> None:
    solution = solve(chain(3000, limit=300), 0.5)
    assert solution.stop_reason in ("time_limit", "optimal")
    assert solution.choice is not None


def raised() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def python_interrupts() -> Iterator[None]:
    """An interrupt raises ``KeyboardInterrupt``; pytest's workers ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("interrupt", [_thread.interrupt_main, raised])
def test_an_interrupt_returns_the_best_so_far(
    interrupt: Callable[[], None], python_interrupts: None
) -> None:
    problem = chain(1000, limit=260)

    def progress(seconds: float, cost: float, bound: float) -> None:
        if math.isfinite(cost):
            interrupt()

    solution = solve(problem, progress=progress)
    assert solution.stop_reason == "interrupted"
    assert solution.choice is not None
    check_solution(problem, solution)


def test_when_progress_is_reported_changes_nothing() -> None:
    rng = np.random.default_rng(2)
    nodes, options = 80, 4
    # Sums of tenths round, so that choices of one cost differ.
    unary = [rng.integers(0, 6, options) * 0.1 for _ in range(nodes)]
    edges = []
    for _ in range(3 * nodes):
        i, j = rng.choice(nodes, 2, replace=False)
        edges.append((int(i), int(j), rng.integers(0, 6, (options, options)) * 0.1))
    problem = Problem.from_lists(unary, edges)
    limits = {"start": np.zeros(nodes, int), "enumerate_below": 0, "max_iterations": 12}
    quick = solve(problem, **limits)
    slow = solve(problem, **limits, progress=lambda *_: time.sleep(0.11))
    assert quick.choice is not None
    assert slow.choice is not None
    assert slow.choice.tolist() == quick.choice.tolist()
    assert slow.lower_bound == quick.lower_bound


def test_an_error_in_the_progress_function_reaches_the_caller() -> None:
    def fail(seconds: float, cost: float, bound: float) -> None:
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        solve(chain(1000, limit=260), 20, progress=fail)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"option_cost": np.array([1.0, np.nan, 0, 0])}, r"option_cost\[1\]: must be a number"),
        ({"option_cost": np.zeros(3)}, "option_cost: has 3 entries, needs 4"),
        ({"option_offset": np.array([0, 2, 2])}, "node 1 has no options"),
        ({"edge_to": np.array([7])}, "edge 0: joins nodes 0 and 7, but nodes are 0..1"),
        ({"edge_table": np.array([3])}, "edge 0: uses table 3 of 1"),
        ({"tables": (np.zeros((3, 2)),)}, "its table is 3 x 2, but its nodes have 2 and 2"),
        ({"tables": (np.zeros(4),)}, "has 1 dimensions, needs 2"),
        ({"edge_weight": np.array([-1.0])}, r"edge_weight\[0\]: must be finite and >= 0"),
        ({"memory_limit": 5}, "option_memory: has 0 entries, needs 4"),
    ],
)
def test_malformed_problems_are_refused(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {
        "option_offset": np.array([0, 2, 4]),
        "option_cost": np.zeros(4),
        "edge_from": np.array([0]),
        "edge_to": np.array([1]),
        "edge_table": np.array([0]),
        "tables": (np.zeros((2, 2)),),
    }
    Problem(**good)
    with pytest.raises(SolverError, match=message):
        Problem(**{**good, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": [0]}, "start: has 1 entries"),
        ({"start": [0, 9]}, r"start\[1\]: is 9, node has options 0..1"),
        ({"seconds": -1}, "seconds: must be 0 or more"),
        ({"threads": 3}, "threads: must be 1 or 2"),
        ({"gap": -1}, "gap: must be 0 or more"),
        ({"max_iterations": -1}, "max_iterations: must be 0 or more"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SolverError, match=message):
        solve(Problem.from_lists([[1, 2], [3, 4]]), **options)


@st.composite
def forests(draw: st.DrawFn) -> Problem:
    nodes = draw(st.integers(1, 12))
    size = draw(st.integers(1, 4))
    cost = st.integers(0, 9)
    costs = [draw(st.lists(cost, min_size=size, max_size=size)) for _ in range(nodes)]
    edges = []
    for node in range(1, nodes):
        if draw(st.booleans()):
            parent = draw(st.integers(0, node - 1))
            table = draw(st.lists(cost, min_size=size * size, max_size=size * size))
            edges.append((parent, node, np.reshape(table, (size, size))))
    return Problem.from_lists(costs, edges)


@given(forests())
@settings(deadline=None, max_examples=150)
def test_forests_are_solved_exactly(problem: Problem) -> None:
    solution = solve(problem)
    check_solution(problem, solution)
    assert solution.stop_reason == "optimal"
    assert solution.lower_bound == solution.cost


@given(forests(), st.floats(0.5, 100), st.integers(-5, 5))
@settings(deadline=None, max_examples=60)
def test_scaling_and_shifting_costs_scales_and_shifts_the_answer(
    problem: Problem, factor: float, shift: int
) -> None:
    cost = problem.option_cost * factor
    cost[problem.options(0)] += shift
    changed = Problem(
        **{
            **vars_of(problem),
            "option_cost": cost,
            "tables": tuple(table * factor for table in problem.tables),
        }
    )
    assert solve(changed).cost == pytest.approx(solve(problem).cost * factor + shift)


def test_tables_of_any_width_are_minimised_exactly() -> None:
    """Sums of few columns have code of their own for each number of them."""
    rng = np.random.default_rng(5)
    for width in range(1, 13):
        rows = int(rng.integers(1, 6))
        unary = rng.integers(0, 50, rows).astype(float), rng.integers(0, 50, width).astype(float)
        table = rng.integers(0, 50, (rows, width)).astype(float)
        problem = Problem.from_lists(unary, [(0, 1, table)])
        best = float((unary[0][:, None] + table + unary[1]).min())
        for one in (problem, Problem.from_lists(unary[::-1], [(0, 1, table.T)])):
            assert solve(one).cost == best
