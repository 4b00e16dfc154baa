"""What becomes of the values of one block: of straight-line code, and of stacks between its loops.

Equal values of equal layers are one item where there are many values; each stack is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import numpy as np

from autoshard._core import (
    Clones,
    Dropped,
    Effects,
    Fetch,
    Gap,
    LinkedBlock,
    StackChanges,
    Transfer,
)
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import element_bits, mlir
from autoshard.planned.host_traffic import in_trip, loop_around
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.decision import Answer, Chosen, Fate
from autoshard.rewrites.recomputation.loops import Pair, Stack, maker_of, pairs_of, trips_of
from autoshard.rewrites.recomputation.stack_choice import slice_of
from autoshard.rewrites.recomputation.stack_moves import may_be_on_host

_SMALLEST = 1e-5
"""Share of the memory limit: values below are not worth a decision."""

_MOST_ALONE = 24
"""Up to so many values of a block are items of their own, whether others are equal or not."""

_CODES = {Fate.KEEP: 0, Fate.AGAIN: 1, Fate.HOST: 2}
"""Fates as the core knows them."""

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
    by_kernels: bool = True
    """Are copies priced by the kernels that they are parts of? Else as what they are copies of."""

    def besides(self, block: Block) -> Mapping[int, float]:
        """See ``Block.seconds_besides``."""
        if not (self.again and self.by_kernels):
            return {}
        return block.seconds_besides(self.keep_sent, self.keep_parameters)


Dearer = Mapping[tuple[int, Fate], float]
"""(value, fate) -> seconds that this adds to a step besides what is estimated, as it turned out."""


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
        self,
        block: Block,
        limit: float,
        rules: Rules,
        *,
        stacks_alone: bool = False,
        dearer: Dearer | None = None,
    ) -> None:
        """``stacks_alone``: what is no stack is kept."""
        self.block, self.limit, self.rules = block, limit, rules
        costed = block.costed
        self.rate = costed.cluster.chip.host_bandwidth.value
        self.base = live_on_device(block)
        self.pairs = pairs_of(block)
        self._known: dict[tuple[int, tuple[int, ...]], _Dropped] = {}
        self._answers: dict[tuple[bytes, frozenset[tuple[int, Fate]]], Answer] = {}
        self._loops = [(self._loop(pair.first), self._loop(pair.second)) for pair in self.pairs]
        self.items: list[Group | Stacked] = [
            *([] if stacks_alone else groups_of(block, self.base, limit, rules)),
            *self._stacks(),
        ]
        self.apart: dict[int, Fate] = {}
        """Values that do not share the fate of their group."""
        self._members = _Members(self.items, self._besides(dearer or {}))
        self._linked = _linked(block) if rules.host or block.link.is_used else None
        self._effects = self._effects_of(self._members.all)
        self._no_stacks = StackChanges(block.core, self._linked, 0.0, [], [], [])
        self._freed = [self._most_freed(item) for item in self.items]
        self._all_freed = np.zeros(len(self.base) + 1)
        for points, sizes in self._freed:
            np.add.at(self._all_freed, points, sizes)

    def _besides(self, dearer: Dearer) -> Dearer:
        """The same with what copies are known to take more in their kernels."""
        found = dict(dearer)
        for number, seconds in self.rules.besides(self.block).items():
            if seconds:
                way = (number, Fate.AGAIN)
                found[way] = found.get(way, 0.0) + seconds
        return found

    @property
    def fates(self) -> Sequence[Sequence[Fate]]:
        """See ``Question.fates``."""
        return [item.fates for item in self.items]

    def answer(self, chosen: Chosen) -> Answer:
        """See ``Question.answer``."""
        fates, stacks = self._members.fates(chosen, self.apart), self._stacks_of(chosen)
        if (fates, stacks) not in self._answers:
            changes = self._stack_changes(chosen)
            excess, seconds = self._effects.answer(fates, changes)
            self._answers[fates, stacks] = Answer(excess, seconds + self._members.dearer(fates))
        return self._answers[fates, stacks]

    def least_excess(self, kept: Collection[int]) -> float:
        """See ``Question.least_excess``: the others are gone while they wait, at no cost."""
        return float(np.maximum(self.least_live(kept) - self.limit, 0).sum())

    def least_excess_with(self, chosen: Chosen) -> float:
        """See ``Question.least_excess_with``; 0 where loops stack something."""
        if self.pairs:
            return 0.0
        return self._effects.least_excess(self._members.fates(chosen, self.apart))

    def least_live(self, kept: Collection[int]) -> np.ndarray:
        """Bytes at each point, likewise."""
        freed = self._all_freed.copy()
        for number in kept:
            points, sizes = self._freed[number]
            np.subtract.at(freed, points, sizes)
        return self.base - np.cumsum(freed)[:-1]

    def most_saved(self, item: int) -> float:
        """See ``Question.most_saved``: a stack need not be written and read."""
        one = self.items[item]
        return self._moved_seconds(one.stack) if isinstance(one, Stacked) else 0.0

    def effect(self, chosen: Chosen) -> Effect:
        """What decisions do."""
        fates, stacks = self._members.fates(chosen, self.apart), self._stack_changes(chosen)
        made = self._effects.effect(fates, stacks)
        answer = Answer(made.excess, made.seconds + self._members.dearer(fates))
        return Effect(answer, made.live, made.clones, made.fetches)

    def _stacks_of(self, chosen: Chosen) -> frozenset[tuple[int, Fate]]:
        """What becomes of stacks, by their numbers."""
        if not self.pairs:
            return frozenset()
        return frozenset(one for one in chosen.items() if isinstance(self.items[one[0]], Stacked))

    def _stack_changes(self, chosen: Chosen) -> StackChanges:
        """What decisions about stacks do."""
        if not self.pairs:
            return self._no_stacks
        seconds = 0.0
        delta: list[tuple[int, float]] = []
        moved: list[tuple[tuple[int, int], Transfer]] = []
        computed: list[tuple[tuple[int, int], float]] = []
        for number in range(len(self.pairs)):
            dropped = self.stacks_with(chosen, Fate.AGAIN, number)
            one = self._dropped(number, tuple(stack.slot for stack in dropped))
            seconds += one.seconds
            delta += one.delta
            _, second = self._loops[number]
            computed.append((second, one.seconds))
            for stack in self.stacks_with(chosen, Fate.HOST, number):
                delta += self._gone(number, stack)
                delta += self._during(second, stack.bytes / trips_of(self.pairs[number]))
                moved += self._moves(number, stack)
        return StackChanges(self.block.core, self._linked, seconds, delta, moved, computed)

    def _moves(self, number: int, stack: Stack) -> list[tuple[tuple[int, int], Transfer]]:
        """The two transfers of a stack of a pair on the host, each in its loop."""
        costed, (first, second) = self.block.costed, self._loops[number]
        whole = costed.imported.value_of.get(self.pairs[number].first.results[stack.slot], NO_VALUE)
        cluster, seconds = costed.cluster, self.block.costs.sent_bytes_of(whole) / self.rate
        maker = maker_of(stack.value)
        made = self.block.costs.core_number(maker) + 1 if maker is not None else 0
        return [
            (first, in_trip(first, seconds, made, cluster)),
            (second, in_trip(second, seconds, second[0], cluster)),
        ]

    def stacks_with(self, chosen: Chosen, fate: Fate, pair: int) -> list[Stack]:
        """Stacks of a pair of loops of which this becomes."""
        return [
            item.stack
            for number, item in enumerate(self.items)
            if isinstance(item, Stacked) and item.pair == pair and chosen.get(number) is fate
        ]

    def _effects_of(self, members: Sequence[Dropped]) -> Effects:
        block, rules = self.block, self.rules
        seconds = [0.0] * len(members)
        if self._linked is not None:
            sent_bytes_of = block.costs.sent_bytes_of
            values = [block.core.value(one.number) for one in members]
            seconds = [
                block.trips(one.maker) * sent_bytes_of(one.in_program) / self.rate for one in values
            ]
        return Effects(
            block.core,
            self.base.tolist(),
            self.limit,
            members,
            seconds,
            self._linked,
            keep_sent=rules.keep_sent,
            keep_parameters=rules.keep_parameters,
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

    def _stacks(self) -> list[Stacked]:
        """Stacks that live while memory is short."""
        found: list[Stacked] = []
        imported = self.block.costed.imported
        for number, pair in enumerate(self.pairs):
            for stack in pair.stacks:
                # What the program keeps on the host takes no memory of the device.
                if imported.value_of[pair.first.results[stack.slot]] in imported.host.values:
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

    def _most_freed(self, item: Group | Stacked) -> tuple[np.ndarray, np.ndarray]:
        """Points from which on an item may free so many bytes more, at most, and these bytes."""
        if isinstance(item, Stacked):
            delta = self._gone(item.pair, item.stack)
        else:
            core, delta = self.block.core, list[tuple[int, float]]()
            for one in item.members:
                value = core.value(one.number)
                first = core.op(max(one.early, 0)).point + 1
                delta += [(min(first, value.end), -value.bytes), (value.end, value.bytes)]
        points = np.array([point for point, _ in delta], np.int64)
        return points, -np.array([size for _, size in delta])

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


class _Members:
    """Values of all groups, in one row."""

    def __init__(self, items: Sequence[Group | Stacked], dearer: Dearer) -> None:
        self.all: list[Dropped] = []
        self._of: dict[int, tuple[int, int]] = {}
        """Item -> the place of its first value, and the one behind its last."""
        for number, item in enumerate(items):
            if isinstance(item, Group):
                first = len(self.all)
                self.all += item.members
                self._of[number] = (first, len(self.all))
        self._place = {one.number: place for place, one in enumerate(self.all)}
        self._dearer = [
            (_CODES[fate], np.array([dearer.get((one.number, fate), 0.0) for one in self.all]))
            for fate in Fate
            if any(one is fate for _, one in dearer)
        ]
        """Code of a fate, and by value the seconds that it adds besides."""

    def dearer(self, fates: bytes) -> float:
        """Seconds that these codes add to a step besides what is estimated."""
        codes = np.frombuffer(fates, np.uint8)
        return sum(float(seconds[codes == code].sum()) for code, seconds in self._dearer)

    def fates(self, chosen: Chosen, apart: Mapping[int, Fate]) -> bytes:
        """A code of each: that of its item, or of its own if others of the item go."""
        fates = bytearray(len(self.all))
        for number, fate in chosen.items():
            if number in self._of:
                first, end = self._of[number]
                fates[first:end] = bytes((_CODES[fate],)) * (end - first)
        for number, fate in apart.items():
            place = self._place[number]
            if fates[place]:
                fates[place] = _CODES[fate]
        return bytes(fates)


def _linked(block: Block) -> LinkedBlock:
    """A block beside the link to the host."""
    known = next((number for number in block.core.ops_in_program if number >= 0), None)
    loop = None
    if block.number and known is not None:
        loop = loop_around(block.costed.imported, known)
    return LinkedBlock(block.core, block.link, block.core_at, loop)


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
    too_full: list[int] = np.flatnonzero(live > limit).tolist()
    found: dict[tuple[object, ...], list[Dropped]] = {}
    for gap in block.gaps:
        number = gap.value.number
        if block.core.value(number).bytes < limit * _SMALLEST or not _waits(gap, too_full):
            continue
        fates = _fates(block, number, rules)
        if fates:
            found.setdefault((block.signature(number), fates), []).append(gap.value)
    parts = list(found.values())
    if sum(map(len, parts)) <= _MOST_ALONE:
        parts = [[member] for members in parts for member in members]
    return [Group(tuple(part), _fates(block, part[0].number, rules)) for part in parts]


def _fates(block: Block, number: int, rules: Rules) -> tuple[Fate, ...]:
    found: list[Fate] = []
    if rules.again and not _is_excluded(block, number, rules):
        found.append(Fate.AGAIN)
    stays = block.costed.cluster.compiler.does("schedule.fetches_at_once")
    if rules.host and not stays and _is_worth_sending(block.ssa(number)):
        found.append(Fate.HOST)
    return tuple(found)


def _is_worth_sending(value: mlir.Value) -> bool:
    type_ = mlir.RankedTensorType(value.type)
    return prod(type_.shape) * element_bits(type_.element_type) >= 8 * _LEAST_SENT


def _waits(gap: Gap, too_full: Sequence[int]) -> bool:
    """Is memory short while a value waits?"""
    at = bisect_left(too_full, gap.first)
    return at < len(too_full) and too_full[at] < gap.end


def _is_excluded(block: Block, number: int, rules: Rules) -> bool:
    value = block.core.value(number)
    maker = block.core.op(value.maker)
    if rules.keep_sent and maker.sends:
        return True
    return rules.keep_parameters and (maker.gathers or value.is_parameter)
