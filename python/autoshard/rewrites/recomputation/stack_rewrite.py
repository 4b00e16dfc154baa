"""Rewrite two loops so that stacks are gone.

before  a loop writes %r of trip i to a stack at i; a later loop reads the stack at i
after   the later loop computes %r again (rewrites/recomputation/stack_choice.py says from what)
"""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.ir.inline import substitute
from autoshard.rewrites.numbering import Numbering
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.loop_rebuild import Carried, Now, erase_unused, rebuilt
from autoshard.rewrites.recomputation.loops import (
    Pair,
    Stack,
    body_of,
    yielded_of,
)
from autoshard.rewrites.recomputation.stack_choice import Slice, slice_of
from autoshard.rewrites.recomputation.stacker import Stacker
from autoshard.rewrites.sinking import ancestor_in, sink


def drop_stacks(block: Block, pair: Pair, dropped: list[Stack]) -> None:
    """Rewrite both loops so that these stacks are gone, which can be done without."""
    found = slice_of(block, pair, dropped, keep_sent=False)
    assert found is not None
    _Rewriter(block, pair, dropped, found).run()


class _Rewriter:
    """Holds what both loops said before they are written anew."""

    def __init__(self, block: Block, pair: Pair, dropped: list[Stack], found: Slice) -> None:
        self.pair, self.dropped, self.found = pair, dropped, found
        self.stacker = stacker = Stacker.of_plan(block, pair)
        self.first_texts = stacker.texts(pair.first.results)
        self.second_texts = stacker.texts(pair.second.results)
        body = body_of(pair.first)
        self.arguments = list(body.arguments)
        """Carried values of the first loop, in its body."""
        again = set(found.ops)
        self.ops = [
            (op.operation, list(op.operation.operands), list(op.operation.results))
            for op in body.operations
            if op.operation in again
        ]
        """What the second loop computes again, in order: op, operands, results."""
        self.index, self.read_index = pair.stacks[0].index, pair.stacks[0].read_index
        self.invariant = [
            (slot, Carried(pair.first.operands[slot], stacker.sharding(pair.first.results[slot])))
            for slot in found.invariant
        ]

    def run(self) -> None:
        stacks, dead = self._rewrite_first()
        dead += self._rewrite_second(stacks)
        # Only now: what they are made of was copied.
        erase_unused(*dead)
        self.pair.second.erase()
        self.pair.first.erase()

    def _rewrite_first(self) -> tuple[list[Carried], list[mlir.Value]]:
        """Stack what is carried, forget what is dropped.

        Returns:
            The new stacks, and what nobody reads any more.
        """
        first, slots, stacker = self.pair.first, self.found.carried, self.stacker
        point = mlir.InsertionPoint(first)
        results = [first.results[slot] for slot in slots]
        added = [stacker.empty(value, stacker.sharding(value), point) for value in results]

        def write_updates(arguments: list[mlir.Value], now: Now) -> list[mlir.Value]:
            index = now(self.index)
            return [
                stacker.update(argument, now.of_slot[slot], stack.sharding, index, now.end)
                for argument, slot, stack in zip(arguments, slots, added, strict=True)
            ]

        gone = {stack.slot for stack in self.dropped}
        made, dead = rebuilt(first, gone, added, self.first_texts, write_updates)
        written = list(made.results)[len(made.results) - len(added) :]
        stacks = [Carried(value, one.sharding) for value, one in zip(written, added, strict=True)]
        return stacks, dead

    def _rewrite_second(self, stacks: list[Carried]) -> list[mlir.Value]:
        """Compute what is dropped, from the new stacks and others; what nobody reads any more."""
        second = self.pair.second
        reader = self._first_reader()
        carried = self._carried_by_second()
        missing = [one for slot, one in self.invariant if slot not in carried]

        def write(arguments: list[mlir.Value], now: Now) -> list[mlir.Value]:
            if reader is None:
                return arguments
            point = mlir.InsertionPoint(reader)
            fresh = iter(arguments)
            index = now(self.read_index)
            known: dict[mlir.Value, mlir.Value] = {self.index: index}
            for slot in self.found.carried:
                value = self.pair.first.results[slot]
                own = self.stacker.sharding(value)
                known[self.arguments[slot]] = self.stacker.part(
                    next(fresh), value.type, own, index, point
                )
            for slot, _ in self.invariant:
                known[self.arguments[slot]] = (
                    now.of_slot[carried[slot]] if slot in carried else next(fresh)
                )
            self._compute_again(known, point)
            return arguments

        gone = {stack.read_slot for stack in self.dropped}
        _, dead = rebuilt(second, gone, [*stacks, *missing], self.second_texts, write)
        return dead

    def _first_reader(self) -> mlir.Operation | None:
        """The first op of the second loop that reads what is dropped."""
        body = body_of(self.pair.second)
        reads = [op for stack in self.dropped for op in stack.reads]
        uses = [use.owner.operation for op in reads for use in op.results[0].uses]
        readers = {ancestor_in(body, op) for op in uses}
        return next((op.operation for op in body.operations if op.operation in readers), None)

    def _carried_by_second(self) -> dict[int, int]:
        """Slots of the first loop that never change -> those of the second loop that are it."""
        second = self.pair.second
        slot_of = {value: slot for slot, value in enumerate(second.operands)}
        arguments, yielded = list(body_of(second).arguments), yielded_of(second)
        return {
            slot: slot_of[one.init]
            for slot, one in self.invariant
            if one.init in slot_of and yielded[slot_of[one.init]] == arguments[slot_of[one.init]]
        }

    def _compute_again(
        self, known: dict[mlir.Value, mlir.Value], point: mlir.InsertionPoint
    ) -> None:
        """Copy ops of the first loop; their results stand in place of what was read of stacks."""
        for stack in self.found.stacked:
            known[stack.value] = _copied_read(stack, point)
        copied: set[mlir.Value] = set()
        for op, operands, results in self.ops:
            copy = op.clone(ip=point).operation
            for place, operand in enumerate(operands):
                copy.operands[place] = known.get(operand, operand)
            substitute(copy, known)
            known.update(zip(results, copy.results, strict=True))
            copied.update(copy.results)
        for stack in self.dropped:
            for read in stack.reads:
                read.results[0].replace_all_uses_with(known[stack.value])
                source = read.operands[0].owner.operation
                read.erase()
                if not len(list(source.results[0].uses)):
                    source.erase()
        _join(point.block, copied)
        block = point.block
        made = [op.operation for op in block.operations]
        sink([op for op in made if any(result in copied for result in op.results)])


def _join(block: mlir.Block, copied: set[mlir.Value]) -> None:
    """Let what a block had already, as slices of parameters, be the copies of it."""
    numbers = Numbering(is_planned=True)
    needless: list[mlir.Operation] = []
    for op in block.operations:
        numbers.read(op.operation)
        twins = [numbers.twin(result) for result in op.operation.results]
        if twins and all(twin in copied for twin in twins):
            needless.append(op.operation)
    for op in reversed(needless):
        for result in op.results:
            twin = numbers.twin(result)
            assert twin is not None
            result.replace_all_uses_with(twin)
        op.erase()


def _copied_read(stack: Stack, point: mlir.InsertionPoint) -> mlir.Value:
    """The part of a kept stack, read again at ``point``."""
    reshape = stack.reads[0]
    source = reshape.operands[0].owner.operation
    copies: list[mlir.Operation] = []
    for number in range(2, len(source.operands)):  # zeros
        zero = source.operands[number].owner.operation
        copies.append(zero.clone(ip=point).operation)
    row = source.clone(ip=point).operation
    for number, zero in enumerate(copies):
        row.operands[number + 2] = zero.results[0]
    made = reshape.clone(ip=point).operation
    made.operands[0] = row.results[0]
    return made.results[0]
