"""Parts of groups of equal values: of a group only as many go as have to.

Values of a group are in the order of the program, those that wait the longest first; the first ones
go, the others are kept, or go another way. A group that goes as a whole may also be kept for a part
of another one, which a search among whole groups does not see.

What constants change was measured by the planned steps of GPT-2 XL on v5e:4x4 within 6 GiB and
Llama 2 7B on v5p:2x2x2 within 40 GiB (bench/speed/recompute_speed.py), on 2026-11-26.
"""

from __future__ import annotations

import heapq
from math import inf

from autoshard.rewrites.recomputation.decision import TIE, Answer, Chosen, Fate, leaves_more
from autoshard.rewrites.recomputation.question import BlockQuestion, Group, Stacked

_MOST_EXCHANGED = 3
"""Decisions that parts of other groups are tried for: those that are dearest for a byte."""

_LEAST_SAVED = 0.01
"""Share of the seconds of all decisions that an exchange has to save.

0.974 and 1.929 s; with 5% 0.981 and 1.939, with none 0.974 and 1.920 and more exchanges to try.
"""

_LITTLE = 0.05
"""They relieve at most this share of what all decisions do: others may do that, too.

With 1% to 25% the steps are the same.
"""

_HOPE = 2.0
"""So many times the bytes a second of the next decision may be had of those behind it.

With 1 to 8 the steps are the same.
"""

Parts = tuple[Answer, dict[int, Fate], dict[int, Fate]]
"""What decisions do, the decisions by item, and those about single values."""


def with_parts(question: BlockQuestion, chosen: Chosen) -> Parts:
    """Decisions, with those about parts of groups that make them better."""
    question.apart = {}
    for number in sorted(chosen):
        item = question.items[number]
        if isinstance(item, Group) and len(item.members) > 1:
            _split(question, chosen, number, item)
    return question.answer(chosen), dict(chosen), question.apart


def _split(question: BlockQuestion, chosen: Chosen, number: int, group: Group) -> None:
    """Let the last values of a group, which wait the shortest, be kept, or go another way."""
    now = question.answer(chosen)
    count = len(group.members)
    for fate in (Fate.KEEP, *group.fates):
        step, taken = count, 0
        while step > 0 and fate is not chosen[number]:
            before = dict(question.apart)
            part = group.members[max(0, count - taken - step) : count - taken]
            question.apart.update({one.number: fate for one in part})
            is_worse = fate is Fate.KEEP and leaves_more(question, chosen, now.excess)
            found = now if is_worse else question.answer(chosen)
            if found < now and part:
                now, taken = found, taken + step
            else:
                question.apart = before
                step //= 2


def exchanged(question: BlockQuestion, parts: Parts, most_answers: int) -> Parts:
    """Decisions that are given up for first values of other groups, where that is better.

    Args:
        question: What is decided.
        parts: What was decided.
        most_answers: How often the question is asked, at most.
    """
    exchange = _Exchange(question, parts, most_answers)
    while exchange.improve():
        pass
    return exchange.best


class _Exchange:
    def __init__(self, question: BlockQuestion, parts: Parts, most_answers: int) -> None:
        self.question, self.best = question, parts
        self.answers_left = most_answers

    def improve(self) -> bool:
        """Give up one of the decisions that are dearest for a byte; is that better?"""
        now, chosen, apart = self.best
        if self.answers_left <= len(chosen):
            return False
        least = _LEAST_SAVED * abs(now.seconds)
        relieved = self._answer({}, {}).excess - now.excess
        dear: list[tuple[float, int]] = []
        for number in chosen:
            rest = {one: fate for one, fate in chosen.items() if one != number}
            found = self._answer(rest, apart)
            price, missing = now.seconds - found.seconds, found.excess - now.excess
            if price > least and missing < _LITTLE * relieved:
                dear.append((price / max(missing, 1.0), number))
        aim = Answer(now.excess, now.seconds - least)
        dearest = sorted(dear, reverse=True)[:_MOST_EXCHANGED]
        return any(self._filled(number, aim) for _, number in dearest)

    def _answer(self, chosen: Chosen, apart: dict[int, Fate]) -> Answer:
        self.answers_left -= 1
        self.question.apart = apart
        return self.question.answer(chosen)

    def _filled(self, number: int, aim: Answer) -> bool:
        """Take what relieves most per second, until something better than ``aim`` is found."""
        if self.answers_left <= 0:
            return False
        _, chosen, apart = self.best
        chosen = {one: fate for one, fate in chosen.items() if one != number}
        now = self._answer(chosen, apart)
        waiting = [
            (-inf, 0, item, place)
            for item, fates in enumerate(self.question.fates)
            for place in range(len(fates))
        ]
        heapq.heapify(waiting)
        known: dict[tuple[int, int], Parts] = {}
        sizes: dict[tuple[int, int], int] = {}
        picks = 0
        while waiting and self.answers_left > 0 and now.excess > aim.excess:
            score, seen, item, place = heapq.heappop(waiting)
            if score > -inf and seen == picks:
                if -_HOPE * score * (aim.seconds - now.seconds) < now.excess - aim.excess:
                    return False
                now, chosen, apart = known[item, place]
                picks += 1
                sizes[item, place] = 2 * sizes.get((item, place), 1)
                heapq.heappush(waiting, (-inf, picks, item, place))
                continue
            fate = self.question.fates[item][place]
            for size in sorted({1, sizes.get((item, place), 1)}, reverse=True):
                way = _more(item, self.question.items[item], fate, size, chosen, apart)
                if way is None or self.answers_left <= 0:
                    break
                found = self._answer(*way)
                if found.seconds >= aim.seconds:
                    continue
                relief = now.excess - found.excess
                if relief > 0:
                    known[item, place] = (found, *way)
                    sizes[item, place] = size
                    price = max(found.seconds - now.seconds, 0.0) + TIE
                    heapq.heappush(waiting, (-relief / price, picks, item, place))
                    break
        if not now < aim:
            return False
        self.best = now, chosen, apart
        return True


def _more(
    item: int,
    group: Group | Stacked,
    fate: Fate,
    size: int,
    chosen: dict[int, Fate],
    apart: dict[int, Fate],
) -> tuple[dict[int, Fate], dict[int, Fate]] | None:
    """Decisions by which so many values more of a group go, or a stack; None: it has gone.

    Values of the group that go another way still do.
    """
    if chosen.get(item, fate) is not fate:
        return None
    if not isinstance(group, Group):
        return None if item in chosen else ({**chosen, item: fate}, apart)
    numbers = [one.number for one in group.members]
    kept = [one for one in numbers if item not in chosen or apart.get(one) is Fate.KEEP]
    if not kept:
        return None
    parts = {**apart, **dict.fromkeys(kept[size:], Fate.KEEP)}
    for one in kept[:size]:
        parts.pop(one, None)
    return {**chosen, item: fate}, parts
