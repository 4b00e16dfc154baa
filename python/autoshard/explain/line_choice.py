"""Which lines to write: those around collectives that come out otherwise, none that is not missed.

Lines are added one after the other: the program is propagated with those there are, and the next
ones are tried that are worth most, by what their values hold or by the collectives around them.
Then it is propagated without each of them, what is not missed goes, and what that made room for is
filled again, as long as more of the plan comes back or less is sent besides. Lines that cannot be
written are tried when all that is done, and stay if they gain materially.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from autoshard.errors import StrategyError
from autoshard.explain.line_weights import Line, LineWeights
from autoshard.explain.propagated_lines import Propagation
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import (
    Propagated,
    collectives_of,
    lacking_bytes,
    more_than,
    share_of,
    together,
)

ENOUGH = 0.99
"""Share of the bytes of collectives after which lines are added for what is sent besides alone."""

_BESIDES = 0.02
"""Share of the bytes that may be sent besides, of a step that may be added to it, and of the memory
that may be lacking, together, after which no line is added."""

_AIM = 0.95
"""Share of the bytes of collectives from which on what is missing is weighed against what is sent
besides."""

_MISSING = 10.0
"""How much more a byte that is missing counts then."""

_NOTHING = 0.002
"""Share of bytes that is not worth a line."""

_MATERIAL = 0.02
"""Share of bytes that lines which cannot be written must bring back, or spare, together."""

_AT_A_TIME = 2
"""So many lines are tried together."""

_IN_VAIN = 5
"""After so many lines that did not help, no other one is tried where enough is reproduced."""

_OPS_TO_ADD = 250_000
"""So many ops are propagated to add lines: some 40 seconds of a Xeon core, 2026-11-28."""

_OPS_AGAIN = 150_000
"""The same to try without lines."""


class UsersLine(Line, Protocol):
    """A line that the user's code may be able to say."""

    @property
    def is_writable(self) -> bool:
        """Is it?"""
        ...


_LineT = TypeVar("_LineT", bound=UsersLine)
_Weigh = Callable[[Propagated], list[float]]
"""What each line is worth where the program comes out so."""


@dataclass(frozen=True)
class Chosen(Generic[_LineT]):
    """Lines, and what propagation makes of them."""

    lines: tuple[_LineT, ...]
    found: Propagated
    untried: int = 0
    """So many were not tried without: there were too many ops."""


class LineChoice(Generic[_LineT]):
    """Chooses among the lines that may be written."""

    def __init__(self, subject: Subject, lines: Sequence[_LineT], propagation: Propagation) -> None:
        self.subject = subject
        self.lines = lines
        self.propagation = propagation
        collectives = collectives_of(subject.imported, subject.plan)
        self.wanted = together(collectives)
        self.weights = LineWeights(subject, lines, collectives)
        self.spent = set[int]()
        """Numbers of lines that were tried, or are not missed."""
        self.ops_to_add, self.ops_again = _OPS_TO_ADD, _OPS_AGAIN
        """How many ops may be propagated yet to add lines, and to try without them."""
        self.is_any_tried = False
        """Whether lines that cannot be written are tried too."""

    def chosen(self, most: int) -> Chosen[_LineT]:
        """Lines none of which can go alone, as far as that was tried.

        Args:
            most: How many lines at most.
        """
        best = self._filled(self._needed(self._added(Chosen((), self.propagation(())), most)), most)
        if self._is_enough(best.found):
            return best
        self.is_any_tried = True
        other = self._filled(best, most)
        return other if self._is_better(other.found, best.found, _MATERIAL) else best

    def _filled(self, best: Chosen[_LineT], most: int) -> Chosen[_LineT]:
        """With other lines in the room that is left, as long as they help."""
        while len(best.lines) < most and not self._is_enough(best.found):
            other = self._needed(self._added(best, most))
            if not self._is_better(other.found, best.found):
                break
            best = other
        return best

    def _added(self, start: Chosen[_LineT], most: int) -> Chosen[_LineT]:
        """With more lines, with each of which as much is reproduced as before, or more.

        Once enough is reproduced, each has less sent besides.
        """
        best, in_vain = start, 0
        while len(best.lines) < most and not self._is_enough(best.found):
            tried = self._next(best, most - len(best.lines))
            if not tried or self.ops_to_add < 0 or in_vain == _IN_VAIN:
                break
            taken, better = max(tried.items(), key=lambda item: self._rank(item[1].found))
            if self._is_taken(better.found, best.found):
                best, in_vain = better, 0
                self.spent.update(taken)
            else:
                in_vain += self._share(best.found) >= ENOUGH
                self.spent.update(numbers[0] for numbers in tried)
        return best

    def _next(self, start: Chosen[_LineT], room: int) -> dict[tuple[int, ...], Chosen[_LineT]]:
        """With the line that is worth most, each way.

        Where nothing is better with it, with the one that is worth most then, too: some are worth
        nothing without another one.
        """
        tried: dict[tuple[int, ...], Chosen[_LineT]] = {}
        ways: Sequence[_Weigh] = (
            partial(self.weights.by_collectives, self.wanted),
            self.weights.by_bytes,
        )
        for weigh in ways:
            numbers: tuple[int, ...] = ()
            for _ in range(min(_AT_A_TIME, room)):
                found = tried[numbers].found if numbers else start.found
                number = self._worth_most(weigh(found), numbers)
                if number is None:
                    break
                more = (*numbers, number)
                if more not in tried:
                    lines = (*start.lines, *(self.lines[number] for number in more))
                    self.ops_to_add -= len(self.subject.imported.core_ops)
                    propagated = self._propagated(lines)
                    if propagated is None:
                        self.spent.add(number)
                        continue
                    tried[more] = Chosen(lines, propagated)
                numbers = more
                if self._is_better(tried[numbers].found, start.found):
                    break
        return tried

    def _worth_most(self, weights: Sequence[float], but: Sequence[int]) -> int | None:
        waiting = [
            number
            for number, weight in enumerate(weights)
            if weight and number not in self.spent and number not in but
            if self.is_any_tried or self.lines[number].is_writable
        ]
        return max(waiting, key=lambda number: weights[number], default=None)

    def _needed(self, chosen: Chosen[_LineT]) -> Chosen[_LineT]:
        """Without the lines that are not missed, the last ones tried first.

        A line is missed if less is reproduced without it, or more is sent besides or done, beyond
        the aim both together. When one goes, those that were missed before are tried again.
        """
        found = chosen.found
        ops = len(self.subject.imported.core_ops)
        waiting, missed = list(chosen.lines[::-1]), list[_LineT]()
        while waiting and self.ops_again >= ops:
            self.ops_again -= ops
            line, *waiting = waiting
            others = tuple(other for other in chosen.lines if other is not line)
            tried = self._propagated(others)
            if tried is None or self._is_worse(tried, found):
                missed.append(line)
            else:
                chosen = Chosen(others, tried)
                waiting, missed = [*waiting, *missed], []
        return Chosen(chosen.lines, chosen.found, len(waiting))

    def _propagated(self, lines: Sequence[_LineT]) -> Propagated | None:
        """What comes of lines; None where they contradict each other, as two operands of one op."""
        try:
            return self.propagation(lines)
        except StrategyError:
            return None

    def _is_enough(self, found: Propagated) -> bool:
        return self._share(found) >= ENOUGH and self._excess(found) <= _BESIDES

    def _is_taken(self, found: Propagated, before: Propagated) -> bool:
        """Is a line kept with which the program comes out so, to be tried without later?"""
        share = self._share(before)
        if share >= _AIM:
            return self._is_better(found, before)
        return self._share(found) >= share - _NOTHING

    def _is_better(self, found: Propagated, than: Propagated, least: float = _NOTHING) -> bool:
        """Is more reproduced, or as much and less sent besides? From the aim on, both together."""
        more, less = self._more(found, than)
        if min(self._share(found), self._share(than)) >= _AIM:
            return _MISSING * more + less > least
        return more > least or (more >= -_NOTHING and less > least)

    def _is_worse(self, found: Propagated, than: Propagated) -> bool:
        more, less = self._more(found, than)
        if min(self._share(found), self._share(than)) >= _AIM:
            return _MISSING * more + less < -_NOTHING
        return more < -_NOTHING or less < -_NOTHING

    def _more(self, found: Propagated, than: Propagated) -> tuple[float, float]:
        """What is reproduced beyond another one, up to what is enough, and what is spared of it."""
        more = min(self._share(found), ENOUGH) - min(self._share(than), ENOUGH)
        return more, self._excess(than) - self._excess(found)

    def _rank(self, found: Propagated) -> tuple[int, float]:
        share = min(self._share(found), ENOUGH)
        weighed = _MISSING * max(share, _AIM) - self._excess(found)
        return round(min(share, _AIM) / _NOTHING), weighed

    def _share(self, found: Propagated) -> float:
        return share_of(self.wanted, found.sent)

    def _excess(self, found: Propagated) -> float:
        """Share of the plan's bytes that is sent besides, of its step that is added to it, and of
        the memory that is not there."""
        besides = sum(one.bytes for one in more_than(found.sent, self.wanted))
        longer = found.plan.step_seconds / self.subject.plan.step_seconds - 1
        lacking = lacking_bytes(self.subject, found) / max(1.0, self.subject.memory_limit)
        return besides / max(1.0, sum(self.wanted.values())) + max(0.0, longer) + lacking
