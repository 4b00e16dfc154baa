"""One of every kind of op, where a program repeats itself.

Unrolled layers are the same ops with the same shardings again and again. Partitioners see an op and
its surroundings: of ops that agree in these, the first one is looked at for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.ir.module import operations_of
from autoshard.planned.module import Kind, PlannedModule, PlannedOp
from autoshard.verify.check.part import entry_of, keep_part, read_values

_ROUNDS = 4
"""Ops are alike if all is alike that is at most so many steps away."""

_AROUND = 2
"""Ops so many steps around one that is looked at are kept with it."""


_SIZES = frozenset(
    {
        *("start_indices", "limit_indices", "edge_padding_low", "edge_padding_high"),
        *("slice_sizes"),
    }
)
"""Attributes that are sizes and places."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Ops of a program, and those of them that are looked at."""

    before: int
    after: int


def keep_distinct(plan: PlannedModule, *, by_size: bool = True) -> Sampled:
    """Keep one of all ops of ``main`` that are alike.

    Args:
        plan: Of a module, which changes; it is of no use afterwards.
        by_size: Ops of other sizes are not alike.
    """
    ops = entry_of(plan).body.ops[:-1]
    graph = _Graph(plan, ops, by_size)
    kept = graph.around(graph.first_of_each())
    keep_part(plan, kept)
    return Sampled(len(ops), len(kept))


class _Graph:
    """Which op reads what other ops make, by their numbers."""

    def __init__(self, plan: PlannedModule, ops: Sequence[PlannedOp], by_size: bool) -> None:
        entry = entry_of(plan)
        self.ops = ops
        self.is_free = [planned.kind is Kind.RECOMPUTED for planned in ops]
        """Constants and the like: many ops read them that have nothing else in common."""
        self.reads: list[list[tuple[int, int]]] = []
        """Ops whose results each op reads, and which results."""
        self.readers: list[list[tuple[int, int]]] = [[] for _ in ops]
        """Ops that read the results of each op, and as which operand."""
        self.colours: list[int] = []
        makers: dict[mlir.Value, tuple[int, int]] = {}
        placements = dict(entry.body.arguments)
        for number, planned in enumerate(ops):
            read: list[tuple[int, int]] = []
            given: list[Hashable] = []
            for position, value in enumerate(read_values(planned.op)):
                made = makers.get(value)
                if made is None:
                    if value in placements:
                        given.append((position, placements[value]))
                    continue
                read.append(made)
                self.readers[made[0]].append((number, position))
            for index, result in enumerate(planned.op.results):
                makers[result] = number, index
            self.reads.append(read)
            self.colours.append(hash((_kind(planned, by_size), tuple(given))))

    def first_of_each(self) -> list[int]:
        """The first op of each kind, where surroundings count."""
        colours = self.colours
        for _ in range(_ROUNDS):
            colours = [
                hash(
                    (
                        colours[number],
                        tuple((colours[maker], result) for maker, result in self.reads[number]),
                        ()
                        if self.is_free[number]
                        else frozenset((colours[r], at) for r, at in self.readers[number]),
                    )
                )
                for number in range(len(self.ops))
            ]
        first: dict[int, int] = {}
        for number, colour in enumerate(colours):
            first.setdefault(colour, number)
        return list(first.values())

    def around(self, chosen: Iterable[int]) -> set[int]:
        """These ops and those close to them, with the constants that they read."""
        found = {number for number in chosen if not self.is_free[number]}
        border = found
        for _ in range(_AROUND):
            near = {
                other
                for number in border
                for other, _ in (*self.reads[number], *self.readers[number])
                if not self.is_free[other]
            }
            border = near - found
            found = found | near
        waiting = list(found)
        while waiting:
            for maker, _ in self.reads[waiting.pop()]:
                if self.is_free[maker] and maker not in found:
                    found.add(maker)
                    waiting.append(maker)
        return found


def _kind(planned: PlannedOp, by_size: bool) -> Hashable:
    """What an op is, without what it reads; values of constants do not count."""
    op = planned.op
    inner = operations_of(op) if len(op.regions) else [op]
    own = () if op.name == "stablehlo.constant" else tuple(_own(each, by_size) for each in inner)
    return (own, op.name, planned.operands, planned.computed, planned.results, _types(op, by_size))


def _own(op: mlir.Operation, by_size: bool) -> Hashable:
    attributes = op.attributes
    named = [attributes[number] for number in range(len(attributes))]
    left_out = () if by_size else (*_SIZES, MHLO_SHARDING)
    kept = tuple((entry.name, entry.attr) for entry in named if entry.name not in left_out)
    return (op.name, _types(op, by_size), kept)


def _types(op: mlir.Operation, by_size: bool) -> Hashable:
    types = [value.type for value in (*op.operands, *op.results)]
    return tuple(types) if by_size else tuple(map(_without_size, types))


def _without_size(type_: mlir.Type) -> Hashable:
    """A type of which only sizes of 0 and 1 count."""
    if not isinstance(type_, mlir.RankedTensorType):
        return type_
    tensor = mlir.RankedTensorType(type_)
    return tensor.element_type, tuple(min(size, 2) for size in tensor.shape)
