"""What becomes of the values of one block: of straight-line code, and of stacks between its loops.

Equal values of equal layers are one item where there are many values; each stack is one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

import numpy as np

from autoshard import _core
from autoshard._core import Clones, Dropped, Storage
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import element_bits, mlir
from autoshard.planned.summarize import line_of
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.decision import Answer, Chosen, Fate
from autoshard.rewrites.recomputation.fetches import Fetch, send_seconds, timed
from autoshard.rewrites.recomputation.loops import Pair, Stack, maker_of, pairs_of, trips_of
from autoshard.rewrites.recomputation.stack_choice import slice_of
from autoshard.rewrites.recomputation.stack_moves import may_be_on_host

_SMALLEST = 1e-5
"""Share of the memory limit: values below are not worth a decision."""

_MOST_ALONE = 24
"""Up to so many values of a block are items of their own, whether others are equal or not."""

_LEAST_SENT = 1 << 16
"""Bytes of a whole array: smaller ones are not worth a transfer; as of states, 64 KiB."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What may become of values."""

    again: bool = True
    """They may be computed again."""
    host: bool = False
    """They may be sent to the host and back."""
    keep_sent: bool = False
    """Not the results of collectives are computed again."""
    keep_parameters: bool = False
    """Nor what is made of parameters alone."""


@dataclass(frozen=True, slots=True)
class Group:
    """Equal values of equal layers."""

    members: tuple[Dropped, ...]
    fates: tuple[Fate, ...]


@dataclass(frozen=True, slots=True)
class Stacked:
    """A stack of two loops."""

    pair: int
    """Number of the pair of loops."""
    stack: Stack
    fates: tuple[Fate, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """What decisions do, and what is written for them."""

    answer: Answer
    live: np.ndarray
    """Bytes on one device at each point."""
    clones: Clones
    fetches: list[Fetch]


@dataclass(frozen=True, slots=True)
class _Dropped:
    """What it takes to compute stacks again."""

    seconds: float
    """Seconds of the ops that run again, less those of writing and reading the stacks."""
    delta: list[tuple[int, float]]
    """(point, bytes): from this point on so many bytes more live on a device."""


class BlockQuestion:
    """A ``Question``: what becomes of the values of a block, within so many bytes."""

    def __init__(
        self, block: Block, limit: float, rules: Rules, *, stacks_alone: bool = False
    ) -> None:
        """``stacks_alone``: what is no stack is kept."""
        self.block, self.limit, self.rules = block, limit, rules
        costed = block.costed
        self.rate = costed.cluster.chip.host_bandwidth.value
        self.link = block.link
        self.base = live_on_device(block)
        self.pairs = pairs_of(block)
        self._known: dict[tuple[int, tuple[int, ...]], _Dropped] = {}
        self._loops = [(self._loop(pair.first), self._loop(pair.second)) for pair in self.pairs]
        self.items: list[Group | Stacked] = [
            *([] if stacks_alone else groups_of(block, self.base, limit, rules)),
            *self._stacks(),
        ]
        self.apart: dict[int, Fate] = {}
        """Values that do not share the fate of their group."""
        self._waited = self.link.waited()
        self._ranges = [self._range(item) for item in self.items]

    @property
    def fates(self) -> Sequence[Sequence[Fate]]:
        """See ``Question.fates``."""
        return [item.fates for item in self.items]

    def answer(self, chosen: Chosen) -> Answer:
        """See ``Question.answer``."""
        return self.effect(chosen).answer

    def least_excess(self, kept: Collection[int]) -> float:
        """See ``Question.least_excess``: the others are gone while they wait, at no cost."""
        return self._excess(self.least_live(kept))

    def least_live(self, kept: Collection[int]) -> np.ndarray:
        """Bytes at each point, likewise."""
        held = set(kept)
        delta = [
            change
            for number, ranges in enumerate(self._ranges)
            if number not in held
            for first, end, size in ranges
            for change in ((first, -size), (end, size))
        ]
        return self._with(delta)

    def most_saved(self, item: int) -> float:
        """See ``Question.most_saved``: a stack need not be written and read."""
        one = self.items[item]
        return self._moved_seconds(one.stack) if isinstance(one, Stacked) else 0.0

    def effect(self, chosen: Chosen) -> Effect:
        """What decisions do."""
        again, sent = self.values_with(chosen, Fate.AGAIN), self.values_with(chosen, Fate.HOST)
        clones = self._clones_for(again, sent)
        uses = {use.number: use for use in clones.uses}
        seconds = clones.seconds
        delta: list[tuple[int, float]] = []
        moved: dict[tuple[int, int], float] = {}
        computed: dict[tuple[int, int], float] = {}
        for number in range(len(self.pairs)):
            dropped = self.stacks_with(chosen, Fate.AGAIN, number)
            one = self._dropped(number, tuple(stack.slot for stack in dropped))
            seconds += one.seconds
            delta += one.delta
            first, second = self._loops[number]
            computed[second] = computed.get(second, 0.0) + one.seconds
            for stack in self.stacks_with(chosen, Fate.HOST, number):
                delta += self._gone(number, stack)
                delta += self._during(second, stack.bytes / trips_of(self.pairs[number]))
                for loop in (first, second):
                    moved[loop] = moved.get(loop, 0.0) + stack.bytes / self.rate
        loop = self._loop_of_block
        if loop is not None and sent:
            both = sum(
                2 * send_seconds(self.block, one.number, self.rate)
                for one in sent
                if one.number in uses
            )
            moved[loop] = moved.get(loop, 0.0) + both
        fetches: list[Fetch] = []
        if moved or sent or self.link.is_used:
            start, waited = self.link.free(moved, computed)
            times = timed(self.block, sent, uses, self.link, start, self.rate)
            seconds += waited + times.waited - self._waited
            delta += times.delta
            fetches = times.fetches
        live = self._with(delta, clones.change)
        return Effect(Answer(self._excess(live), seconds), live, clones, fetches)

    def values_with(self, chosen: Chosen, fate: Fate) -> list[Dropped]:
        """Values of straight-line code of which this becomes."""
        groups = [
            (item.members, whole)
            for number, whole in chosen.items()
            if isinstance(item := self.items[number], Group)
        ]
        apart = self.apart
        if not apart:
            return [one for members, whole in groups if whole is fate for one in members]
        return [
            one
            for members, whole in groups
            for one in members
            if apart.get(one.number, whole) is fate
        ]

    def stacks_with(self, chosen: Chosen, fate: Fate, pair: int) -> list[Stack]:
        """Stacks of a pair of loops of which this becomes."""
        return [
            item.stack
            for number, item in enumerate(self.items)
            if isinstance(item, Stacked) and item.pair == pair and chosen.get(number) is fate
        ]

    def _clones_for(self, again: Sequence[Dropped], sent: Sequence[Dropped]) -> Clones:
        return _core.clones_for(
            self.block.core,
            again,
            sent,
            keep_sent=self.rules.keep_sent,
            keep_parameters=self.rules.keep_parameters,
        )

    def _dropped(self, number: int, slots: tuple[int, ...]) -> _Dropped:
        """What it takes to compute stacks of a pair again, by their slots of the first loop."""
        if not slots:
            return _Dropped(0.0, [])
        if (number, slots) not in self._known:
            pair = self.pairs[number]
            dropped = [stack for stack in pair.stacks if stack.slot in slots]
            self._known[number, slots] = self._drop(number, pair, dropped)
        return self._known[number, slots]

    def _drop(self, number: int, pair: Pair, dropped: Sequence[Stack]) -> _Dropped:
        block, value_of = self.block, self.block.costed.imported.value_of
        found = slice_of(block, pair, dropped, keep_sent=self.rules.keep_sent)
        if found is None:
            return _Dropped(inf, [])
        delta = [change for stack in dropped for change in self._gone(number, stack)]
        start, end = self._span(pair, dropped[0])
        added = 0.0
        for slot in found.carried:
            own = block.costs.bytes_of(value_of.get(pair.first.results[slot], NO_VALUE))
            delta += [(start, trips_of(pair) * own), (end, -trips_of(pair) * own)]
            added += trips_of(pair) * own
        kept = {stack.value for stack in dropped}
        for op in found.ops:
            for result in op.results:
                core = value_of.get(result, NO_VALUE)
                if block.costs.is_stored(core) and result not in kept:
                    delta += self._during(self._loops[number][1], block.costs.bytes_of(core))
        moved = sum(self._moved_seconds(stack) for stack in dropped)
        moved *= 1 - added / sum(stack.bytes for stack in dropped)
        return _Dropped(sum(block.costs.seconds_of(op) for op in found.ops) - moved, delta)

    def _moved_seconds(self, stack: Stack) -> float:
        """Seconds of all that writes and reads a stack."""
        slices = {maker_of(read.operands[0]) for read in stack.reads}
        ops = (stack.write, *(op for op in slices if op is not None))
        return sum(self.block.costs.seconds_of(op) for op in ops)

    def _gone(self, number: int, stack: Stack) -> list[tuple[int, float]]:
        start, end = self._span(self.pairs[number], stack)
        return [(start, -stack.bytes), (end, stack.bytes)]

    def _during(self, loop: tuple[int, int], size: float) -> list[tuple[int, float]]:
        points = self.block.costs.points[loop[0] : loop[1]]
        return [(min(points), size), (max(points) + 1, -size)]

    def _with(
        self, delta: Sequence[tuple[int, float]], before: np.ndarray | None = None
    ) -> np.ndarray:
        """Bytes at each point, with changes; ``before``: others, of each point."""
        change = np.zeros(len(self.base) + 1) if before is None else before.copy()
        for point, size in delta:
            change[min(point, len(self.base))] += size
        return self.base + np.cumsum(change)[: len(self.base)]

    def _excess(self, live: np.ndarray) -> float:
        return float(np.maximum(live - self.limit, 0).sum())

    def _stacks(self) -> list[Stacked]:
        """Stacks that live while memory is short."""
        found: list[Stacked] = []
        on_host = self.block.costed.imported.host.values
        value_of = self.block.costed.imported.value_of
        for number, pair in enumerate(self.pairs):
            for stack in pair.stacks:
                # What the program keeps on the host takes no memory of the device.
                if value_of[pair.first.results[stack.slot]] in on_host:
                    continue
                fates: list[Fate] = []
                if self.rules.again and self._dropped(number, (stack.slot,)).seconds < inf:
                    fates.append(Fate.AGAIN)
                if (
                    self.rules.host
                    and _is_worth_sending(stack.value)
                    and may_be_on_host(self.block, pair, stack)
                ):
                    fates.append(Fate.HOST)
                if fates:
                    found.append(Stacked(number, stack, tuple(fates)))
        return found

    def _span(self, pair: Pair, stack: Stack) -> tuple[int, int]:
        """Points from the first at which a stack lives to that behind the last one."""
        value_of, ranges = self.block.costed.imported.value_of, self.block.costs.live_ranges
        carried = (pair.first.results[stack.slot], pair.second.results[stack.read_slot])
        values = (pair.first.operands[stack.slot], *carried, stack.write.results[0])
        lives = [ranges[value_of[value]] for value in values]
        lives = [one for one in lives if one[1] > one[0]]
        if not lives:
            return 0, 0
        return min(one[0] for one in lives), max(one[1] for one in lives)

    def _range(self, item: Group | Stacked) -> list[tuple[int, int, float]]:
        """(first point, that behind the last, bytes) of all that an item may free at most."""
        if isinstance(item, Stacked):
            start, end = self._span(self.pairs[item.pair], item.stack)
            return [(start, end, item.stack.bytes)]
        block = self.block
        found: list[tuple[int, int, float]] = []
        for one in item.members:
            value = block.values[one.number]
            first = block.point[max(one.early, 0)] + 1
            found.append((min(first, value.end), value.end, value.bytes))
        return found

    def _loop(self, op: mlir.Operation) -> tuple[int, int]:
        """Numbers in the core of the first op of a loop, and of the first behind it."""
        numbers = self.block.inner_ops(op)
        return min(
            (
                (loop.first_op, loop.last_op)
                for loop in self.block.costed.imported.program.loops
                if loop.first_op <= numbers[0] and numbers[-1] < loop.last_op
            ),
            key=lambda one: one[1] - one[0],
        )

    @cached_property
    def _loop_of_block(self) -> tuple[int, int] | None:
        known = [number for number in self.block.core_op if number >= 0]
        return self.link.loop_around(known[0]) if self.block.number and known else None


def live_on_device(block: Block) -> np.ndarray:
    """Bytes at each point, without those that values on the host are taken for in a search."""
    costed = block.costed
    live = np.array(block.live_bytes, np.float64) + np.array(costed.plan.transient_bytes)
    shapes, bits = costed.imported.value_shapes, costed.imported.value_bits
    for value in costed.imported.host.values:
        first, end = block.costs.live_ranges[value]
        if end > first:
            counted = block.costs.bytes_of(value) * bits[value] / max(bits[value], 8)
            live[first:end] -= counted if len(shapes[value]) else 0.0
    return live


def points_outside_loops(block: Block) -> np.ndarray:
    """For each point, whether no loop runs then."""
    found = np.ones(len(block.live_bytes), np.bool_)
    for loop in block.costed.imported.program.loops:
        points = block.costs.points[loop.first_op : loop.last_op]
        if len(points):  # a loop may only count
            found[min(points) : max(points) + 1] = False
    return found


def groups_of(block: Block, live: np.ndarray, limit: float, rules: Rules) -> list[Group]:
    """Values that wait while memory is short, those of equal layers together.

    In the order of the program.
    """
    too_full = np.flatnonzero(live > limit)
    found: dict[tuple[object, ...], list[Dropped]] = {}
    on_host = block.costed.imported.host.values
    last = len(block.ops) - 1
    for number, value in enumerate(block.values):
        if value.kind is not Storage.STORED or value.bytes < limit * _SMALLEST:
            continue
        readers = block.demanders[number]
        if not readers or readers[-1] == last or value.core in on_host:
            continue
        gap = block.longest_gap(number)
        if gap is None or not _waits(block, gap, too_full):
            continue
        fates = _fates(block, number, rules)
        if fates:
            found.setdefault((*_signature(block, number), fates), []).append(gap)
    parts = list(found.values())
    if sum(map(len, parts)) <= _MOST_ALONE:
        parts = [[member] for members in parts for member in members]
    return [Group(tuple(part), _fates(block, part[0].number, rules)) for part in parts]


def _fates(block: Block, number: int, rules: Rules) -> tuple[Fate, ...]:
    found: list[Fate] = []
    if rules.again and not _is_excluded(block, number, rules):
        found.append(Fate.AGAIN)
    if rules.host and _is_worth_sending(block.ssa[number]):
        found.append(Fate.HOST)
    return tuple(found)


def _is_worth_sending(value: mlir.Value) -> bool:
    type_ = mlir.RankedTensorType(value.type)
    return prod(type_.shape) * element_bits(type_.element_type) >= 8 * _LEAST_SENT


def _signature(block: Block, number: int) -> tuple[object, ...]:
    """The same for equal values of equal layers: the op, its line and plan, what it reads."""
    value = block.values[number]
    op = block.ops[value.maker]
    core_op = block.core_op[value.maker]
    return (
        op.name,
        str(block.ssa[number].type),
        line_of(op),
        block.costs.value_sharding[value.core],
        block.costs.op_strategy[core_op] if core_op >= 0 else -1,
        tuple(
            (str(block.ssa[v].type), block.values[v].maker < 0) for v in block.operands[value.maker]
        ),
    )


def _waits(block: Block, gap: Dropped, too_full: np.ndarray) -> bool:
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
