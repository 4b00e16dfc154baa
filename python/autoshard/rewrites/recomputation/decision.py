"""Decide what becomes of each value that waits: it is kept, computed again, or sent to the host.

A question says what may become of each item, and what a set of decisions does: how much of the
memory is still missing, and what it adds to a step. Decisions are taken greedily, in two ways, then
changed one and two at a time, and at last by branch and bound: where that comes to an end, nothing
is better.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from math import inf
from typing import Protocol

_MOST_PICKS = 3
"""A decision that was given up again is taken at most so often."""

_MOST_IN_PAIRS = 40
"""Decisions that are changed two at a time, at most: the number of pairs is the square."""

_MOST_BRANCHED = 64
"""Items among which branch and bound is tried: with more it comes to no end."""

_MOST_OTHERS = 2
"""Decisions about one item that are handed back besides the best."""

_ROUNDING = 1.0
"""Bytes above the limit by which sums of the same ones may differ."""

TIE = 1e-9
"""Seconds added to those of every decision, so that free ones are ordered by bytes."""


class Fate(Enum):
    """What becomes of a value between the halves of a step."""

    KEEP = "keep"
    AGAIN = "recompute"
    HOST = "host"

    # That of its name is asked for millions of times.
    __hash__ = object.__hash__


Chosen = Mapping[int, Fate]
"""Number of an item -> what becomes of it; others are kept."""


@dataclass(frozen=True, slots=True, order=True)
class Answer:
    """What a set of decisions does; the smaller one is better."""

    excess: float
    """Bytes above the limit, over all points of the program; 0: it fits."""
    seconds: float
    """What it adds to a step."""


class Question(Protocol):
    """What is to be decided."""

    @property
    def fates(self) -> Sequence[Sequence[Fate]]:
        """What may become of each item, besides that it is kept."""
        ...

    def answer(self, chosen: Chosen) -> Answer:
        """What decisions do."""
        ...

    def most_saved(self, item: int) -> float:
        """Seconds that a decision about an item may take away at most, whatever else is decided."""
        ...

    def least_excess(self, kept: Collection[int]) -> float:
        """Bytes above the limit that remain if these are kept, whatever becomes of the others."""
        ...

    def least_excess_with(self, chosen: Chosen) -> float:
        """Bytes above the limit that these decisions leave at least, told in less time than all
        that they do."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """The best that was found."""

    chosen: dict[int, Fate]
    answer: Answer
    is_proven: bool
    """Is nothing better, by the answers to the question?"""
    others: list[dict[int, Fate]]
    """Others that were found on the way, which may be better where parts of items are decided."""


def decide(question: Question, most_answers: int, most_seconds: float = inf) -> Decision:
    """What to keep, to compute again and to send to the host.

    Args:
        question: What is to be decided.
        most_answers: How often it is asked, at most, to improve on what greedy decisions found.
        most_seconds: Where something still has to go and decisions add more than this, nothing more
            is decided: what they add to a step is of no use to anybody.
    """
    search = _Search(question, most_seconds)
    nothing: dict[int, Fate] = {}
    best = search.answer(nothing)
    if best.excess <= 0:
        return Decision(nothing, best, is_proven=True, others=[])
    may_suffice = question.least_excess(()) <= 0
    # Where nothing suffices, what relieves most is all that is asked for: others will go.
    orders = (True, False) if may_suffice else (False,)
    grown = [search.given_back(search.grown(per_second)) for per_second in orders]
    first = min(grown, key=search.answer)
    best = search.answer(first)
    if best.excess > 0 and best.seconds > most_seconds:
        return Decision(first, best, is_proven=False, others=[])
    search.answers_left = most_answers if may_suffice else 0
    branching = _Branching(search, search.improved(first))
    is_proven = branching.run()
    ways = [(item, fate) for item, fates in enumerate(question.fates) for fate in fates]
    alone = sorted(({item: fate} for item, fate in ways), key=search.answer)
    return Decision(branching.chosen, branching.best, is_proven, [*grown, *alone[:_MOST_OTHERS]])


def decide_more(question: Question, chosen: Chosen) -> Decision:
    """These decisions with others, so that it fits: those that relieve most per second.

    Few answers are asked for: what was decided for another limit is not decided anew.
    """
    search = _Search(question, inf)
    more = search.given_back(search.grown(per_second=True, start=chosen))
    return Decision(more, search.answer(more), is_proven=False, others=[])


class _Search:
    def __init__(self, question: Question, most_seconds: float) -> None:
        self.question, self.most_seconds = question, most_seconds
        self.known: dict[frozenset[tuple[int, Fate]], Answer] = {}
        self.passed: set[frozenset[tuple[int, Fate]]] = set()
        """What was passed over without an answer."""
        self.answers_left = 0

    def answer(self, chosen: Chosen) -> Answer:
        key = frozenset(chosen.items())
        if key not in self.known:
            self.answers_left -= key not in self.passed
            self.known[key] = self.question.answer(chosen)
        return self.known[key]

    def exceeds(self, chosen: Chosen, excess: float) -> bool:
        """Do decisions leave more bytes above the limit than these, as can be told at once?"""
        key = frozenset(chosen.items())
        if key in self.known or not leaves_more(self.question, chosen, excess):
            return False
        self.passed.add(key)
        return True

    def grown(self, per_second: bool, start: Chosen | None = None) -> dict[int, Fate]:
        """Take decisions until it fits, or nothing helps.

        Args:
            per_second: Take what relieves most per second; else what relieves most.
            start: These are taken first.
        """
        chosen: dict[int, Fate] = dict(start or {})
        now = self.answer(chosen)
        waiting: list[tuple[float, int, int, int]] = []
        for item, fates in enumerate(self.question.fates):
            waiting += [(-inf, 0, item, number) for number in range(len(fates))]
        heapq.heapify(waiting)
        taken: dict[tuple[int, int], int] = {}
        picks = 0
        while waiting and now.excess > 0 and now.seconds <= self.most_seconds:
            score, seen, item, number = heapq.heappop(waiting)
            fate = self.question.fates[item][number]
            if chosen.get(item) is fate:
                continue
            if seen < picks or score == -inf:
                found = self.answer({**chosen, item: fate})
                price = max(found.seconds - now.seconds, 0.0) + TIE if per_second else 1.0
                relief = now.excess - found.excess
                if relief > -inf:
                    heapq.heappush(waiting, (-relief / price, picks, item, number))
                continue
            if score >= 0:
                break
            chosen[item] = fate
            picks += 1
            taken[item, number] = taken.get((item, number), 0) + 1
            now = self.answer(chosen)
            for other in sorted(chosen.keys() - {item}):
                rest = {one: is_ for one, is_ in chosen.items() if one != other}
                if self.exceeds(rest, now.excess):
                    continue
                found = self.answer(rest)
                if found.excess <= now.excess and found.seconds <= now.seconds:
                    number = list(self.question.fates[other]).index(chosen[other])
                    chosen, now = rest, found
                    if taken.get((other, number), 0) < _MOST_PICKS:
                        heapq.heappush(waiting, (-inf, picks, other, number))
        return chosen

    def given_back(self, chosen: dict[int, Fate]) -> dict[int, Fate]:
        """Keep what need not go, the most expensive first."""
        now = self.answer(chosen)

        def alone(item: int) -> float:
            return -self.answer({item: chosen[item]}).seconds

        for item in sorted(chosen, key=alone):
            rest = {one: fate for one, fate in chosen.items() if one != item}
            if self.exceeds(rest, now.excess):
                continue
            found = self.answer(rest)
            if found <= now:
                chosen, now = rest, found
        return chosen

    def improved(self, chosen: dict[int, Fate]) -> dict[int, Fate]:
        """Change one decision, or two at once, as long as that is better."""
        now = self.answer(chosen)
        ways = [(n, fate) for n, fates in enumerate(self.question.fates) for fate in fates]
        ways += [(n, Fate.KEEP) for n in range(len(self.question.fates))]
        singles = [(way,) for way in ways]
        pairs = list(combinations(ways, 2)) if len(ways) <= _MOST_IN_PAIRS else []
        is_better = True
        while is_better:
            is_better = False
            for changes in (*singles, *pairs):
                other = changed(chosen, changes)
                if other == chosen:
                    continue
                if self.answers_left <= 0:
                    return chosen
                found = self.answer(other)
                if found < now:
                    chosen, now, is_better = other, found, True
        return chosen


def leaves_more(question: Question, chosen: Chosen, excess: float) -> bool:
    """Do decisions leave more than so many bytes above the limit for certain?"""
    return question.least_excess_with(chosen) > (1 + TIE) * excess + _ROUNDING


def changed(chosen: Chosen, changes: Collection[tuple[int, Fate]]) -> dict[int, Fate]:
    """Decisions, with some of them taken otherwise."""
    found = {**chosen, **dict(changes)}
    return {item: fate for item, fate in found.items() if fate is not Fate.KEEP}


class _Branching:
    """Decides one item after the other, and goes back where nothing better can follow."""

    def __init__(self, search: _Search, chosen: dict[int, Fate]) -> None:
        self.search, self.question = search, search.question
        self.best, self.chosen = search.answer(chosen), chosen
        fates = self.question.fates
        whole = self.question.least_excess(())
        # What must go first: the bound knows most of it.
        self.order = sorted(
            (item for item in range(len(fates)) if fates[item]),
            key=lambda item: whole - self.question.least_excess((item,)),
        )
        # By depth: what all decisions from there on may take away.
        saved = [self.question.most_saved(item) for item in self.order]
        self.most_saved = [sum(saved[depth:]) for depth in range(len(saved) + 1)]

    def run(self) -> bool:
        """Find something better; is that the best there is?"""
        if len(self.order) > _MOST_BRANCHED:
            return False
        self._visit(0, {}, [])
        return self.search.answers_left > 0

    def _visit(self, depth: int, chosen: dict[int, Fate], kept: list[int]) -> None:
        if self.search.answers_left <= 0:
            return
        now = self.search.answer(chosen)
        if now < self.best:
            self.best, self.chosen = now, dict(chosen)
        saved = self.most_saved[depth]
        least = Answer(self.question.least_excess(kept), now.seconds - saved)
        is_best_below = saved == 0 and now.excess <= least.excess
        if depth == len(self.order) or is_best_below or least >= self.best:
            return
        item = self.order[depth]
        ways = [Fate.KEEP, *self.question.fates[item]]
        ways.sort(key=lambda fate: fate is not self.chosen.get(item, Fate.KEEP))
        for fate in ways:
            if fate is Fate.KEEP:
                self._visit(depth + 1, chosen, [*kept, item])
            else:
                self._visit(depth + 1, {**chosen, item: fate}, kept)
