"""Which lines to write: those around collectives that come out otherwise, none that is not missed.

Lines are added one after the other, that which is blamed for most bytes of collectives first, also
where the program comes out worse with it: what lies otherwise around it is blamed next, and some
lines are worth nothing without others. Of all these lists of lines the best one is taken. Then the
program is propagated without each of its lines, what is not missed goes, and what that made room
for is filled again, as long as that helps. Lines that cannot be written are tried when all that is
done, and stay if they gain materially.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
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
from autoshard.progress import running

ENOUGH = 0.99
"""Share of the bytes of collectives after which lines are added for what is sent besides alone."""

_BESIDES = 0.02
"""Share of the bytes that may be sent besides, of a step that may be added to it, and of the memory
that may be lacking, together, after which no line is added."""

_MISSING = 10.0
"""How much more a byte counts that is missing than one that is sent besides."""

NOTHING = 0.002
"""Share of bytes that is not worth a line."""

_MISSED_FOR_GOOD = 0.1
"""What more is lost without a line, a byte that is missing counted as ten, above which it is tried
again only in the end, when others went."""

_MATERIAL = 0.02
"""Share of bytes that lines which cannot be written must bring back together."""

_MOST_ADDED = 40
"""So many lines are added before those go that are not missed; more of a program so small that each
can be tried without twice."""

_IN_VAIN = 24
"""After so many lines with which nothing better was found, none is added."""

_OPS_TO_ADD = 3_000_000
"""So many ops are propagated to add lines: some 300 seconds of a Xeon core, 2026-11-29. Of a
program of many ops several lines are added at a time."""

_OPS_AGAIN = 5_000_000
"""So many are propagated to try without lines."""


class UsersLine(Line, Protocol):
    """A line that the user's code may be able to say."""

    @property
    def is_writable(self) -> bool:
        """Is it?"""
        ...


_LineT = TypeVar("_LineT", bound=UsersLine)


@dataclass(frozen=True)
class Chosen(Generic[_LineT]):
    """Lines, and what propagation makes of them."""

    lines: tuple[_LineT, ...]
    found: Propagated
    untried: int = 0
    """So many were not tried without: there were too many ops, or Ctrl-C was pressed."""


def is_enough(share: float, excess: float) -> bool:
    """Are lines done that bring back a share of the bytes?

    Args:
        share: 0 to 1.
        excess: Share of the bytes that is sent besides, of the step that is added to it, and of
            the memory that is lacking, together.
    """
    return share >= ENOUGH and excess <= _BESIDES


def loss_of(share: float, excess: float) -> float:
    """What is sent besides, and what is missing of what is enough, which weighs more.

    Args:
        share: See ``is_enough``.
        excess: Likewise.
    """
    return _MISSING * max(0.0, ENOUGH - share) + excess


class LineChoice(Generic[_LineT]):
    """Chooses among the lines that may be written."""

    def __init__(self, subject: Subject, lines: Sequence[_LineT], propagation: Propagation) -> None:
        self.subject = subject
        self.lines = lines
        self.numbers = {id(line): number for number, line in enumerate(lines)}
        self.propagation = propagation
        collectives = collectives_of(subject.imported, subject.plan)
        self.wanted = together(collectives)
        self.weights = LineWeights(subject, lines, collectives)
        self.spent = set[int]()
        """Numbers of lines that are not missed, or contradict others."""
        self.ops_to_add, self.ops_again = _OPS_TO_ADD, _OPS_AGAIN
        """How many ops may be propagated yet to add lines, and to try without them."""
        self.is_any_tried = False
        """Whether lines that cannot be written are tried too."""
        self.kept: frozenset[int] = frozenset()
        """Ids of lines that are not tried without."""

    def chosen(self, most: int) -> Chosen[_LineT]:
        """Lines none of which can go alone, as far as that was tried.

        Args:
            most: How many lines at most.
        """
        best = self._filled(Chosen((), self.propagation(())), most)
        material = _MISSING * _MATERIAL
        if self._loss(best.found) <= material:
            return best
        self.is_any_tried = True
        other = self._filled(best, most)
        return other if self._is_better(other.found, best.found, material) else best

    def needed(self, lines: Sequence[_LineT], most: int, kept: Sequence[_LineT]) -> Chosen[_LineT]:
        """Those of some lines none of which can go alone, as far as that was tried.

        Args:
            lines: Which.
            most: How many at most.
            kept: Those of them that stay in any case.

        Raises:
            StrategyError: No propagation keeps the lines.
        """
        self.kept = frozenset(map(id, kept))
        self.ops_again = _OPS_AGAIN
        return self._needed(Chosen(tuple(lines), self.propagation(lines)), most)

    def _filled(self, best: Chosen[_LineT], most: int) -> Chosen[_LineT]:
        """With other lines, as long as they help, and until Ctrl-C."""
        while not self._is_enough(best.found) and not running().is_interrupted:
            added = self._added(best)
            if added is best:
                break
            other = self._needed(added, most)
            if not self._is_better(other.found, best.found):
                break
            best = other
        return best

    def _added(self, start: Chosen[_LineT]) -> Chosen[_LineT]:
        """The best one of all lists of lines on the way to the plan; ``start`` if none is better.

        With each line what lies otherwise is less, and in the end nothing is to blame.
        """
        best = last = start
        in_vain = 0
        ops = len(self.subject.imported.core_ops)
        most = max(_MOST_ADDED, self.ops_again // max(1, 2 * ops))
        at_a_time = ceil(most * ops / _OPS_TO_ADD)
        while in_vain < _IN_VAIN and self.ops_to_add > 0 and not self._is_enough(last.found):
            room = most + len(start.lines) - len(last.lines)
            blamed = self._blamed(last, min(at_a_time, room))
            if not blamed:
                break
            self.ops_to_add -= ops
            lines = (*last.lines, *(self.lines[number] for number in blamed))
            found = self._propagated(lines)
            if running().is_interrupted:
                break
            if found is None:
                if len(blamed) == 1:
                    self.spent.update(blamed)
                at_a_time = ceil(len(blamed) / 2)
                continue
            last = Chosen(lines, found)
            in_vain += len(blamed)
            if self._is_better(found, best.found):
                best, in_vain = last, 0
        return best

    def _blamed(self, chosen: Chosen[_LineT], most: int) -> list[int]:
        """Numbers of the lines that are blamed for most."""
        weights = self.weights.by_collectives(self.wanted, chosen.found)
        there = {id(line) for line in chosen.lines}
        waiting = [
            number
            for number, weight in enumerate(weights)
            if weight and number not in self.spent and id(self.lines[number]) not in there
            if self.is_any_tried or self.lines[number].is_writable
        ]
        return sorted(waiting, key=lambda number: -weights[number])[:most]

    def _needed(self, chosen: Chosen[_LineT], most: int) -> Chosen[_LineT]:
        """Without the lines that are not missed, the last ones tried first.

        A line is missed if the program comes out worse without it, by what is worth a line. Where
        some went, twice as many are tried together next, and one alone where not all can go; those
        that were hardly missed before are tried again, and in the end all of them, until none can
        go. Where too many are missed, those go that are missed least.
        """
        ops = len(self.subject.imported.core_ops)
        waiting = [line for line in chosen.lines[::-1] if id(line) not in self.kept]
        missed, together = list[_LineT](), 1
        lost = dict[int, float]()
        """By the ids of lines what more is lost without them."""
        is_any_gone = False
        # Two tries are kept for each line that is too many.
        while self.ops_again >= ops * (1 + 2 * max(0, len(chosen.lines) - most)):
            if not waiting:
                if not (missed and is_any_gone):
                    break
                waiting, missed, is_any_gone = missed, [], False
            self.ops_again -= ops
            some, waiting = waiting[:together], waiting[together:]
            tried = self._without(chosen, some)
            if running().is_interrupted:
                waiting = [*some, *waiting]
                break
            if tried is not None and not self._is_better(chosen.found, tried.found):
                self.spent.update(self.numbers[id(line)] for line in some)
                chosen = tried
                waiting += [line for line in missed if lost[id(line)] <= _MISSED_FOR_GOOD]
                missed = [line for line in missed if lost[id(line)] > _MISSED_FOR_GOOD]
                together, is_any_gone = 2 * len(some), True
            elif len(some) > 1:
                waiting = [*some, *waiting]
                together = 1
            else:
                lost[id(some[0])] = self._lost(chosen, tried)
                missed += some
        chosen = self._at_most(chosen, most, lost)
        there = set(map(id, chosen.lines))
        return Chosen(chosen.lines, chosen.found, sum(id(line) in there for line in waiting))

    def _at_most(self, chosen: Chosen[_LineT], most: int, lost: dict[int, float]) -> Chosen[_LineT]:
        """Without the lines that are missed least, until there are few enough.

        A line may be missed more when others went, so it is tried again when it is its turn, and
        goes if no other one is missed less. When no try is left, the others go as they were missed.

        Args:
            chosen: The lines.
            most: How many at most.
            lost: What more was lost without some of them; the others are the last to go.
        """
        ops = len(self.subject.imported.core_ops)
        tried: dict[int, Chosen[_LineT] | None] = {}
        """Without one of the lines that there are."""
        while len(chosen.lines) > most and self.ops_again >= ops:
            line = next(iter(self._least(chosen, lost)), None)
            if line is None or running().is_interrupted:
                break
            if id(line) not in tried:
                self.ops_again -= ops
                tried[id(line)] = other = self._without(chosen, [line])
                lost[id(line)] = self._lost(chosen, other)
                continue
            without = tried[id(line)]
            if without is None:
                break
            chosen, tried = without, {}
        least = self._least(chosen, lost)
        # Together; one after the other where those that are left contradict each other then.
        for lines in (least[: max(0, len(chosen.lines) - most)], *([line] for line in least)):
            if len(chosen.lines) > most:
                chosen = self._without(chosen, lines) or chosen
        return chosen

    def _least(self, chosen: Chosen[_LineT], lost: Mapping[int, float]) -> list[_LineT]:
        """Lines that may go, those first that are missed least."""
        may_go = [line for line in chosen.lines[::-1] if id(line) not in self.kept]
        return sorted(may_go, key=lambda line: lost.get(id(line), inf))

    def _lost(self, chosen: Chosen[_LineT], other: Chosen[_LineT] | None) -> float:
        """What more is lost by other lines; without bound where they contradict each other."""
        return inf if other is None else self._loss(other.found) - self._loss(chosen.found)

    def _without(self, chosen: Chosen[_LineT], lines: Sequence[_LineT]) -> Chosen[_LineT] | None:
        gone = set(map(id, lines))
        others = tuple(other for other in chosen.lines if id(other) not in gone)
        found = self._propagated(others)
        return None if found is None else Chosen(others, found)

    def _propagated(self, lines: Sequence[_LineT]) -> Propagated | None:
        """What comes of lines; None where they contradict each other, as two operands of one op,
        and where Ctrl-C ends the choice with the best one so far."""
        task = running()
        try:
            found = self.propagation(lines)
        except StrategyError:
            return None
        except KeyboardInterrupt:
            if task.is_interrupted or not task.keeps_best:
                raise
            task.is_interrupted = True
            return None
        task.says(f"{len(lines)} lines, {self._share(found):.1%} of the bytes")
        return found

    def _is_enough(self, found: Propagated) -> bool:
        return is_enough(self._share(found), self._excess(found))

    def _is_better(self, found: Propagated, than: Propagated, least: float = NOTHING) -> bool:
        """Is it, by what is missing and by what is sent besides?"""
        return self._loss(found) < self._loss(than) - least

    def _loss(self, found: Propagated) -> float:
        return loss_of(self._share(found), self._excess(found))

    def _share(self, found: Propagated) -> float:
        return share_of(self.wanted, found.sent)

    def _excess(self, found: Propagated) -> float:
        """Share of the plan's bytes that is sent besides, of its step that is added to it, and of
        the memory that is not there."""
        besides = sum(one.bytes for one in more_than(found.sent, self.wanted))
        longer = found.plan.step_seconds / self.subject.plan.step_seconds - 1
        lacking = lacking_bytes(self.subject, found) / max(1.0, self.subject.memory_limit)
        return besides / max(1.0, sum(self.wanted.values())) + max(0.0, longer) + lacking
