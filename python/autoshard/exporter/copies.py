"""What each value of a planned module has become, and its copies in other shardings.

Close readers that want the same share a copy, and those that want a part of it cut it from there.
A reader far behind the others gets a copy of its own, behind a barrier, because the plan has not
kept the first one until then. What is cheap is computed again for every sharding that a reader
wants.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autoshard.exporter.callees import Callees
from autoshard.exporter.constraints import Constraints
from autoshard.exporter.distances import Distances, is_op_of_core
from autoshard.exporter.steps import only_cuts
from autoshard.ir import mlir
from autoshard.planned.module import Kind, Placement, PlannedBlock


@dataclass(slots=True)
class _Source:
    """What a value of the planned module has become."""

    value: mlir.Value
    sharding: Placement | None
    recomputed: mlir.Operation | None = None
    """The op to make again, where that is cheaper than to move its result."""
    copies: dict[Placement, mlir.Value] = field(default_factory=dict[Placement, mlir.Value])
    """Copies in other shardings that dominate the op at hand."""
    group_of: dict[Placement, int] = field(default_factory=dict[Placement, int])
    """Which readers share a copy."""
    group: int = 0
    """Number of the readers at hand: each is near to the one before, whatever it wants."""
    read_at: int | None = None
    """Where the last of them is: as ``Wish.position``."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A reader of a value, and what it wants."""

    position: int
    """Ops of the program before it."""
    wanted: Placement
    reader: mlir.Operation


class Copies:
    """Follows the values of one function through one walk over it."""

    def __init__(self, constraints: Constraints, callees: Callees, distances: Distances) -> None:
        self._constraints = constraints
        self._callees = callees
        self._distances = distances
        self._sources: dict[mlir.Value, _Source] = {}
        self._made_in_block: list[tuple[_Source, Placement]] = []
        self._wishes: dict[mlir.Value, list[Wish]] = {}
        self._position = 0
        """Ops before the one at hand, those that run inside them included."""

    @contextmanager
    def inside(self, block: PlannedBlock) -> Generator[None]:
        """While the ops of a block are walked: copies that are made there end with it."""
        outer = self._made_in_block, self._wishes, self._position
        self._made_in_block, self._wishes = [], self._wishes_in(block)
        yield
        for source, sharding in self._made_in_block:
            source.copies.pop(sharding, None)
        self._made_in_block, self._wishes, self._position = outer

    def go_past(self, ops: int) -> None:
        """Leave so many ops of the program behind."""
        self._position += ops

    def become(self, value: mlir.Value, now: mlir.Value, sharding: Placement | None) -> None:
        """Say that ``value`` has become ``now``, which is held in ``sharding``."""
        self._sources[value] = _Source(now, sharding)

    def be_recomputed(self, op: mlir.Operation, sharding: Placement | None) -> None:
        """Say that the one result of an op is made again where it is wanted otherwise."""
        (result,) = op.results
        self._sources[result] = _Source(result, sharding, op)

    def pass_on(
        self, operand: mlir.Value, result: mlir.Value, wanted: Placement | None, op: mlir.Operation
    ) -> mlir.Value:
        """What a result becomes that is nothing but an operand, wanted in some sharding."""
        source = self._sources[operand]
        if source.recomputed:
            self._sources[result] = _Source(source.value, wanted, source.recomputed, source.copies)
            return source.value
        value = self.read(operand, wanted, op)
        self._sources[result] = _Source(value, wanted)
        return value

    def only_wish(self, value: mlir.Value) -> Wish | None:
        """The wish of the one reader that ``value`` has in the block; None if there are more."""
        wishes = self._wishes.get(value, ())
        return wishes[0] if len(wishes) == 1 else None

    def read(
        self, operand: mlir.Value, wanted: Placement | None, reader: mlir.Operation
    ) -> mlir.Value:
        """``operand`` in the sharding its reader wants."""
        source = self._sources[operand]
        if source.recomputed:
            return self._made_again(source, wanted or source.sharding)
        if is_op_of_core(reader):
            if source.read_at is not None and not self._is_near(source.read_at):
                source.group += 1
            source.read_at = self._position
        if wanted is None or source.sharding is None or wanted is source.sharding:
            return source.value
        copy = source.copies.get(wanted)
        if copy is None or source.group_of[wanted] != source.group:
            copy = self._copied(operand, source, wanted, reader, has_older=copy is not None)
            source.copies[wanted] = copy
            source.group_of[wanted] = source.group
            self._made_in_block.append((source, wanted))
        return copy

    def _copied(
        self,
        operand: mlir.Value,
        source: _Source,
        wanted: Placement,
        reader: mlir.Operation,
        *,
        has_older: bool,
    ) -> mlir.Value:
        """A new copy; behind a barrier if there is an older one, which is not kept until here."""
        assert source.sharding is not None
        where, why = mlir.InsertionPoint(reader), reader.location
        larger = self._larger_copy(operand, source.sharding, wanted)
        if larger is not None:
            start = self.read(operand, larger, reader)
            return self._constraints.moved(start, larger, wanted, where, why)
        start = source.value
        if has_older:
            start = self._constraints.behind_barrier(start, where, why)
            start = self._constraints.held(start, source.sharding, where, why)
        return self._constraints.moved(start, source.sharding, wanted, where, why)

    def _larger_copy(
        self, operand: mlir.Value, held: Placement, wanted: Placement
    ) -> Placement | None:
        """A copy that a close reader has or will ask for, of which ``wanted`` is a part."""
        if only_cuts(held.sharding, wanted.sharding):
            return None
        for wish in self._wishes.get(operand, ()):
            if (
                wish.wanted is not wanted
                and wish.wanted is not held
                and self._is_near(wish.position)
                and only_cuts(wish.wanted.sharding, wanted.sharding)
            ):
                return wish.wanted
        return None

    def _made_again(self, source: _Source, wanted: Placement | None) -> mlir.Value:
        """The result of a cheap op in the sharding its reader wants; the first asks for free."""
        op = source.recomputed
        if op is None or wanted is None or not wanted.rank:
            return source.value
        copy = source.copies.get(wanted)
        if copy is not None:
            return copy
        made = op.clone(ip=mlir.InsertionPoint(op)) if source.copies else op
        where = mlir.InsertionPoint.after(made)
        copy = self._constraints.held(made.results[0], wanted, where, op.location)
        source.copies[wanted] = copy
        return copy

    def _is_near(self, position: int) -> bool:
        return self._distances.are_near(self._position, position)

    def _wishes_in(self, block: PlannedBlock) -> dict[mlir.Value, list[Wish]]:
        """Who in the block wants what of a value, in order."""
        found: dict[mlir.Value, list[Wish]] = {}
        position = self._position
        for planned in block.ops:
            if planned.kind is Kind.COMPUTE:
                for operand, wanted in zip(
                    planned.op.operands, self._callees.operands(planned), strict=False
                ):
                    if wanted is not None and wanted.rank:
                        found.setdefault(operand, []).append(Wish(position, wanted, planned.op))
            position += self._distances.ops_of(planned)
        return found
