"""Find the cheapest set of values to compute again so that a step fits the memory.

Equal values of equal layers are one group. As long as memory is too small, the group is taken
that relieves the points above the limit most per second; at the end groups, then single values,
are given back where the step fits without.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.ir import mlir
from autoshard.planned.summarize import line_of, short_name, type_text
from autoshard.planned.summary import RecomputedValue
from autoshard.rewrites.recomputation.block import Block, Gap, Kind
from autoshard.rewrites.recomputation.clones import Clones, Dropped, clones_for

_SMALLEST = 1e-5
"""Share of the memory limit: values below are not worth a decision."""

_MOST_PICKS = 3
"""A group that was given up again is taken at most so often."""

_TIE = 1e-9
"""Seconds added to those of every group, so that free ones are ordered by bytes."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be computed again."""

    keep_sent: bool = False
    """Not the results of collectives."""
    keep_parameters: bool = False
    """Not what is made of parameters alone."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Values to drop, and what that is estimated to do."""

    dropped: tuple[Dropped, ...]
    clones: Clones
    peak_bytes: float
    """Bytes of the values that live at the fullest point."""


def choose(block: Block, limit: float, rules: Rules) -> Choice:
    """The cheapest set found whose values fit ``limit`` bytes; or the one that comes closest."""
    search = _Search(block, limit, rules)
    found: list[tuple[float, float, set[int], set[int]]] = []
    for per_second in (True, False):
        search.start()
        search.grow(per_second)
        if search.excess(search.live(search.chosen)) == 0:
            search.give_back()
        clones = search.clones(search.chosen)
        excess = search.excess(search.live_with(clones))
        found.append((excess, clones.seconds, search.chosen, search.left_out))
    _, _, search.chosen, search.left_out = min(found, key=lambda one: one[:2])
    return search.result()


class _Search:
    def __init__(self, block: Block, limit: float, rules: Rules) -> None:
        self.block = block
        self.limit = limit
        self.rules = rules
        self.base = np.array(block.live_bytes, np.float64)
        self.groups = groups_of(block, limit, rules)
        self.chosen: set[int] = set()
        """Numbers of groups."""
        self.left_out: set[int] = set()
        """Values of chosen groups that are kept after all."""

    def members(self, groups: Collection[int]) -> list[Dropped]:
        """All values of some groups but those left out."""
        return [
            one for group in groups for one in self.groups[group] if one.number not in self.left_out
        ]

    def clones(self, groups: Collection[int]) -> Clones:
        """What dropping groups takes."""
        return clones_for(
            self.block,
            self.members(groups),
            keep_sent=self.rules.keep_sent,
            keep_parameters=self.rules.keep_parameters,
        )

    def live_with(self, clones: Clones) -> np.ndarray:
        """Bytes at each point."""
        change = np.zeros(len(self.base) + 1)
        for point, size in clones.delta:
            change[min(point, len(self.base))] += size
        return self.base + np.cumsum(change)[: len(self.base)]

    def live(self, groups: Collection[int]) -> np.ndarray:
        """Bytes at each point once groups are dropped."""
        return self.live_with(self.clones(groups))

    def excess(self, live: np.ndarray) -> float:
        """Bytes above the limit, over all points."""
        return float(np.maximum(live - self.limit, 0).sum())

    def start(self) -> None:
        """Choose nothing."""
        self.chosen, self.left_out = set(), set()

    def grow(self, per_second: bool) -> None:
        """Take groups until it fits, or nothing helps.

        Args:
            per_second: Take what relieves most per second; else what relieves most.
        """
        excess, seconds = self.excess(self.live(())), 0.0
        waiting: list[tuple[float, int, int]] = [(-np.inf, 0, g) for g in range(len(self.groups))]
        heapq.heapify(waiting)
        taken = [0] * len(self.groups)
        picks = 0
        while waiting and excess > 0:
            score, seen, group = heapq.heappop(waiting)
            if seen < picks or np.isinf(score):
                clones = self.clones((*self.chosen, group))
                relief = excess - self.excess(self.live_with(clones))
                price = max(clones.seconds - seconds, 0.0) + _TIE if per_second else 1.0
                heapq.heappush(waiting, (-relief / price, picks, group))
                continue
            if score >= 0:
                break
            self.chosen.add(group)
            picks += 1
            taken[group] += 1
            clones = self.clones(self.chosen)
            excess, seconds = self.excess(self.live_with(clones)), clones.seconds
            for other in sorted(self.chosen - {group}):
                clones = self.clones(self.chosen - {other})
                without = self.excess(self.live_with(clones))
                if without <= excess and clones.seconds <= seconds:
                    self.chosen.remove(other)
                    excess, seconds = without, clones.seconds
                    if taken[other] < _MOST_PICKS:
                        heapq.heappush(waiting, (-np.inf, picks, other))

    def give_back(self) -> None:
        """Keep what need not be computed again: the most expensive groups first, then values."""
        for group in sorted(self.chosen, key=lambda group: -self.clones((group,)).seconds):
            rest = self.chosen - {group}
            if self._is_better(rest, self.left_out):
                self.chosen = rest
        for group in sorted(self.chosen, key=lambda group: -self.clones((group,)).seconds):
            self._give_back_part(self.groups[group])

    def _give_back_part(self, group: Sequence[Dropped]) -> None:
        """Keep as many of the last values of a group, which wait the shortest, as fit."""
        step = len(group)
        kept = 0
        while step > 0:
            more = [one.number for one in group[len(group) - kept - step :]]
            if kept + step <= len(group) and self._is_better(
                self.chosen, self.left_out | set(more)
            ):
                self.left_out |= set(more)
                kept += step
            else:
                step //= 2

    def _is_better(self, groups: set[int], left_out: set[int]) -> bool:
        """It fits and takes less time."""
        now = self.clones(self.chosen).seconds
        before, self.left_out = self.left_out, left_out
        clones = self.clones(groups)
        fits = self.excess(self.live_with(clones)) == 0
        self.left_out = before
        return fits and clones.seconds <= now

    def result(self) -> Choice:
        """The choice made."""
        clones = self.clones(self.chosen)
        peak = float(self.live_with(clones).max(initial=0.0))
        return Choice(tuple(self.members(sorted(self.chosen))), clones, peak)


def groups_of(block: Block, limit: float, rules: Rules) -> list[list[Dropped]]:
    """Values that wait while memory is short, those of equal layers together.

    In the order of the program.
    """
    too_full = np.flatnonzero(np.array(block.live_bytes) > limit)
    found: dict[tuple[object, ...], list[Dropped]] = {}
    last = len(block.ops) - 1
    for number, value in enumerate(block.values):
        if value.kind is not Kind.STORED or value.bytes < limit * _SMALLEST:
            continue
        readers = block.demanders[number]
        if not readers or readers[-1] == last or _is_excluded(block, number, rules):
            continue
        gap = block.gap(number)
        if gap is None or not _waits(block, gap, too_full):
            continue
        found.setdefault(_signature(block, number), []).append(Dropped(number, gap))
    return list(found.values())


def _signature(block: Block, number: int) -> tuple[object, ...]:
    """The same for equal values of equal layers: the op, its line and plan, what it reads."""
    value = block.values[number]
    op = block.ops[value.maker]
    core_op = block.core_op[value.maker]
    return (
        op.name,
        str(value.ssa.type),
        line_of(op),
        block.costs.value_sharding[value.core],
        block.costs.op_strategy[core_op] if core_op >= 0 else -1,
        tuple(
            (str(block.values[v].ssa.type), block.values[v].maker < 0)
            for v in block.operands[value.maker]
        ),
    )


def _waits(block: Block, gap: Gap, too_full: np.ndarray) -> bool:
    """Is memory short at a point between the two positions?"""
    first, end = block.point[max(gap.early, 0)] + 1, block.point[gap.late]
    at = int(np.searchsorted(too_full, first))
    return at < len(too_full) and int(too_full[at]) < end


def _is_excluded(block: Block, number: int, rules: Rules) -> bool:
    value = block.values[number]
    if rules.keep_sent and value.maker in block.collective:
        return True
    is_gathered = value.maker in block.gathers
    return rules.keep_parameters and (is_gathered or number in block.made_of_arguments)


def describe(block: Block, choice: Choice) -> list[RecomputedValue]:
    """What is computed again, as the summary of a plan tells it."""
    rows: dict[tuple[str, str | None], list[Dropped]] = {}
    for one in choice.dropped:
        value = block.values[one.number]
        op: mlir.Operation = block.ops[_maker(block, one.number)]
        key = (f"{short_name(op)} {type_text(value.ssa.type)}", line_of(op))
        rows.setdefault(key, []).append(one)
    return [
        RecomputedValue(
            name=name,
            count=len(members),
            bytes=sum(block.values[one.number].bytes for one in members),
            seconds=sum(block.seconds[_maker(block, one.number)] for one in members),
            location=line,
        )
        for (name, line), members in rows.items()
    ]


def _maker(block: Block, number: int) -> int:
    """Position of the op that a value is told by."""
    return block.matmul_of.get(number, block.values[number].maker)
