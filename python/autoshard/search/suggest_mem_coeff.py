"""The ``mem_coeff`` at which a matmul changes its cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from autoshard import _core
from autoshard.errors import PlanError
from autoshard.planned.symbolic_costs import AXES, Sizes, SymbolicChoice, SymbolicCosts

_REPLICATE_BELOW = _core.REPLICATE_BELOW

_CUT_SIZE = {"Batch": 0, "Expert": 0, "I": 1, "K": 2, "J": 3}
"""The entry of ``Sizes`` that a cut divides."""


class HasSymbolicCosts(Protocol):
    """A plan made by ``cost_model="symbolic"``; others have None."""

    @property
    def symbolic_costs(self) -> SymbolicCosts | None:
        """What was weighed."""
        ...


def suggest_mem_coeff(
    plan: HasSymbolicCosts,
    op: str | int,
    want: str = "I",
    *,
    level: int | None = None,
    neighbours: Literal["follow", "stay"] = "follow",
) -> float:
    """The ``mem_coeff`` nearest to the plan's at which ``op`` cuts its ``want`` axis.

    What used to be done by hand: find "Choose NOT to cut" in the log, divide the cost of cutting
    the I-axis by that of not cutting, multiply the coefficient by it, and take a value slightly
    higher. That holds while the I-axis is the cheapest; this solves the costs for the coefficient,
    of all cuts, and evaluates them again at the answer. Plan again with it to see what the other
    ops do.

    Args:
        plan: A plan made by ``cost_model="symbolic"``.
        op: The op's name in ``plan.symbolic_costs.ops``, its number there, or its place
            (``model.py:42``).
        want: ``I``, ``J``, ``K`` or ``none``; with batch dims also ``Batch`` and ``Expert``.
        level: The level that should choose it; all of them if None.
        neighbours: ``follow``: the ops around it choose what needs no reshard, as the two
            matmuls of an MLP do, which turn over together. ``stay``: they stay as the plan has
            them, and what is resharded between them and the op counts.

    Returns:
        The coefficient: where the two costs are equal if that decides for ``want`` (the first of
        I, J, K, none wins), else 1e-5 of itself beyond. The plan's own if the op chooses ``want``
        already.

    Raises:
        PlanError: The plan was not made by the symbolic cost model, it has no such op, the axis
            cannot be cut, or no coefficient makes it the cheapest.
    """
    costs = plan.symbolic_costs
    if costs is None:
        raise PlanError(
            "the plan has no symbolic costs: it was not made by the symbolic cost model. Plan "
            'with cost_model="symbolic".'
        )
    choices = _choices_of(costs, op)
    name = _title(choices[0])
    if want not in AXES:
        raise PlanError(f"{name}: want={want!r} is no axis. Use one of {', '.join(AXES)}.")
    if level is not None and not 0 <= level < len(choices):
        raise PlanError(
            f"{name}: level={level}, but the plan has levels 0 to {len(choices) - 1}, one for "
            "every prime factor of the number of devices."
        )
    asked = choices if level is None else (choices[level],)
    if all(choice.chosen == want for choice in asked):
        return costs.mem_coeff
    levels = [_Level.of(choice, neighbours == "stay") for choice in asked]
    if level is None:
        levels = _all_cut(levels, want)
    for one in levels:
        one.check_possible(want, name)

    def holds(coefficient: float) -> bool:
        return all(one.cheapest(coefficient) == want for one in levels)

    if holds(costs.mem_coeff):
        raise PlanError(
            f"{name}: the {_axis(want)} is the cheapest at mem_coeff={costs.mem_coeff:g} already; "
            "the plan does not take it because other ops or levels gain more. Pin it with "
            "autoshard.shard."
        )
    if all(one.choice.has_batch for one in levels):
        raise PlanError(
            f"{name}: the costs of a matmul with batch dims do not depend on mem_coeff. Pin it "
            "with autoshard.shard."
        )
    found = [c for c in _trials(levels) if holds(c)]
    if not found:
        raise PlanError(f"{name}: {_why_never(levels, want)} Pin it with autoshard.shard.")
    return min(found, key=lambda c: abs(math.log(c / costs.mem_coeff)))


@dataclass(frozen=True, slots=True)
class _Level:
    """The costs of one level as functions of the coefficient."""

    choice: SymbolicChoice
    sizes: Sizes
    """Before the level."""
    barred: str | None
    """J or K if a level before cuts the other one."""
    around: Mapping[str, float]
    """The reshard cost of every cut."""

    @classmethod
    def of(cls, choice: SymbolicChoice, neighbours_stay: bool) -> _Level:
        barred = (
            c.axis
            for c in choice.candidates
            if math.isinf(c.op_cost) and choice.sizes[_CUT_SIZE[c.axis]] % choice.parts == 0
        )
        around = {c.axis: c.reshard_cost if neighbours_stay else 0.0 for c in choice.candidates}
        return cls(choice, choice.sizes, next(barred, None), around)

    def costs(self, coefficient: float) -> dict[str, float]:
        """Totals of all cuts; infinite where not possible."""
        ops = _core.symbolic_matmul_costs(
            self.sizes, self.choice.has_batch, coefficient, self.choice.parts
        )
        return {
            axis: ops[AXES.index(axis)] + reshard if self.can_cut(axis) else math.inf
            for axis, reshard in self.around.items()
        }

    def can_cut(self, axis: str) -> bool:
        return axis == "none" or self.why_not(axis) is None

    def why_not(self, axis: str) -> str | None:
        """What keeps ``axis`` from being cut at this level."""
        if axis not in self.around:
            return "a matmul without batch dims has none"
        if axis == self.barred:
            return "J and K of one matmul are not both cut, and a level before cuts the other one"
        size = self.sizes[_CUT_SIZE[axis]]
        if size % self.choice.parts:
            return f"its size {size:g} is not divisible by {self.choice.parts}"
        return None

    def check_possible(self, want: str, name: str) -> None:
        reason = None if want == "none" else self.why_not(want)
        if reason is not None:
            way_out = "Ask for another axis"
            if self.choice.level > 0:
                way_out += f", or for one of the levels 0 to {self.choice.level - 1} with level="
            raise PlanError(
                f"{name}: the {_axis(want)} cannot be cut at level {self.choice.level} (mesh axis "
                f"{self.choice.mesh_axis!r}): {reason}. {way_out}."
            )

    def cheapest(self, coefficient: float) -> str:
        totals = self.costs(coefficient)
        return min(totals, key=lambda axis: totals[axis])

    def boundaries(self) -> Iterator[float]:
        """Coefficients at which two of the costs may be equal."""
        if self.choice.has_batch:
            return
        formulas = _core.symbolic_matmul_costs(self.sizes, False, 1.0, self.choice.parts)
        ops = dict(zip(AXES, formulas, strict=True))
        around = self.around
        unit, least = ops["I"], min(ops["J"], ops["K"])
        apart = around["none"] - around["I"]
        fixed = [ops[axis] + around[axis] for axis in ("J", "K")]
        # What cutting I costs where two costs are equal: x = coefficient * unit.
        x = [least, least**2 / _REPLICATE_BELOW + apart]
        # I and none: x = x^2 / 25 + apart
        half = _REPLICATE_BELOW / 2
        if half * half >= _REPLICATE_BELOW * apart:
            root = math.sqrt(half * half - _REPLICATE_BELOW * apart)
            x += [half - root, half + root]
        for total in fixed:
            x.append(total - around["I"])
            if total >= around["none"]:
                x.append(math.sqrt(_REPLICATE_BELOW * (total - around["none"])))
        yield from (value / unit for value in x if value > 0)


def _choices_of(costs: SymbolicCosts, op: str | int) -> tuple[SymbolicChoice, ...]:
    names = costs.ops
    if isinstance(op, int):
        if not 0 <= op < len(names):
            raise PlanError(f"op={op}, but the plan has {len(names)} matmuls. Count from 0.")
        return costs.of(names[op])
    if op in names:
        return costs.of(op)
    there = dict.fromkeys(
        choice.op
        for choice in costs.choices
        if choice.location is not None and _is_at(choice.location, op)
    )
    if len(there) == 1:
        return costs.of(next(iter(there)))
    if there:
        raise PlanError(f"{op} has {len(there)} matmuls. Name one: {', '.join(there)}.")
    listed = ", ".join(names[:20]) + (", .." if len(names) > 20 else "")
    raise PlanError(
        f"the plan has no matmul {op!r}. Use a name in plan.symbolic_costs.ops ({listed}), its "
        "number there, or a place such as model.py:42."
    )


def _is_at(location: str, asked: str) -> bool:
    """``/home/me/model.py:42:7`` is at ``model.py:42``."""
    return any(
        place == asked or place.endswith(f"/{asked}")
        for place in (location, location.rpartition(":")[0])
    )


def _all_cut(levels: Sequence[_Level], want: str) -> list[_Level]:
    """The levels with the sizes that cutting ``want`` at each of them leaves."""
    made: list[_Level] = []
    sizes = list(levels[0].sizes)
    for level in levels:
        barred = {"J": "K", "K": "J"}.get(want) if made else None
        now = (sizes[0], sizes[1], sizes[2], sizes[3])
        made.append(replace(level, sizes=now, barred=barred))
        if want != "none":
            sizes[_CUT_SIZE[want]] /= level.choice.parts
    return made


def _trials(levels: Sequence[_Level]) -> Iterator[float]:
    """One coefficient in every interval in which all costs keep their order, and its ends."""
    ends = sorted({c for level in levels for c in level.boundaries()})
    for end in ends:
        # Next to an end where it does not hold itself, far enough for the search to see it.
        yield from (end * (1 + step) for step in (0, 1e-5, -1e-5))


def _why_never(levels: Sequence[_Level], want: str) -> str:
    """A level at which another cut is always cheaper, or that no coefficient suits all."""
    for level in levels:
        if any(level.cheapest(c) == want for c in _trials([level])):
            continue
        seen = {c: level.costs(c) for c in _trials([level])}
        best = min(seen, key=lambda c: seen[c][want] - min(seen[c].values()))
        totals = seen[best]
        listed = ", ".join(f"{_axis(axis)} {total:g}" for axis, total in totals.items())
        return (
            f"the {_axis(want)} is the cheapest at no mem_coeff at level {level.choice.level}; it "
            f"comes nearest at {best:g}, where the costs are {listed}."
        )
    return (
        f"every level takes the {_axis(want)} at some mem_coeff, but no mem_coeff suits all "
        "levels. Ask for one of them with level=."
    )


def _axis(axis: str) -> str:
    return "choice not to cut" if axis == "none" else f"{axis}-axis"


def _title(choice: SymbolicChoice) -> str:
    return choice.op if choice.location is None else f"{choice.location}: {choice.op}"
