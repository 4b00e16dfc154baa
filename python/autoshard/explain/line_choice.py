"""Which lines to write: those around collectives that come out otherwise, none that is not missed.

Lines are added one after the other: the program is propagated with those there are, and the next
ones are tried that are worth most, by what their values hold or by the collectives around them.
Then it is propagated without each of them, what is not missed goes, and what that made room for is
filled again, as long as more of the plan comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from autoshard.explain.line_weights import Line, LineWeights
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import (
    Propagated,
    collectives_of,
    propagated,
    share_of,
    together,
)
from autoshard.importer.pins import DimPin, Pin, Pinned

ENOUGH = 0.99
"""Share of the bytes of collectives after which no line is added, unless the step is longer; then
as many as are found at once."""

_LONGER = 0.02
"""By which share a step may be longer with which no line is added."""

_NOTHING = 0.002
"""Share of bytes that is not worth a line."""

_AT_A_TIME = (1, 2)
"""Lines that are tried together: some are worth nothing without another one."""

_OPS_AGAIN = 2_000_000
"""So many ops are propagated to try without lines: 12 seconds of a Xeon core, 2026-11-27."""

_OPS_IN_FULL = 400_000
"""The same where layers are not folded."""

_LineT = TypeVar("_LineT", bound=Line)
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

    def __init__(self, subject: Subject, lines: Sequence[_LineT]) -> None:
        self.subject = subject
        self.lines = lines
        collectives = collectives_of(subject.imported, subject.plan)
        self.wanted = together(collectives)
        self.weights = LineWeights(subject, lines, collectives)
        self.spent = set[int]()
        """Numbers of lines that were tried, or are not missed."""
        self.fold = True
        """Are equal layers cut alike?"""
        self.ops_left = 0
        """How many ops may be propagated yet to try without lines."""

    def chosen(self, most: int) -> Chosen[_LineT]:
        """Lines none of which can go alone, as far as that was tried.

        Neither way to weigh lines finds the better ones in all programs: both are tried, the
        second one where the first does not bring back enough.

        Args:
            most: How many lines at most.
        """
        by_bytes = self.weights.by_bytes
        first: Sequence[_Weigh] = [by_bytes]
        best = self._chosen(first, most)
        if self._share(best.found) < ENOUGH:
            second = [partial(self.weights.by_collectives, self.wanted), by_bytes]
            other = self._chosen(second, most)
            best = max(best, other, key=lambda one: self._share(one.found))
        return best

    def in_full(self, lines: Sequence[_LineT]) -> Propagated:
        """What propagation makes of lines, each layer decided for itself."""
        self.fold = False
        found = self._propagated(lines)
        self.fold = True
        return found

    def _chosen(self, ways: Sequence[_Weigh], most: int) -> Chosen[_LineT]:
        """Lines by some weights, filled up as long as more comes back.

        Where equal layers come out unlike if each is decided for itself, lines are added so.
        """
        self.spent.clear()
        self.ops_left = _OPS_AGAIN
        best = self._filled(Chosen((), self._propagated(())), ways, most)
        full = replace(best, found=self.in_full(best.lines))
        if self._share(full.found) < min(ENOUGH, self._share(best.found) - _NOTHING):
            self.fold = False
            self.ops_left = _OPS_IN_FULL
            full = self._filled(full, ways, most)
            self.fold = True
        return full

    def _filled(self, start: Chosen[_LineT], ways: Sequence[_Weigh], most: int) -> Chosen[_LineT]:
        """With lines none of which can go alone, as long as more comes back."""
        best = self._needed(self._added(start, ways, most))
        while len(best.lines) < most and self._share(best.found) < ENOUGH:
            other = self._needed(self._added(best, ways, most))
            if self._share(other.found) < self._share(best.found) + _NOTHING:
                break
            best = other
        return best

    def _added(self, start: Chosen[_LineT], ways: Sequence[_Weigh], most: int) -> Chosen[_LineT]:
        """With more lines, with each of which as much is reproduced as before, or more."""
        best = start
        while len(best.lines) < most and not self._is_enough(best.found):
            choices = self._worth_most(best.found, ways, most - len(best.lines))
            if not choices:
                break
            tried = [self._with(best, numbers) for numbers in choices]
            better = max(tried, key=lambda one: self._share(one.found))
            taken = choices[tried.index(better)]
            if self._share(better.found) >= self._share(best.found) - _NOTHING:
                best = better
                self.spent.update(taken)
            else:
                self.spent.update(numbers[0] for numbers in choices)
        return best

    def _with(self, start: Chosen[_LineT], numbers: Sequence[int]) -> Chosen[_LineT]:
        lines = (*start.lines, *(self.lines[number] for number in numbers))
        return Chosen(lines, self._propagated(lines))

    def _worth_most(self, found: Propagated, ways: Sequence[_Weigh], room: int) -> list[list[int]]:
        """The lines that are worth most, each way."""
        choices: list[list[int]] = []
        for weights in (weigh(found) for weigh in ways):
            waiting = [n for n, weight in enumerate(weights) if weight and n not in self.spent]
            waiting.sort(key=lambda number: (-weights[number], number))
            choices += [waiting[:number] for number in _AT_A_TIME if number <= room]
        return [one for n, one in enumerate(choices) if one and one not in choices[:n]]

    def _needed(self, chosen: Chosen[_LineT]) -> Chosen[_LineT]:
        """Without the lines that are not missed, the last ones tried first.

        A line is missed if less is reproduced without it or the step is longer. When one goes,
        those that were missed before are tried again.
        """
        enough = self._share(chosen.found) - _NOTHING
        longest = chosen.found.plan.step_seconds * (1 + _NOTHING)
        ops = len(self.subject.imported.core_ops)
        waiting, missed = list(chosen.lines[::-1]), list[_LineT]()
        while waiting and self.ops_left >= ops:
            self.ops_left -= ops
            line, *waiting = waiting
            others = tuple(other for other in chosen.lines if other is not line)
            tried = self._propagated(others)
            if self._share(tried) < enough or tried.plan.step_seconds > longest:
                missed.append(line)
            else:
                chosen = Chosen(others, tried)
                waiting, missed = [*waiting, *missed], []
        return Chosen(chosen.lines, chosen.found, len(waiting))

    def _is_enough(self, found: Propagated) -> bool:
        longest = self.subject.plan.step_seconds * (1 + _LONGER)
        return self._share(found) >= ENOUGH and found.plan.step_seconds <= longest

    def _share(self, found: Propagated) -> float:
        return share_of(self.wanted, found.sent)

    def _propagated(self, lines: Sequence[_LineT]) -> Propagated:
        copy = count(self.subject.imported.program.num_values)
        pins = [
            Pinned(next(copy) if line.readers else value, pin, None, line.name)
            for line in lines
            for pin in [Pin(tuple(map(DimPin, line.dims)))]
            for value in line.values
        ]
        readers = [reader for line in lines for reader in line.readers]
        return propagated(self.subject, pins, readers, fold=self.fold)
