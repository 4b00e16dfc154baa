"""Chains and trees of matmuls under the symbolic cost, as MindSpore plans them.

Its rules as its documents and logs tell them: the devices are halved level by level; at each
level every matmul is visited once, producers first, and takes the cheapest of its cuts given what
the matmuls visited before it took at this level. Nothing is revisited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

import planning_oracle

from autoshard import _core

RESHARD = 16
CUTS = ("I", "J", "K", "none")
Plan = list[list[str]]
"""The cut of every matmul at every level."""


@dataclass(frozen=True)
class MatMul:
    """``(i, k) x (k, j)``; the left operand is what ``left`` makes, or a parameter."""

    i: int
    k: int
    j: int
    left: int | None = None
    right: int | None = None


def sizes_before(matmul: MatMul, cuts: Sequence[str]) -> tuple[int, int, int]:
    """Local (i, k, j) after these cuts."""
    i, k, j = (
        size // 2 ** sum(cut == axis for cut in cuts)
        for axis, size in (("I", matmul.i), ("K", matmul.k), ("J", matmul.j))
    )
    return i, k, j


def op_costs(matmul: MatMul, before: Sequence[str], coefficient: float) -> dict[str, float]:
    """Cost of every cut of one level; infinite where it is not possible."""
    i, k, j = sizes_before(matmul, before)
    costs = {"I": coefficient * j * k / 2, "J": i * k / 2, "K": i * j / 2}
    costs["none"] = min(costs.values()) ** 2 / 25
    if i % 2:
        costs["I"] = inf
    if j % 2 or "K" in before:
        costs["J"] = inf
    if k % 2 or "J" in before:
        costs["K"] = inf
    return costs


def wanted(cut: str, operand: int) -> str:
    """Which dim of an operand a cut halves."""
    return {"I": ("rows", ""), "J": ("", "columns"), "K": ("columns", "rows")}.get(cut, ("", ""))[
        operand
    ]


def made(cut: str) -> str:
    return {"I": "rows", "J": "columns"}.get(cut, "")


def edges(graph: Sequence[MatMul]) -> list[tuple[int, int, int]]:
    """(producer, consumer, operand); only between tensors of one shape."""
    found: list[tuple[int, int, int]] = []
    for number, matmul in enumerate(graph):
        for operand, source in enumerate((matmul.left, matmul.right)):
            shape = (matmul.i, matmul.k) if operand == 0 else (matmul.k, matmul.j)
            if source is not None and (graph[source].i, graph[source].j) == shape:
                found.append((source, number, operand))
    return found


def reshard(graph: Sequence[MatMul], edge: tuple[int, int, int], plan: Plan) -> float:
    """Charged on one edge at the last level that both ends have decided."""
    source, target, operand = edge
    level = min(len(plan[source]), len(plan[target])) - 1
    if made(plan[source][level]) == wanted(plan[target][level], operand):
        return 0
    i, k, j = sizes_before(graph[target], plan[target][:level])
    return RESHARD * (i * k if operand == 0 else k * j)


def greedy(
    graph: Sequence[MatMul], levels: int, coefficient: float, pinned: dict[int, str] | None = None
) -> Plan:
    """What MindSpore's visits choose. ``pinned``: one cut for all levels of a matmul."""
    plan: Plan = [[] for _ in graph]
    for level in range(levels):
        for number, matmul in enumerate(graph):
            if pinned and number in pinned:
                plan[number].append(pinned[number])
                continue
            totals: dict[str, float] = {}
            for cut, cost in op_costs(matmul, plan[number], coefficient).items():
                trial = [*plan[:number], [*plan[number], cut], *plan[number + 1 :]]
                around = [
                    reshard(graph, edge, trial)
                    for edge in edges(graph)
                    if number in edge[:2] and min(len(trial[e]) for e in edge[:2]) == level + 1
                ]
                totals[cut] = cost + sum(around)
            plan[number].append(min(CUTS, key=lambda cut: totals[cut]))
    return plan


def total(graph: Sequence[MatMul], plan: Plan, coefficient: float) -> float:
    """Ops and reshards of all levels: one accounting for every plan."""
    cost = 0.0
    for level in range(len(plan[0])):
        for matmul, cuts in zip(graph, plan, strict=True):
            cost += op_costs(matmul, cuts[:level], coefficient)[cuts[level]]
        cost += sum(
            reshard(graph, edge, [cuts[: level + 1] for cuts in plan]) for edge in edges(graph)
        )
    return cost


def strategy(cuts: Sequence[str]) -> list[list[int]]:
    """Blocks of each dim of both operands."""
    i, j, k = (2 ** cuts.count(axis) for axis in "IJK")
    return [[i, k], [k, j]]


def program(graph: Sequence[MatMul], levels: int) -> planning_oracle.Program:
    """The same matmuls for the core, every operand without a producer an argument."""
    made = planning_oracle.Program((2,) * levels)
    results: list[int] = []
    for m in graph:
        left = made.value(m.i, m.k) if m.left is None else results[m.left]
        right = made.value(m.k, m.j) if m.right is None else results[m.right]
        results.append(made.apply(planning_oracle.matmul(m.i, m.k, m.j), left, right))
    return made


def planned(graph: Sequence[MatMul], levels: int, coefficient: float) -> tuple[Plan, float]:
    """The core's plan and its cost."""
    plan, choices = _core.symbolic_programming(program(graph, levels).core(), coefficient)
    cuts: Plan = [[""] * levels for _ in graph]
    for choice in choices:
        cuts[choice.op][choice.axis] = choice.candidates[choice.chosen].cut.value
    return cuts, plan.objective


def devices(plan: Sequence[str]) -> int:
    return prod(2 for cut in plan if cut != "none")
