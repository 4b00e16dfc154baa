"""Which ops run again, and before which reader, when some values are not kept.

Whatever a late reader needs that is not in memory is computed before it, from what is. What has
been computed again once is there for all readers behind.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from autoshard.rewrites.recomputation.block import Block, Gap, Kind


@dataclass(slots=True)
class Batch:
    """Ops that run again before one reader."""

    position: int
    """Position of the reader."""
    ops: list[int] = field(default_factory=list[int])
    """Positions of the originals, in the order in which the copies run; none if the reader
    finds all it needs among earlier copies."""
    inputs: list[int] = field(default_factory=list[int])
    """Values from memory that they read."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A value that is not kept between two of its readers."""

    number: int
    """Number of the value in the block."""
    gap: Gap
    """Where it is not kept."""


@dataclass(slots=True)
class Use:
    """When a value that was sent to the host is read behind its gap."""

    first: int
    """Position of the first op that reads it, or before which copies do that read it."""
    end: int
    """Point from which nobody reads it any more."""


@dataclass(slots=True)
class Clones:
    """All batches for one set of dropped values, and what they change."""

    batches: list[Batch]
    seconds: float
    """Seconds of all ops that run again, with what they send."""
    delta: list[tuple[int, float]]
    """(point, bytes): from this point on so many bytes more live on a device."""
    cloned: set[int]
    """Values that are computed again."""
    uses: dict[int, Use]
    """Values that are on the host meanwhile -> when they are read again."""


def clones_for(
    block: Block,
    dropped: Collection[Dropped],
    sent: Collection[Dropped] = (),
    *,
    keep_sent: bool = False,
    keep_parameters: bool = False,
) -> Clones:
    """What has to run again.

    Args:
        block: The ops.
        dropped: Values that are not kept.
        sent: Values that are on the host instead, and back when something reads them: of them
            copies are made, never of what they are made of. Their memory is not in ``delta``.
        keep_sent: Results of collectives are kept even where nobody else needs them.
        keep_parameters: So is what is made of parameters alone, and what is gathered of them.
    """
    return _Builder(block, dropped, sent, keep_sent, keep_parameters).build()


class _Builder:
    def __init__(
        self,
        block: Block,
        dropped: Collection[Dropped],
        sent: Collection[Dropped],
        keep_sent: bool,
        keep_parameters: bool,
    ) -> None:
        self.block = block
        self.values = block.values
        self.dropped = {one.number: one for one in dropped}
        self.sent = {one.number: one for one in sent}
        self.uses: dict[int, Use] = {}
        self.keep_sent = keep_sent
        self.keep_parameters = keep_parameters
        self.cloned: set[int] = set()
        self.batches: list[Batch] = []
        self.end: dict[int, int] = {}
        """Value -> when it ends now, if that is later than before."""
        self.delta: list[tuple[int, float]] = []
        self.served: dict[int, frozenset[int]] = {}
        """Position of each reader that has what it needs -> values that it does not read as they
        were made any more."""

    def build(self) -> Clones:
        block = self.block
        positions: set[int] = set()
        for one in (*self.dropped.values(), *self.sent.values()):
            positions.update(p for p in block.demanders[one.number] if block.is_late(p, one.gap))
        for position in sorted(positions):
            self.served[position] = frozenset(self._serve(position))
        self._end_dropped()
        dead = self._dead()
        again = {op for batch in self.batches for op in batch.ops} - dead
        seconds = sum(block.seconds[op] for op in again)
        return Clones(self.batches, seconds, self.delta, self.cloned, self.uses)

    def _serve(self, position: int) -> list[int]:
        """Copy what the op at ``position`` needs; the values of which it reads copies."""
        needed = [v for v in self.block.operands[position] if self._needs_copy(v, position)]
        if not needed:
            return needed
        batch = Batch(position)
        for number in needed:
            self._copy(number, batch)
        self.batches.append(batch)
        if batch.ops:
            self._account(batch)
        return needed

    def _dead(self) -> set[int]:
        """Ops whose copies replace them: nobody reads the originals any more."""
        copied = {op for batch in self.batches for op in batch.ops}
        read = {number for batch in self.batches for number in batch.inputs} | self.sent.keys()
        dead: set[int] = set()
        for op in sorted(copied, reverse=True):
            if all(
                reader in dead or value in self.served.get(reader, ())
                for value in self.block.results[op]
                for reader in self.values[value].readers
            ) and read.isdisjoint(self.block.results[op]):
                dead.add(op)
        return dead

    def _needs_copy(self, number: int, position: int) -> bool:
        """Is the value, read at ``position``, or what a fusion would make it of, not there?"""
        if number in self.cloned:
            return True
        value = self.values[number]
        if value.kind is Kind.STORED:
            return self._is_gone(number, position)
        if value.kind is not Kind.FUSED or value.maker < 0:
            return False
        found = False
        stack, seen = [number], {number}
        while stack and not found:
            maker = self.values[stack.pop()].maker
            if maker in self.served:  # it reads the copies
                continue
            for operand in self.block.operands[maker]:
                inner = self.values[operand]
                if operand in seen:
                    continue
                seen.add(operand)
                if operand in self.cloned:
                    found = True
                elif inner.kind is Kind.STORED:
                    found = found or self._is_gone(operand, position)
                elif inner.kind is Kind.FUSED:
                    stack.append(operand)
        return found

    def _is_gone(self, number: int, position: int) -> bool:
        """Is a value, as it was made, not in memory for the op at ``position``?"""
        one = self.dropped.get(number) or self.sent.get(number)
        return one is not None and self.block.is_late(position, one.gap)

    def _use(self, number: int, position: int) -> None:
        """An op at ``position`` reads a value that was sent to the host."""
        end = self.block.point[position] + 1
        use = self.uses.setdefault(number, Use(position, end))
        use.first, use.end = min(use.first, position), max(use.end, end)

    def _copy(self, number: int, batch: Batch) -> None:
        """Add the ops that make a value to the batch, those that they need first."""
        if number in self.sent:
            self._use(number, batch.position)
            return
        stack = [(number, False)]
        inputs = set(batch.inputs)
        while stack:
            current, is_ready = stack.pop()
            if current in self.cloned:
                continue
            op = self.values[current].maker
            if is_ready:
                batch.ops.append(op)
                self.cloned.update(self.block.results[op])
                continue
            stack.append((current, True))
            for operand in self.block.operands[op]:
                if operand in self.cloned or self.values[operand].kind is Kind.FREE:
                    continue
                if self._is_copied(operand, batch):
                    stack.append((operand, False))
                elif operand not in inputs:
                    inputs.add(operand)
                    batch.inputs.append(operand)
                    if operand in self.sent and batch.position > self.sent[operand].gap.early:
                        self._use(operand, batch.position)

    def _is_copied(self, number: int, batch: Batch) -> bool:
        """Is an operand of a copied op computed again, rather than read from memory?"""
        value = self.values[number]
        if value.kind is Kind.KEPT or value.maker < 0 or number in self.sent:
            return False
        is_gathered = value.maker in self.block.gathers
        if self.keep_parameters and (is_gathered or number in self.block.made_of_arguments):
            return False
        if value.kind is Kind.FUSED:
            return True
        if number in self.dropped:
            return batch.position > self.dropped[number].gap.early
        if self.keep_sent and value.maker in self.block.collective:
            return False
        point = self.block.point[batch.position]
        return max(value.end, self.end.get(number, 0)) <= point

    def _account(self, batch: Batch) -> None:
        """Memory of the batch: inputs live until it runs, its copies for a while."""
        block, values = self.block, self.values
        point = block.point[batch.position]
        for number in batch.inputs:
            if number in self.sent:
                continue
            value = values[number]
            end = max(value.end, self.end.get(number, 0))
            if value.core >= 0 and value.maker >= 0 and 0 < end <= point:
                self.delta += [(end, value.bytes), (point + 1, -value.bytes)]
                self.end[number] = point + 1
        last_use: dict[int, int] = {}
        for order, op in enumerate(batch.ops):
            for operand in block.operands[op]:
                last_use[operand] = order
        live, most = 0.0, 0.0
        ends_at: dict[int, float] = {}
        for order, op in enumerate(batch.ops):
            for result in block.results[op]:
                value = values[result]
                if value.kind is not Kind.STORED:
                    continue
                if value.end > point:  # it lives on, as it does without copies
                    if result in self.dropped:
                        self._gone(result, point)
                    continue
                live += value.bytes
                until = last_use.get(result, order)
                ends_at[until] = ends_at.get(until, 0.0) + value.bytes
            most = max(most, live)
            live -= ends_at.get(order, 0.0)
        if most > 0:
            self.delta += [(point, most), (point + 1, -most)]

    def _gone(self, number: int, point: int) -> None:
        """A dropped value takes no memory from its last early reader to the copy."""
        one = self.dropped[number]
        start = max(self.block.point[one.gap.early] + 1, self.end.get(number, 0))
        if start < point:
            size = self.values[number].bytes
            self.delta += [(start, -size), (point, size)]

    def _end_dropped(self) -> None:
        """What was dropped and never copied ends with its early readers."""
        for number in self.dropped:
            if number not in self.cloned:
                self._gone(number, self.values[number].end)
