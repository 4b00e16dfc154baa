"""Let a backward scan read what it computes again: the forward scan stacks it.

before  while(.., %stack) { %a = dot(%x, %w); yield update(%stack, %x) }
        while(.., %stack) { %x = slice(%stack); %a = dot(%x, %w); %g = multiply(%dy, %a) .. }
after   while(.., %stack, %more) { %a = dot(%x, %w); yield .., update(%more, %a) }
        while(.., %stack, %more) { %a = slice(%more); %g = multiply(%dy, %a) .. }

What is stacked is chosen anew (``cut``): a stack that nothing needs any more is gone, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from autoshard.importer.work import MATRIX_OPS, is_elementwise
from autoshard.ir import mlir
from autoshard.ir.attributes import MARK, PIPELINE_STAGE, custom_call_target
from autoshard.ir.types import tensor_bytes
from autoshard.rewrites.checkpoints.cut import Node, cheapest_cut
from autoshard.rewrites.checkpoints.straight import BARRIER, drop_barrier, read_by
from autoshard.rewrites.checkpoints.twins import Loops, loops_of, numbers_of
from autoshard.rewrites.numbering import Numbering, has_effect
from autoshard.rewrites.recomputation.loop_rebuild import erase_unused, rebuilt
from autoshard.rewrites.recomputation.loops import (
    body_of,
    invariant_slots,
    maker_of,
    yielded_of,
)
from autoshard.rewrites.recomputation.more_stacks import Kept, stack_more
from autoshard.rewrites.recomputation.stacker import Stacker
from autoshard.rewrites.sinking import sink

_CHEAP = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("reshape", "transpose", "broadcast_in_dim", "slice", "dynamic_slice", "pad", "reverse"),
        *("concatenate", "bitcast_convert", "constant", "iota", "optimization_barrier"),
    )
) | {"sdy.sharding_constraint"}
"""Compilers compute these where they are read, beside elementwise ops."""

_ONLY_IF_SMALLER = 1.01
"""Times its bytes counts what the first loop would have to make for the stack alone."""


def is_cheap(op: mlir.Operation) -> bool:
    """Is an op computed where it is read, so that nothing is saved by keeping its result?"""
    if op.name in _CHEAP or custom_call_target(op) in (MARK, PIPELINE_STAGE, "Sharding"):
        return True
    if op.name == "stablehlo.dot_general":  # of vectors: a product, element by element
        numbers = str(op.attributes["dot_dimension_numbers"])
        return "contracting" not in numbers
    return not len(op.regions) and op.name not in MATRIX_OPS and is_elementwise(op.name)


def undo_in_scans(block: mlir.Block) -> int:
    """Rewrite the pairs of loops of a block, the second of which computes again what it can read.

    Returns:
        How many values are read now in place of being computed.
    """
    count = 0
    for first, second in _pairs(block):
        found = _Again.read(first, second)
        if found is not None and found.is_computed:
            count += found.rewrite()
    return count


def _pairs(block: mlir.Block) -> Iterator[tuple[mlir.Operation, mlir.Operation]]:
    """All pairs of loops, as they are when it is their turn."""
    places = range(sum(op.operation.name == "stablehlo.while" for op in block.operations))
    for second in places:
        for first in range(second):
            loops = [op.operation for op in block.operations]
            loops = [op for op in loops if op.name == "stablehlo.while"]
            yield loops[first], loops[second]


@dataclass
class _Again:
    """What the second of two loops computes again."""

    loops: Loops
    numbers: Numbering
    nodes: dict[Hashable, Node] = field(default_factory=dict[Hashable, Node])
    """By the first value that is the same: one of the first loop, or of neither."""
    members: dict[Hashable, list[mlir.Value]] = field(
        default_factory=dict[Hashable, list[mlir.Value]]
    )
    """Values of the second loop that are it."""
    needed: dict[Hashable, None] = field(default_factory=dict[Hashable, None])
    """What gradients are made of."""
    computed: set[Hashable] = field(default_factory=set[Hashable])
    """What takes more than reading it."""

    had: dict[Hashable, mlir.Value] = field(default_factory=dict[Hashable, mlir.Value])
    """Values of the second loop that the first one could make, too, by cheap ops."""
    barriers: list[mlir.Operation] = field(default_factory=list[mlir.Operation])
    """Those of the second loop that keep apart what is the same."""

    @staticmethod
    def read(first: mlir.Operation, second: mlir.Operation) -> _Again | None:
        """None where the loops are no pair."""
        loops = loops_of(first, second)
        if loops is None:
            return None
        outside = Numbering(joins_loops=True)
        for op in first.block.operations:
            if op.operation == second:
                break
            outside.read(op.operation)
        again = _Again(loops, numbers_of(loops, outside))
        again._collect()
        return again

    @property
    def is_computed(self) -> bool:
        """Is anything that takes time computed again for a gradient?"""
        waiting, seen = list(self.needed), set(self.needed)
        while waiting:
            number = waiting.pop()
            if number in self.computed:
                return True
            more = [one for one in self.nodes[number].made_of or () if one in self.nodes]
            waiting += [one for one in more if one not in seen]
            seen.update(more)
        return False

    def _collect(self) -> None:
        """Fill in what is the same in both loops, and who reads it."""
        first, second = body_of(self.loops.first), body_of(self.loops.second)
        reads = {read for stack in self.loops.stacks for read in stack.reads}
        slices = {read.operands[0].owner.operation for read in reads}
        varying = self._varying(second)
        for op in [op.operation for op in second.operations]:
            if op in slices:
                continue
            if op.name == BARRIER:
                self._add_passed(op)
                continue
            if self._is_again(op, first, varying):
                for result in op.results:
                    self._add(op, result, op in reads)
            elif self._could_be_had(op):
                self._add_had(op, varying)
            else:
                self.needed.update((self.numbers.of(v), None) for v in read_by(op))
        self.needed = {number: None for number in self.needed if number in self.nodes}

    def _add_passed(self, barrier: mlir.Operation) -> None:
        """A barrier is no reader: what it gives is what it takes."""
        passed = [v for v in barrier.results if self.numbers.of(v) in self.nodes]
        for result in passed:
            self.members[self.numbers.of(result)].append(result)
        if passed:
            self.barriers.append(barrier)

    def _is_again(self, op: mlir.Operation, first: mlir.Block, varying: set[mlir.Value]) -> bool:
        """Is there something that the second loop could read in place of each result?"""
        if not len(op.results):
            return False
        return all(
            isinstance(number := self.numbers.of(result), mlir.Value)
            and (_block_of(number) == first) == (result in varying)
            and _block_of(number) != op.block
            for result in op.results
        )

    def _could_be_had(self, op: mlir.Operation) -> bool:
        """Is an op made by cheap ops of what the first loop has?"""
        if not is_cheap(op) or has_effect(op) or len(op.results) != 1:
            return False
        numbers = map(self.numbers.of, op.operands)
        return all(one in self.of_first or one in self.had for one in numbers)

    def _add_had(self, op: mlir.Operation, varying: set[mlir.Value]) -> None:
        (result,) = op.results
        number = self.numbers.of(result)
        self.had[number] = result
        if result in varying:
            made_of = tuple(map(self.numbers.of, op.operands))
            size = tensor_bytes(result.type)
            self.nodes.setdefault(number, Node(_ONLY_IF_SMALLER * size, made_of))
            self.members.setdefault(number, []).append(result)

    @cached_property
    def of_first(self) -> dict[Hashable, mlir.Value]:
        """Values of the first loop's body, by number."""
        body = body_of(self.loops.first)
        values = [*body.arguments, *(v for op in body.operations for v in op.operation.results)]
        found: dict[Hashable, mlir.Value] = {}
        for value in values:
            found.setdefault(self.numbers.of(value), value)
        return found

    def _in_first(self, value: mlir.Value) -> mlir.Value:
        """A value of the second loop, in the first one: by copies of cheap ops where need be."""
        number = self.numbers.of(value)
        if number not in self.of_first:
            op = maker_of(self.had[number])
            assert op is not None
            operands = [self._in_first(operand) for operand in op.operands]
            body = body_of(self.loops.first)
            end = body.operations[len(body.operations) - 1]
            copy = op.clone(ip=mlir.InsertionPoint(end)).operation
            for place, operand in enumerate(operands):
                copy.operands[place] = operand
            self.of_first[number] = copy.results[0]
        return self.of_first[number]

    def _varying(self, second: mlir.Block) -> set[mlir.Value]:
        """Values of the second loop that differ from trip to trip."""
        arguments, found = list(second.arguments), set[mlir.Value]()
        end = second.operations[len(second.operations) - 1].operation
        changed = (one for one, next_ in zip(arguments, end.operands, strict=True) if one != next_)
        found.update(changed)
        found.update(result.operands[0] for stack in self.loops.stacks for result in stack.reads)
        found.add(self.loops.read_index)
        for op in second.operations:
            if any(value in found for value in read_by(op.operation)):
                found.update(op.operation.results)
        return found

    def _add(self, op: mlir.Operation, result: mlir.Value, is_read: bool) -> None:
        number = self.numbers.of(result)
        self.members.setdefault(number, []).append(result)
        assert isinstance(number, mlir.Value)
        is_outside = _block_of(number) != body_of(self.loops.first)
        if is_outside and _is_made_of_nothing(number):
            del self.members[number]
            return
        size = tensor_bytes(result.type) / (self.loops.trips if is_outside else 1)
        made_of = tuple(map(self.numbers.of, op.operands))
        if is_read or not is_cheap(op) or is_outside:
            made_of = None
        if not is_read and not is_cheap(op):
            self.computed.add(number)
        if number not in self.nodes or made_of is None:
            self.nodes[number] = Node(size, made_of)

    def rewrite(self) -> int:
        """Stack what the second loop is to read, and drop what it reads no more."""
        chosen = cheapest_cut(self.nodes, self.needed)
        stacked = {stack.value: stack for stack in self.loops.stacks}
        kept: list[Kept] = []
        passed: list[Kept] = []
        body = body_of(self.loops.first)
        for number in self.nodes:
            if number not in chosen:
                continue
            assert isinstance(number, mlir.Value)
            if number in stacked:
                self._read_stack(number, stacked[number].reads[0])
                continue
            readers = [
                (use.owner.operation, use.operand_number)
                for member in self.members[number]
                for use in member.uses
                if use.owner.operation not in self.barriers
            ]
            if readers and _block_of(number) not in (body, body_of(self.loops.second)):
                passed.append(Kept(number, None, readers))
            elif readers:
                kept.append(Kept(self._in_first(self.members[number][0]), None, readers))
        for barrier in self.barriers:
            drop_barrier(barrier)
        first, second = stack_more(self.loops, Stacker(self.loops.trips), kept, passed)
        body = body_of(second)
        _erase_unread(body)
        again = {member for members in self.members.values() for member in members}
        again.update(self.had.values())
        sink([op.operation for op in body.operations if again.intersection(op.operation.results)])
        _drop_unread(first, second)
        return len(kept) + len(passed)

    def _read_stack(self, number: mlir.Value, read: mlir.Operation) -> None:
        """Let all that is the same as a part of a stack be that part."""
        for member in self.members[number]:
            owner = member.owner
            if isinstance(owner, mlir.Block) or owner.operation != read:
                member.replace_all_uses_with(read.results[0])


def _block_of(value: mlir.Value) -> mlir.Block:
    owner = value.owner
    return owner if isinstance(owner, mlir.Block) else owner.operation.block


def _is_made_of_nothing(value: mlir.Value) -> bool:
    """Is a value made of constants alone?"""
    op = maker_of(value)
    if op is None or not is_cheap(op):
        return False
    return all(map(_is_made_of_nothing, op.operands))


def _erase_unread(block: mlir.Block) -> None:
    """Erase what nobody reads."""
    for op in reversed([op.operation for op in block.operations][:-1]):
        is_read = any(len(list(result.uses)) for result in op.results)
        if not is_read and len(op.results) and not has_effect(op):
            op.erase()


def _drop_unread(first: mlir.Operation, second: mlir.Operation) -> None:
    """Rewrite both loops without what the second one only carries, and stacks of these."""
    gone = {
        slot
        for slot in invariant_slots(second)
        if len(list(body_of(second).arguments[slot].uses)) == 1
        and not any(len(list(block.arguments[slot].uses)) for block in second.regions[0].blocks)
        and not len(list(second.results[slot].uses))
    }
    if gone:
        rebuilt(second, gone, (), None, lambda arguments, now: arguments)
        second.erase()
    stacks = {
        slot
        for slot, value in enumerate(yielded_of(first))
        if not len(list(first.results[slot].uses)) and _is_stacked(first, slot, value)
    }
    if stacks:
        _, dead = rebuilt(first, stacks, (), None, lambda arguments, now: arguments)
        erase_unused(*dead)
        first.erase()


def _is_stacked(loop: mlir.Operation, slot: int, value: mlir.Value) -> bool:
    """Does a loop only write to a carried value?"""
    write, argument = maker_of(value), body_of(loop).arguments[slot]
    if write is None or write.name != "stablehlo.dynamic_update_slice":
        return False
    return write.operands[0] == argument and len(list(argument.uses)) == 1
