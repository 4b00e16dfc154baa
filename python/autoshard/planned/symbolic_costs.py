"""What the symbolic cost model weighed: the cost of every cut of every matmul at every level."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from autoshard import _core

AXES = tuple(cut.value for cut in _core.MatMulCut)
"""What a level can cut of a matmul."""

LOGGER = logging.getLogger("autoshard.recursive_programming")

Sizes = tuple[float, float, float, float]
"""(batch, i, k, j) of ``(batch, i, k) x (batch, k, j)``."""


@dataclass(frozen=True, slots=True)
class SymbolicCandidate:
    """One cut, and what it costs in elements."""

    axis: str
    """One of ``AXES``."""
    op_cost: float
    """Infinite where the cut is not possible."""
    reshard_cost: float
    """For the tensors around the op, which stay as the plan cuts them."""

    @property
    def total(self) -> float:
        """Both together."""
        return self.op_cost + self.reshard_cost


@dataclass(frozen=True, slots=True)
class SymbolicChoice:
    """The choice of one matmul at one level."""

    op: str
    """``dot_general_3``: the op's name and its number among the matmuls of the program."""
    location: str | None
    """``file:line:col`` of the user's code."""
    level: int
    """From 0; a mesh axis of size 8 is three levels."""
    mesh_axis: str
    """The axis that the level belongs to."""
    parts: int
    """Into how many parts the level cuts: a prime."""
    sizes: Sizes
    """On one device, before the level."""
    has_batch: bool
    candidates: tuple[SymbolicCandidate, ...]
    """In the order in which ties are decided."""
    chosen: str
    """One of ``AXES``."""

    def candidate(self, axis: str) -> SymbolicCandidate | None:
        """The candidate that cuts ``axis``; None if a matmul of this kind has no such axis."""
        return next((c for c in self.candidates if c.axis == axis), None)

    def lines(self) -> Iterator[str]:
        """The choice in the words of MindSpore's log, where a cost of ``DBL_MAX`` is no cost."""
        yield f"------------Node_name: {self.op} -------------"
        for candidate in self.candidates:
            if math.isinf(candidate.op_cost):
                continue
            cut = f"the {candidate.axis}-axis is cut"
            if candidate.axis == "none":
                cut = "do NOT cut the axis"
            yield (
                f"If {cut}, the op-cost is {candidate.op_cost:g}, the redist-cost is "
                f"{candidate.reshard_cost:g}, and the total cost is {candidate.total:g}"
            )
        axes = [candidate.axis for candidate in self.candidates]
        names = "/".join("no_cut" if axis == "none" else f"{axis}-axis" for axis in axes)
        costs = ", ".join(f"{min(c.total, sys.float_info.max):g}" for c in self.candidates)
        yield f"The costs of cutting the {names} are : [const vector]{{{costs}}}"
        if self.chosen == "none":
            yield "Choose NOT to cut"
        else:
            yield f"The {self.chosen}-axis is chosen to cut"


@dataclass(frozen=True, slots=True)
class SymbolicCosts:
    """All choices of a plan, level by level, in program order within a level."""

    mem_coeff: float
    total: float
    """Elements: the cost of the whole plan, loops counted as often as they run."""
    lower_bound: float
    """Elements; see docs/design/symbolic_cost.md for which plans it bounds."""
    choices: tuple[SymbolicChoice, ...]

    @property
    def ops(self) -> tuple[str, ...]:
        """Every matmul, in program order."""
        return tuple(dict.fromkeys(choice.op for choice in self.choices))

    def of(self, op: str) -> tuple[SymbolicChoice, ...]:
        """The choices of one matmul, level by level; empty if there is none of this name."""
        return tuple(choice for choice in self.choices if choice.op == op)

    def lines(self) -> Iterator[str]:
        """Every choice in the words of MindSpore's log."""
        for choice in self.choices:
            yield from choice.lines()

    def log(self) -> None:
        """Send ``lines`` to the logger ``autoshard.recursive_programming`` as INFO."""
        if LOGGER.isEnabledFor(logging.INFO):
            for line in self.lines():
                LOGGER.info("%s", line)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers; a cut that is not possible costs null.

        Equal layers choose alike: ``choices`` has each different choice once, and ``ops`` the
        index of the choice that each op makes at each level.
        """
        kinds: dict[SymbolicChoice, int] = {}
        ops: dict[str, dict[str, Any]] = {}
        for choice in self.choices:
            kind = kinds.setdefault(replace(choice, op="", location=None), len(kinds))
            op = ops.setdefault(choice.op, {"location": choice.location, "choices": []})
            op["choices"].append(kind)
        return {
            "mem_coeff": self.mem_coeff,
            "total": self.total,
            "lower_bound": self.lower_bound,
            "ops": ops,
            "choices": [_kind_to_json(kind) for kind in kinds],
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> SymbolicCosts:
        """Read what ``to_json`` made."""
        kinds = [_kind_from_json(kind) for kind in read["choices"]]
        by_level: dict[int, list[SymbolicChoice]] = {}
        for name, op in read["ops"].items():
            numbers: list[int] = op["choices"]
            for number in numbers:
                kind = kinds[number]
                choice = replace(kind, op=name, location=op["location"])
                by_level.setdefault(kind.level, []).append(choice)
        choices = tuple(choice for level in sorted(by_level) for choice in by_level[level])
        return cls(read["mem_coeff"], read["total"], read["lower_bound"], choices)


def _kind_to_json(kind: SymbolicChoice) -> dict[str, Any]:
    made: dict[str, Any] = asdict(kind)
    for name in ("op", "location"):
        del made[name]
    for candidate in made["candidates"]:
        if math.isinf(candidate["op_cost"]):
            candidate["op_cost"] = None
    return made


def _kind_from_json(read: Mapping[str, Any]) -> SymbolicChoice:
    made: dict[str, Any] = dict(read)
    candidates = tuple(
        SymbolicCandidate(
            candidate["axis"],
            math.inf if candidate["op_cost"] is None else candidate["op_cost"],
            candidate["reshard_cost"],
        )
        for candidate in read["candidates"]
    )
    made.update(op="", location=None, candidates=candidates, sizes=tuple(read["sizes"]))
    return SymbolicChoice(**made)


def symbolic_costs(
    plan: _core.CorePlan,
    choices: Sequence[_core.SymbolicChoice],
    mem_coeff: float,
    op_names: Sequence[str],
    op_locations: Sequence[str | None],
    axis_names: Sequence[str],
) -> SymbolicCosts:
    """The core's choices in the terms of the program.

    Args:
        plan: What ``_core.symbolic_programming`` found.
        choices: Its choices.
        mem_coeff: What it was asked for.
        op_names: Of the op at each of the core's indices that has a choice.
        op_locations: As ``op_names``.
        axis_names: Of the mesh.
    """
    numbers: dict[int, int] = {}
    levels: dict[int, int] = {}
    made: list[SymbolicChoice] = []
    for choice in choices:
        number = numbers.setdefault(choice.op, len(numbers))
        level = levels.get(choice.op, 0)
        levels[choice.op] = level + 1
        candidates = tuple(
            SymbolicCandidate(one.cut.value, one.op_cost, one.reshard_cost)
            for one in choice.candidates
        )
        batch, i, k, j = choice.sizes
        made.append(
            SymbolicChoice(
                op=f"{op_names[choice.op]}_{number}",
                location=op_locations[choice.op],
                level=level,
                mesh_axis=axis_names[choice.axis],
                parts=choice.parts,
                sizes=(batch, i, k, j),
                has_batch=choice.has_batch,
                candidates=candidates,
                chosen=candidates[choice.chosen].axis,
            )
        )
    return SymbolicCosts(mem_coeff, plan.objective, plan.lower_bound, tuple(made))
