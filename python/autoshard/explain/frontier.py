"""The frontier of time and memory: plans of one mesh that no other beats in both.

Memory gets a price, from nothing to far more than time: each price has its fastest plan, found by
planning again from the plan at the price before. Where two neighbours leave a large gap, a price
between them is tried. The whole search is asked as well, within less and less memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autoshard.errors import PlanError
from autoshard.explain.question import Change, Outcome, Subject
from autoshard.planned.summary import PlanSummary

if TYPE_CHECKING:
    from autoshard.frontend.plan import Plan

MOST_POINTS = 12
"""Plans of a frontier; of more, those that leave the smallest gaps are left out."""

_LADDER = (0.0, 1.0, 8.0, 64.0, 512.0, 4096.0)
"""Prices of memory that are tried first; 1 is the time to read a byte of the peak once."""
_BETWEEN = 8
"""Prices that are tried between them."""
_LEAST_PRICE = 0.05
"""What stands for nothing where a price between it and another one is wanted."""
_LEAST_STEP = math.log(1.2)
"""Prices closer than that are one."""
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One plan that no other beats in both."""

    step_seconds: float
    peak_bytes: float
    """On one device at the worst moment of a step."""
    compute_seconds: float
    communication_seconds: float
    mem_coeff: float
    """The price of memory that leads to it, as the option of ``autoshard.plan``."""
    is_plan: bool
    """Is it the plan that was asked?"""
    fits: bool
    """Within the limit of memory."""


@dataclass(frozen=True)
class Frontier:
    """Plans from the fastest to that of least memory."""

    name: str
    mesh: str
    memory_limit: float
    """Bytes of a device that the plan had to keep within."""
    points: tuple[FrontierPoint, ...]
    outcomes: tuple[Outcome, ...] = field(repr=False, compare=False)
    plan: Plan | None = field(default=None, repr=False, compare=False)

    def take(self, number: int) -> Plan:
        """One of them as a plan, to run or to save.

        Args:
            number: Row of the table, from 1.

        Raises:
            PlanError: There is no such row, or the plan that was asked was loaded.
        """
        if not 1 <= number <= len(self.points):
            raise PlanError(f"plan {number} of {len(self.points)}: count from 1.")
        if self.points[number - 1].is_plan and self.plan is not None:
            return self.plan
        if self.plan is None:
            raise PlanError(
                "a module's frontier has no plans to take. Plan it again with"
                f" memory-limit={self.points[number - 1].peak_bytes:.0f}."
            )
        return self.plan.subject.taken(self.plan, self.outcomes[number - 1])

    def to_json(self) -> list[dict[str, Any]]:
        """A row a plan, for ``json.dumps``."""
        names = FrontierPoint.__dataclass_fields__
        return [{name: getattr(point, name) for name in names} for point in self.points]

    def __rich__(self) -> Any:
        """A table and a bar chart of memory."""
        from autoshard.report.frontier_table import frontier_table

        return frontier_table(self)

    def __str__(self) -> str:
        """The same as text."""
        from autoshard.report.frontier_table import frontier_table
        from autoshard.report.plan_table import render

        return render(frontier_table(self))


def frontier(subject: Subject, plan: Plan | None = None) -> Frontier:
    """Plans of the plan's mesh that no other beats in both time and memory.

    Args:
        subject: The plan.
        plan: The same, where it is one, so that others can be taken.
    """
    this = Outcome(subject.imported, subject.plan)
    found: dict[float, Outcome] = {}
    last = this
    for price in _LADDER:
        last = found[price] = subject.priced(price, last)
    for _ in range(_BETWEEN):
        price = _price_between(found)
        if price is None:
            break
        below = max(known for known in found if known < price)
        found[price] = subject.priced(price, found[below])
    rows = [_Row(_point(subject, subject.summary, subject.summary.mem_coeff, True), this)]
    for price, outcome in [
        *sorted(found.items(), key=lambda one: one[0]),
        *_searched(subject, found),
    ]:
        point = _point(subject, subject.summarized(outcome), price, False)
        rows.append(_Row(point, outcome))
    kept = _thinned(_unbeaten(rows))
    return Frontier(
        subject.name,
        str(subject.mesh),
        subject.memory_limit,
        tuple(row.point for row in kept),
        tuple(row.outcome for row in kept),
        plan,
    )


def _searched(subject: Subject, found: Mapping[float, Outcome]) -> Iterator[tuple[float, Outcome]]:
    """What the whole search finds within the least memory of all, and half way to it.

    It starts from nothing, and so ends elsewhere than what is near the plan.
    """
    peaks = [_sizes(outcome)[1] for outcome in found.values()]
    for limit in dict.fromkeys((min(peaks), math.sqrt(min(peaks) * max(peaks)))):
        outcome = subject.from_nothing(Change(memory_limit=limit))
        if outcome.plan is not None:
            yield outcome.plan.mem_coeff, outcome


@dataclass(frozen=True, slots=True)
class _Row:
    point: FrontierPoint
    outcome: Outcome


def _price_between(found: Mapping[float, Outcome]) -> float | None:
    """A price in the middle of the two neighbours whose plans are furthest apart.

    None where no two neighbours differ, or their prices hardly do.
    """
    prices = sorted(found)
    sizes = [_sizes(found[price]) for price in prices]
    spans = [max(size[k] for size in sizes) - min(size[k] for size in sizes) for k in (0, 1)]
    gaps = [
        (sum(abs(one[k] - two[k]) / spans[k] for k in (0, 1) if spans[k]), low, high)
        for low, high, one, two in zip(prices, prices[1:], sizes, sizes[1:], strict=False)
        if _log(high) - _log(low) > _LEAST_STEP
    ]
    gap, low, high = max(gaps, default=(0.0, 0.0, 0.0))
    return math.exp((_log(low) + _log(high)) / 2) if gap > _SAME else None


def _log(price: float) -> float:
    return math.log(max(price, _LEAST_PRICE))


def _sizes(outcome: Outcome) -> tuple[float, float]:
    """Seconds of a step and bytes of the peak."""
    assert outcome.plan is not None
    return outcome.plan.step_seconds, outcome.plan.peak_bytes


def _unbeaten(rows: Sequence[_Row]) -> list[_Row]:
    """Fastest first, each of less memory than all before it; of equal ones the first."""
    kept: list[_Row] = []
    least = math.inf
    for row in sorted(rows, key=lambda row: (row.point.step_seconds, row.point.peak_bytes)):
        if row.point.peak_bytes < least * (1 - _SAME):
            kept.append(row)
            least = row.point.peak_bytes
    return kept


def _thinned(rows: list[_Row]) -> list[_Row]:
    """At most so many: those between the closest neighbours are left out, but not the plan."""
    rows = list(rows)
    while len(rows) > MOST_POINTS:
        gaps = [
            (rows[at - 1].point.peak_bytes - rows[at + 1].point.peak_bytes, at)
            for at in range(1, len(rows) - 1)
            if not rows[at].point.is_plan
        ]
        del rows[min(gaps)[1]]
    return rows


def _point(subject: Subject, summary: PlanSummary, price: float, is_plan: bool) -> FrontierPoint:
    return FrontierPoint(
        step_seconds=summary.step_seconds,
        peak_bytes=summary.peak_bytes_per_device,
        compute_seconds=summary.compute_seconds,
        communication_seconds=summary.communication_seconds,
        mem_coeff=price,
        is_plan=is_plan,
        fits=summary.peak_bytes_per_device <= subject.memory_limit,
    )
