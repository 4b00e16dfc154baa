"""Find the cheapest decisions so that a step fits the memory.

``question`` says what may become of values and what that does, ``decision`` decides for groups of
equal ones; of a group only as many go as have to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from autoshard._core import Dropped
from autoshard.importer.work import is_elementwise
from autoshard.ir import mlir
from autoshard.ir.checkpoint_names import checkpoint_name
from autoshard.planned.summarize import line_of, short_name, type_text
from autoshard.planned.summary import DecidedValue, RecomputedValue
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.decision import Fate, decide, decide_more
from autoshard.rewrites.recomputation.loops import Stack, maker_of, pairs_of
from autoshard.rewrites.recomputation.parts import exchanged, with_parts
from autoshard.rewrites.recomputation.question import (
    BlockQuestion,
    Dearer,
    Effect,
    Group,
    Rules,
    Stacked,
)

_MOST_ANSWERS = 100_000
"""Ops that are looked at to improve on greedy decisions: in a block of 500 some 200 answers."""

_LEAST_EXCHANGING = 400
"""Answers for exchanges of decisions for parts of others, at least: most end with far fewer.

Steps as in parts.py: with 50 answers 0.983 and 1.958 s, with 400 or 3,000 0.974 and 1.929 s.
"""


_HARDLY_MORE = 1.05
"""Where no more than so many times the limit is needed, exchanges may make it fit."""

Written = frozenset[tuple[int, Fate]]
"""What is written for decisions about values, by number and fate."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of the values of a block, and what that is estimated to do."""

    question: BlockQuestion
    chosen: dict[int, Fate]
    effect: Effect

    @property
    def peak_bytes(self) -> float:
        """Bytes of the values that live at the fullest point."""
        return float(self.effect.live.max(initial=0.0))

    @property
    def least_bytes(self) -> float:
        """The same if all that waits while more is in use went at no cost."""
        return float(self.question.least_live(()).max(initial=0.0))

    @property
    def sends(self) -> bool:
        """Does something go to the host?"""
        return bool(self.effect.fetches) or Fate.HOST in self.chosen.values()

    @property
    def written(self) -> Written:
        """Equal for choices for which the same is written, where no loop stacks anything."""
        return frozenset(one for number in self.chosen for one in self.values_of(number))

    def values_of(self, number: int) -> list[tuple[int, Fate]]:
        """Values of an item that go, with what becomes of them; none of a stack."""
        item, apart = self.question.items[number], self.question.apart
        if not isinstance(item, Group):
            return []
        fate = self.chosen.get(number, Fate.KEEP)
        fates = ((one.number, apart.get(one.number, fate)) for one in item.members)
        return [one for one in fates if one[1] is not Fate.KEEP]

    def stacks(self, fate: Fate, block: Block) -> list[Stack]:
        """Stacks of which this becomes, as they stand in the block or in a copy of it."""
        chosen = [
            (number, stack.slot)
            for number in range(len(self.question.pairs))
            for stack in self.question.stacks_with(self.chosen, fate, number)
        ]
        found = pairs_of(block) if chosen else []
        return [s for n, pair in enumerate(found) for s in pair.stacks if (n, s.slot) in chosen]


def choose(
    block: Block,
    limit: float,
    rules: Rules,
    *,
    stacks_alone: bool = False,
    is_useless: Callable[[np.ndarray, float], bool] | None = None,
    most_seconds: float = inf,
    dearer: Dearer | None = None,
) -> Choice:
    """The cheapest decisions found whose values fit ``limit`` bytes; or what comes closest.

    Args:
        block: The ops, and how long their values live.
        limit: Bytes on one device.
        rules: What may become of values.
        stacks_alone: What is no stack of loops is kept.
        is_useless: Given the bytes at each point and the limit: is nobody helped by decisions that
            leave so much? Then parts of groups are not exchanged, nor is anything decided where
            all together leave so much; stacks are always decided.
        most_seconds: As of ``decide``.
        dearer: What some decisions add to a step besides what is estimated.
    """
    question = BlockQuestion(block, limit, rules, stacks_alone=stacks_alone, dearer=dearer)
    if question.pairs:
        is_useless = None
    if is_useless is not None and is_useless(question.least_live(()), limit):
        return Choice(question, {}, question.effect({}))
    most_answers = max(50, _MOST_ANSWERS // max(1, len(block.ops)))
    decision = decide(question, most_answers, most_seconds)
    if decision.answer.excess > 0 and decision.answer.seconds > most_seconds:
        return Choice(question, decision.chosen, question.effect(decision.chosen))
    if is_useless is not None and decision.answer.excess > 0:
        effect = question.effect(decision.chosen)
        if is_useless(effect.live, _HARDLY_MORE * limit):
            return Choice(question, decision.chosen, effect)
    found = (decision.chosen, *(one for one in decision.others if one))
    ways = {frozenset(chosen.items()): chosen for chosen in found}
    best = min((with_parts(question, chosen) for chosen in ways.values()), key=lambda one: one[0])
    if is_useless is not None and best[0].excess > 0:
        _, chosen, question.apart = best
        effect = question.effect(chosen)
        if is_useless(effect.live, _HARDLY_MORE * limit):
            return Choice(question, chosen, effect)
    if question.least_excess(()) > 0:  # nothing suffices
        _, chosen, question.apart = best
        return Choice(question, chosen, question.effect(chosen))
    _, chosen, question.apart = exchanged(question, best, max(_LEAST_EXCHANGING, most_answers))
    return Choice(question, chosen, question.effect(chosen))


def choose_more(choice: Choice, limit: float) -> Choice:
    """What was chosen, and more, so that the values of the block fit ``limit`` bytes."""
    before = choice.question
    question = BlockQuestion(before.block, limit, before.rules)
    gone = dict(choice.written)
    chosen: dict[int, Fate] = {}
    for number, item in enumerate(question.items):
        if isinstance(item, Group):
            fates = Counter(gone[one.number] for one in item.members if one.number in gone)
            fate = max(item.fates, key=fates.__getitem__)
            if fates[fate]:
                chosen[number] = fate
    _, chosen, question.apart = with_parts(question, decide_more(question, chosen).chosen)
    return Choice(question, chosen, question.effect(chosen))


# What a plan says of it


def recomputed(choice: Choice) -> list[RecomputedValue]:
    """What is computed again, as the summary of a plan tells it; before anything is rewritten."""
    return [
        RecomputedValue(row.name, row.count, row.bytes, _seconds(choice, members), row.location)
        for row, members in _rows(choice, Fate.AGAIN)
    ]


def decided(choice: Choice) -> list[DecidedValue]:
    """What becomes of values that could go, with the price; before anything is rewritten."""
    return [row for fate in Fate for row, _ in _rows(choice, fate)]


Member = Dropped | Stack


def _rows(choice: Choice, fate: Fate) -> list[tuple[DecidedValue, list[Member]]]:
    """Rows of all values of which this becomes, and these values."""
    question, found = choice.question, dict[tuple[str, str | None], list[tuple[int, Member]]]()
    for number, item in enumerate(question.items):
        whole = choice.chosen.get(number, Fate.KEEP)
        if isinstance(item, Stacked):
            members: list[Member] = [item.stack] if whole is fate else []
        else:
            members = [m for m in item.members if _fate(choice, m, whole) is fate]
        for member in members:
            key = (_name(choice, member), _line(choice, member))
            found.setdefault(key, []).append((number, member))
    rows: list[tuple[DecidedValue, list[Member]]] = []
    for (name, line), pairs in found.items():
        members = [member for _, member in pairs]
        row = DecidedValue(
            name=name,
            count=sum(_count(member) for member in members),
            bytes=sum(_bytes(choice, member) for member in members),
            decision=fate.value,
            seconds=sum(price(choice, number) for number in dict.fromkeys(n for n, _ in pairs)),
            location=line,
            checkpoint_name=_named(choice, members[0]),
        )
        rows.append((row, members))
    return rows


def price(choice: Choice, number: int) -> float:
    """Seconds that letting a group or a stack go adds to a step, given all other decisions."""
    question = choice.question
    if number in choice.chosen:
        rest = {item: fate for item, fate in choice.chosen.items() if item != number}
        return max(0.0, choice.effect.answer.seconds - question.answer(rest).seconds)
    more = [{**choice.chosen, number: fate} for fate in question.fates[number]]
    least = min(question.answer(each).seconds for each in more)
    return max(0.0, least - choice.effect.answer.seconds)


def _fate(choice: Choice, member: Dropped, whole: Fate) -> Fate:
    return choice.question.apart.get(member.number, whole)


def _value(choice: Choice, member: Member) -> mlir.Value:
    if isinstance(member, Stack):
        return member.value
    return choice.question.block.ssa(member.number)


def _named(choice: Choice, member: Member) -> str | None:
    """The name of a value, or of what it is made of alone, element by element."""
    value: mlir.Value | None = _value(choice, member)
    while value is not None:
        name = checkpoint_name(value)
        if name is not None:
            return name
        op = maker_of(value)
        if op is None or not (is_elementwise(op.name) or op.name in _SAME):
            return None
        made_of = [one for one in op.operands if not _is_constant(one)]
        value = made_of[0] if len(made_of) == 1 else None
    return None


_SAME = frozenset(("stablehlo.reshape", "stablehlo.transpose", "sdy.sharding_constraint"))
_CONSTANTS = frozenset(("stablehlo.constant", "stablehlo.broadcast_in_dim"))


def _is_constant(value: mlir.Value) -> bool:
    op = maker_of(value)
    if op is None or op.name not in _CONSTANTS:
        return False
    return all(_is_constant(operand) for operand in op.operands)


def _told_by(choice: Choice, member: Member) -> mlir.Operation | None:
    """The op that a value is told by."""
    if isinstance(member, Stack):
        return maker_of(member.value)
    return choice.question.block.ops[_maker(choice, member)]


def _maker(choice: Choice, member: Dropped) -> int:
    """Position of the op that a value is told by."""
    value = choice.question.block.core.value(member.number)
    return value.matmul if value.matmul >= 0 else value.maker


def _name(choice: Choice, member: Member) -> str:
    op = _told_by(choice, member)
    type_ = mlir.RankedTensorType(_value(choice, member).type)
    return f"{'carried' if op is None else short_name(op)} {type_text(type_)}"


def _line(choice: Choice, member: Member) -> str | None:
    op = _told_by(choice, member)
    return None if op is None else line_of(op)


def _count(member: Member) -> int:
    if not isinstance(member, Stack):
        return 1
    return mlir.RankedTensorType(member.write.results[0].type).shape[0]


def _bytes(choice: Choice, member: Member) -> float:
    if isinstance(member, Stack):
        return member.bytes
    return choice.question.block.core.value(member.number).bytes


def _seconds(choice: Choice, members: Sequence[Member]) -> float:
    """Seconds of one run of the ops that make values, of all trips."""
    block = choice.question.block
    found = 0.0
    for member in members:
        if isinstance(member, Stack):
            op = maker_of(member.value)
            found += 0.0 if op is None else block.costs.seconds_of(op)
        else:
            found += block.core.op(_maker(choice, member)).seconds
    return found
