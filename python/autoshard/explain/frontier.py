"""The frontier of time and memory: plans that no other beats in both.

Where all values are kept, memory gets a price, from nothing to far more than time: each price has
its fastest plan of the mesh, found by planning again from the plan at the price before. Where two
neighbours leave a large gap, a price between them is tried. The whole search is asked as well,
within less and less memory.

Where values may be computed again or wait on the host, search/fitted_frontier.py finds the plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autoshard.errors import DoesNotFitError, PlanError
from autoshard.explain.question import Change, Outcome, Subject
from autoshard.passes.memory_limit import read_bytes_text
from autoshard.planned.summary import PlanSummary, bytes_text
from autoshard.search.fitted_frontier import FrontierPlan, FrontierSearch

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
_LEAST_SAVING = 1e-3
"""A slower plan saves at least this part of the memory."""
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
    mesh: str
    """Axes that its shardings name."""
    recomputed_bytes: float = 0.0
    """Bytes of values that are computed again, on one device."""
    recompute_seconds: float = 0.0
    """What that adds to the step."""
    host_transfer_bytes: float = 0.0
    """Over the link to the host in one step, both ways together."""


@dataclass(frozen=True)
class Frontier:
    """Plans from the fastest to that of least memory."""

    name: str
    mesh: str
    memory_limit: float
    """Bytes of a device that the plan had to keep within."""
    points: tuple[FrontierPoint, ...]
    outcomes: tuple[Outcome | FrontierPlan, ...] = field(repr=False, compare=False)
    plan: Plan | None = field(default=None, repr=False, compare=False)
    search: FrontierSearch | None = field(default=None, repr=False, compare=False)
    """What found them, where values may be let go; it keeps what it read."""

    @property
    def is_of_one_mesh(self) -> bool:
        """Are all of them of the plan's mesh?"""
        return all(point.mesh == self.mesh for point in self.points)

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
        return self._taken(self.outcomes[number - 1], self.points[number - 1].peak_bytes)

    def within(self, memory_limit: int | float | str) -> Plan:
        """The fastest plan within a limit of memory, by planning between two of them.

        Args:
            memory_limit: Bytes of a device, or a text such as ``"14GiB"``.

        Raises:
            DoesNotFitError: The one of least memory does not fit.
            PlanError: The plan that was asked was loaded.
        """
        limit = read_bytes_text(str(memory_limit), "memory_limit")
        found = [
            (point.step_seconds, point.peak_bytes, outcome)
            for point, outcome in zip(self.points, self.outcomes, strict=True)
            if point.peak_bytes <= limit
        ]
        if self.search is not None:
            for plan in self.search.plans_within(limit):
                found.append((plan.step_seconds, plan.peak_bytes, plan))
        elif self.plan is not None:
            outcome = self.plan.subject.searched(Change(memory_limit=limit))
            if outcome.plan is not None:
                found.append((*_sizes(outcome), outcome))
        if not found:
            least = min(point.peak_bytes for point in self.points)
            raise DoesNotFitError(
                f"{self.name}: the plan of least memory on this frontier needs {bytes_text(least)}"
                f" on each device, {bytes_text(least - limit)} more than {bytes_text(limit)}.",
                None,
                least,
                limit,
                advice="Use more chips or a smaller batch.",
            )
        _, peak, outcome = min(found, key=lambda one: one[:2])
        return self._taken(outcome, peak)

    def _taken(self, outcome: Outcome | FrontierPlan, peak_bytes: float) -> Plan:
        if self.plan is None:
            raise PlanError(
                "a module's frontier has no plans to take. Plan it again with"
                f" memory-limit={peak_bytes:.0f}."
            )
        if isinstance(outcome, Outcome):
            return self.plan.subject.taken(self.plan, outcome)
        from autoshard.frontend.fitted_frontier import taken

        return taken(self.plan, outcome)

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
    limit = subject.memory_limit
    rows = [_Row(_point(limit, subject.summary, subject.summary.mem_coeff, True), this)]
    others = [*sorted(found.items(), key=lambda one: one[0]), *_searched(subject, found)]
    for price, outcome in others:
        try:
            summary = subject.summarized(outcome)
        except PlanError:  # the host would have to do what it cannot
            continue
        rows.append(_Row(_point(limit, summary, price, False), outcome))
    return _frontier_of(subject.name, str(subject.mesh), limit, rows, plan)


def fitted_frontier(plan: Plan, search: FrontierSearch) -> Frontier:
    """Plans that no other beats, some of which let values go.

    Args:
        plan: That was asked.
        search: What finds them; nothing is planned yet.
    """
    summary = plan.summary
    assert summary is not None
    limit = search.job.memory_limit
    own = FrontierPlan(plan.bytecode, summary)
    rows = [_Row(_point(limit, summary, summary.mem_coeff, True), own)]
    rows += [
        _Row(_point(limit, found.summary, found.summary.mem_coeff, False), found)
        for found in search.run()
    ]
    return _frontier_of(plan.name, str(plan.mesh), limit, rows, plan, search)


def _frontier_of(
    name: str,
    mesh: str,
    limit: float,
    rows: Sequence[_Row],
    plan: Plan | None,
    search: FrontierSearch | None = None,
) -> Frontier:
    kept = _thinned(_unbeaten(rows))
    points = tuple(row.point for row in kept)
    outcomes = tuple(row.outcome for row in kept)
    return Frontier(name, mesh, limit, points, outcomes, plan, search)


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
    outcome: Outcome | FrontierPlan


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
        if row.point.peak_bytes < least * (1 - _LEAST_SAVING):
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


def _point(limit: float, summary: PlanSummary, price: float, is_plan: bool) -> FrontierPoint:
    return FrontierPoint(
        step_seconds=summary.step_seconds,
        peak_bytes=summary.peak_bytes_per_device,
        compute_seconds=summary.compute_seconds,
        communication_seconds=summary.communication_seconds,
        mem_coeff=price,
        is_plan=is_plan,
        fits=summary.peak_bytes_per_device <= limit,
        mesh=summary.mesh,
        recomputed_bytes=sum(row.bytes for row in summary.recomputed),
        recompute_seconds=summary.recompute_seconds,
        host_transfer_bytes=summary.host_transfer_bytes,
    )
