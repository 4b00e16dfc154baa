"""Which lines are worth writing: those around collectives that propagation finds otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from autoshard import _core
from autoshard._core import Place
from autoshard.explain.question import Dims, Subject
from autoshard.explain.reproduced import Propagated, Sent, SentOnce
from autoshard.importer.imported_program import NO_VALUE

MADE = -1
"""In place of the number of an operand: what the op makes, before it is moved."""

_Spot = tuple[int, int]
"""(-1, a value), or (an op, number of the operand that it reads or ``MADE``)."""


class Line(Protocol):
    """A line that may be written."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    @property
    def values(self) -> tuple[int, ...]:
        """Those that it speaks of."""
        ...

    @property
    def dims(self) -> Dims:
        """How they are cut."""
        ...

    @property
    def readers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each value the (op, operand) that read it so, or the (op, ``MADE``) that makes it so;
        none if all of the value is so; empty if all values are so."""
        ...


def values_of(line: Line) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """The values of a line, and the (op, operand) that read them so; none: all of a value is so."""
    return zip(line.values, line.readers or ((),) * len(line.values), strict=True)


class LineWeights:
    """What lines are worth where the program is propagated with some others.

    A line counts if one of its values comes out otherwise than planned: by the bytes of collectives
    around its values that the plan has and propagation has not, or the other way round. Around are
    the values that an op reads and makes which asks for the collective.
    """

    def __init__(self, subject: Subject, lines: Sequence[Line], wanted: Sequence[SentOnce]) -> None:
        self.program = subject.imported.program
        self.lines = lines
        self.planned = subject.plan
        self.wanted = wanted
        self.results: defaultdict[int, list[int]] = defaultdict(list)
        for value, maker in enumerate(self.program.makers.tolist()):
            if maker != NO_VALUE:
                self.results[maker].append(value)

    def by_collectives(self, wanted: Sent, found: Propagated) -> list[float]:
        """For each line the bytes of collectives around its values that come out otherwise."""
        blame: defaultdict[_Spot, float] = defaultdict(float)
        self._blame(blame, self.planned, self.wanted, wanted, found.sent)
        self._blame(blame, found.plan, found.collectives, found.sent, wanted)
        cuts = _Cuts(found)
        return [
            sum(blame.get(spot, 0.0) for spots in cuts.of(line) for spot in spots)
            for line in self.lines
        ]

    def by_ops(
        self, blame: Mapping[int, float], found: Propagated, waiting: Collection[int]
    ) -> dict[int, float]:
        """For each line the bytes that are blamed on ops around its values.

        Those count whose values come out otherwise than planned; around an op where all do as
        planned, those of its operands and of what it makes, which the compiler may cut otherwise.

        Args:
            blame: Bytes by the core's ops.
            found: The program with the lines that there are.
            waiting: Numbers of the lines that may be added.
        """
        at: defaultdict[_Spot, list[int]] = defaultdict(list)
        otherwise: set[tuple[int, _Spot]] = set()
        cuts = _Cuts(found)
        for number in waiting:
            line = self.lines[number]
            otherwise.update((number, spot) for spots in cuts.of(line) for spot in spots)
            for value, readers in values_of(line):
                for spot in readers or [(-1, value)]:
                    at[spot].append(number)
        weights: defaultdict[int, float] = defaultdict(float)
        for op, size in blame.items():
            around = {(number, spot) for spot in self._around(op) for number in at.get(spot, ())}
            operands = {(number, spot) for number, spot in around if spot[0] == op}
            for number in {number for number, _ in (around & otherwise or operands)}:
                weights[number] += size
        return dict(weights)

    def _blame(
        self,
        blame: defaultdict[_Spot, float],
        plan: _core.CorePlan,
        collectives: Sequence[SentOnce],
        sent: Sent,
        than: Sent,
    ) -> None:
        """What is sent of a plan beyond another one goes to the spots around."""
        table = plan.reshards
        places, indices, values = table.place, table.index, table.value
        for one in collectives:
            more = sent[one.key] - than.get(one.key, 0.0)
            if more <= 0 or not one.bytes:
                continue
            row = one.reshard
            size = one.bytes * more / sent[one.key]
            spots = {(-1, values[row])}
            if places[row] is not Place.JOIN:
                spots.update(self._around(indices[row]))
            for spot in spots:
                blame[spot] += size

    def _around(self, op: int) -> Iterator[_Spot]:
        for number, value in enumerate(self.program.operands_of(op)):
            yield op, number
            yield -1, value
        yield op, MADE
        for value in self.results[op]:
            yield -1, value


class _Cuts:
    """How values and operands come out."""

    def __init__(self, found: Propagated) -> None:
        plan = found.plan
        self.rows: list[Dims] = [tuple(map(tuple, dims)) for dims in plan.shardings]
        self.of_value, self.of_op = plan.value_sharding, plan.op_strategy
        self.strategies = plan.strategies

    def of(self, line: Line) -> Iterator[Iterator[_Spot]]:
        """For each value of a line where it is cut otherwise than the line says."""
        return (self._otherwise(line, value, readers) for value, readers in values_of(line))

    def _otherwise(
        self, line: Line, value: int, readers: tuple[tuple[int, int], ...]
    ) -> Iterator[_Spot]:
        if not readers and self.rows[self.of_value[value]] != line.dims:
            yield -1, value
        for op, operand in readers:
            if operand == MADE:
                continue  # a plan does not say how else it would be made
            read = self.rows[self.strategies[self.of_op[op]][0][operand]]
            if read != line.dims:
                yield op, operand
