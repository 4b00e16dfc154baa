"""Let the first loop of a pair stack more, so that the second one reads it.

before  the second loop makes %r again
after   the first one stacks its own %r, and the readers of the second one take it from there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.ir import mlir
from autoshard.rewrites.recomputation.loop_rebuild import Carried, Now, erase_unused, rebuilt
from autoshard.rewrites.recomputation.loops import Pair
from autoshard.rewrites.recomputation.stacker import Stacker
from autoshard.rewrites.sinking import ancestor_in
from autoshard.sharding import Sharding


@dataclass(slots=True)
class Kept:
    """A value of the first loop that the second one shall read."""

    value: mlir.Value
    sharding: Sharding | None
    """None in a module that is not planned."""
    readers: list[tuple[mlir.Operation, int]]
    """Operands of the second loop that are to be it."""


def stack_more(
    pair: Pair, stacker: Stacker, kept: Sequence[Kept], passed: Sequence[Kept] = ()
) -> tuple[mlir.Operation, mlir.Operation]:
    """Write both loops anew; the loops as they are then.

    Args:
        pair: Two loops; they are gone afterwards.
        stacker: Of these two.
        kept: What the first loop stacks.
        passed: What is made outside of both, and handed to the second one as it is.
    """
    first_texts = stacker.texts(pair.first.results)
    second_texts = stacker.texts(pair.second.results)
    outside = mlir.InsertionPoint(pair.first)
    added = [stacker.empty(one.value, one.sharding, outside) for one in kept]

    def write(arguments: list[mlir.Value], now: Now) -> list[mlir.Value]:
        index = now(pair.index)
        return [
            stacker.update(argument, now(one.value), empty.sharding, index, now.end)
            for argument, one, empty in zip(arguments, kept, added, strict=True)
        ]

    first, _ = rebuilt(pair.first, set(), added, first_texts, write)
    made = list(first.results)[len(first.results) - len(kept) :]
    replaced: list[mlir.Value] = []

    def replace(one: Kept, value: mlir.Value) -> None:
        for op, number in one.readers:
            replaced.append(op.operands[number])
            op.operands[number] = value

    def read(arguments: list[mlir.Value], now: Now) -> list[mlir.Value]:
        index = now(pair.read_index)
        # All places first: an op's hash changes with its operands.
        places = _first_readers(now.end.block, kept)
        for argument, one, place in zip(arguments, kept, places, strict=False):
            point = mlir.InsertionPoint(place)
            replace(one, stacker.part(argument, one.value.type, one.sharding, index, point))
        for argument, one in zip(arguments[len(kept) :], passed, strict=True):
            replace(one, argument)
        return arguments

    stacks = [Carried(value, one.sharding) for value, one in zip(made, added, strict=True)]
    stacks += [Carried(one.value, one.sharding) for one in passed]
    second, _ = rebuilt(pair.second, set(), stacks, second_texts, read)
    erase_unused(*replaced)
    pair.second.erase()
    pair.first.erase()
    return first, second


def _first_readers(block: mlir.Block, kept: Sequence[Kept]) -> list[mlir.Operation]:
    """The op of a block before which each value is read."""
    position = {op.operation: number for number, op in enumerate(block.operations)}
    return [
        min((ancestor_in(block, op) for op, _ in one.readers), key=position.__getitem__)
        for one in kept
    ]
