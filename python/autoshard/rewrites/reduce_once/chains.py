"""From what a loop adds up back to the ops that make parts of sums, on a planned module.

    %sum' = add %sum, %t     carried by the loop
    %t    = transpose %g     linear
    %g    = dot_general %x, %dy, contracting_dims = [0] x [0], cut along "data": a part a device

Whatever else reads a value on the way needs the sum itself: such a chain is left alone, as is one
whose parts are not over one set of axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from autoshard.importer.micro_batch_cuts import adds_up
from autoshard.ir import mlir, stablehlo
from autoshard.ir.attributes import STRATEGY
from autoshard.ir.reading import ints, shape_of
from autoshard.rewrites.recomputation.loops import maker_of
from autoshard.rewrites.reduce_once.blocks import is_pinned
from autoshard.rewrites.reduce_once.linear import is_zero, partial_operands
from autoshard.sharding import Mesh
from autoshard.sharding.text import OpStrategy

WHILE = "stablehlo.while"

SUMMING = frozenset(("stablehlo.dot_general", "stablehlo.reduce", "stablehlo.scatter"))
"""Ops that may leave parts of a sum on devices."""

Slot = tuple[mlir.Operation, int]
"""A loop, and the number of a value that it carries; or an op, and the number of an operand."""


@dataclass(frozen=True, slots=True)
class SummedDims:
    """Dims of operands along which an op adds up: one of each operand that has them."""

    places: tuple[tuple[int, int], ...]
    """Operands, and dims of these."""
    axes: tuple[str, ...]
    """By which all of them are cut, major first."""


@dataclass(frozen=True, slots=True)
class Producer:
    """An op that leaves parts of a sum on devices."""

    op: mlir.Operation
    dims: tuple[SummedDims, ...]
    """Those that are cut."""
    added_to: int | None = None
    """The operand to which it adds, if there is one."""

    @property
    def axes(self) -> frozenset[str]:
        """Over which the parts are."""
        return frozenset(axis for dims in self.dims for axis in dims.axes)


class Ends:
    """The ops that end the bodies of loops, each looked for once: a block is a list, from its
    beginning to its end."""

    def __init__(self) -> None:
        self.known: list[tuple[mlir.Operation, mlir.Operation]] = []
        """Each with its loop. No dict: the hash of an op is another one when it is changed."""

    def of(self, loop: mlir.Operation) -> mlir.Operation:
        """The op that ends a loop's body."""
        for known, end in self.known:
            if known == loop:
                return end
        ops = loop.regions[1].blocks[0].operations
        self.known.append((loop, ops[len(ops) - 1].operation))
        return self.known[-1][1]


@dataclass
class Chain:
    """What becomes parts of sums together."""

    ends: Ends
    """Those of the function."""
    sums: list[Slot] = field(default_factory=list[Slot])
    """Loops, and what they add up: it is reduced behind them."""
    axes: tuple[str, ...] = ()
    """Over which it is then, in the order of the mesh."""
    values: list[mlir.Value] = field(default_factory=list["mlir.Value"])
    producers: list[Producer] = field(default_factory=list[Producer])
    followers: list[tuple[mlir.Operation, tuple[int, ...]]] = field(
        default_factory=list[tuple["mlir.Operation", tuple[int, ...]]]
    )
    """Ops, and which of their operands are parts."""
    carried: list[Slot] = field(default_factory=list[Slot])
    """What loops carry, ``sums`` included."""
    zeros: list[Slot] = field(default_factory=list[Slot])
    """Operands that are zero."""

    def readers(self) -> Iterable[tuple[mlir.Operation, tuple[int, ...]]]:
        """Ops that may read parts, and as which operands."""
        yield from self.followers
        for producer in self.producers:
            if producer.added_to is not None:
                yield producer.op, (producer.added_to,)
        for loop, slot in self.carried:
            yield loop, (slot,)
            yield self.ends.of(loop), (slot,)


def chains_of(main: mlir.Operation, mesh: Mesh) -> list[Chain]:
    """All sums of the loops of ``main`` that could be reduced behind them, in program order.

    Args:
        main: The function; planned.
        mesh: Of the plan.
    """
    ends = Ends()
    found: list[Chain] = []
    for op in main.regions[0].blocks[0].operations:
        loop = op.operation
        if loop.name != WHILE:
            continue
        for slot in range(len(loop.operands)):
            if _is_added_up(loop, slot, ends):
                chain = _Walk(mesh, ends).from_sum(loop, slot)
                if chain is not None:
                    found.append(chain)
    return [chain for chain in _joined(found) if _is_whole(chain, mesh)]


def _is_added_up(loop: mlir.Operation, slot: int, ends: Ends) -> bool:
    """Does a trip do nothing but add to what is carried?"""
    argument = loop.regions[1].blocks[0].arguments[slot]
    waiting = [ends.of(loop).operands[slot]]
    if waiting == [argument]:
        return False
    while waiting:
        value = waiting.pop()
        if value == argument:
            return True
        maker = maker_of(value)
        if maker is not None and maker.name == "stablehlo.add":
            waiting += maker.operands
    return False


class _Walk:
    """One walk from the end of a chain to its producers."""

    def __init__(self, mesh: Mesh, ends: Ends) -> None:
        self.mesh = mesh
        self.chain = Chain(ends)
        self.seen: set[mlir.Value] = set()
        self.waiting: list[Slot] = []

    def from_sum(self, loop: mlir.Operation, slot: int) -> Chain | None:
        self.chain.sums.append((loop, slot))
        self._carry(loop, slot)
        while self.waiting:
            if not self._follow(*self.waiting.pop()):
                return None
        return self.chain

    def _follow(self, reader: mlir.Operation, operand: int) -> bool:
        """Take what an op reads for parts of a sum, if it can be that."""
        value = reader.operands[operand]
        if is_zero(value):
            self.chain.zeros.append((reader, operand))
            return True
        if value in self.seen:
            return True
        maker = maker_of(value)
        if maker is None:
            block = mlir.BlockArgument(value)
            loop = block.owner.owner.operation
            if loop.name != WHILE or block.owner != loop.regions[1].blocks[0]:
                return False
            return self._carry(loop, block.arg_number)
        if maker.name == WHILE:
            return self._carry(maker, mlir.OpResult(value).result_number)
        self.seen.add(value)
        self.chain.values.append(value)
        producer = producer_of(maker, self.mesh)
        if producer is not None:
            self.chain.producers.append(producer)
            if producer.added_to is not None:
                self.waiting.append((maker, producer.added_to))
            return True
        operands = partial_operands(maker, mlir.OpResult(value).result_number)
        if operands is None or not _is_planned(maker):
            return False
        self.chain.followers.append((maker, operands))
        self.waiting += [(maker, each) for each in operands]
        return True

    def _carry(self, loop: mlir.Operation, slot: int) -> bool:
        body = loop.regions[1].blocks[0]
        argument, result = body.arguments[slot], loop.results[slot]
        if any(True for _ in loop.regions[0].blocks[0].arguments[slot].uses):
            return False
        self.seen.update((argument, result))
        self.chain.values += [argument, result]
        self.chain.carried.append((loop, slot))
        self.waiting += [(loop, slot), (self.chain.ends.of(loop), slot)]
        return True


def _is_planned(op: mlir.Operation) -> bool:
    """Does a plan say how an op works? Of scalars and barriers there is nothing to say."""
    return (
        STRATEGY in op.attributes
        or op.name == "stablehlo.optimization_barrier"
        or not any(map(shape_of, (*op.operands, *op.results)))
    )


def producer_of(op: mlir.Operation, mesh: Mesh) -> Producer | None:
    """How an op leaves parts of a sum, as it is planned; None: it makes no sum, or a whole one."""
    places = _summed(op)
    if not places or STRATEGY not in op.attributes:
        return None
    said = OpStrategy.parse(mlir.StringAttr(op.attributes[STRATEGY]).value, mesh)
    found: list[SummedDims] = []
    for each in places:
        ways = {said.operands[operand].dims[dim] for operand, dim in each}
        if len(ways) > 1 or any(ref.size is not None for way in ways for ref in way):
            return None
        axes = tuple(ref.name for way in ways for ref in way)
        operand, dim = each[0]
        if shape_of(op.operands[operand])[dim] % prod(map(mesh.axis_size, axes)):
            return None
        if axes:
            found.append(SummedDims(tuple(each), axes))
    if not found:
        return None
    return Producer(op, tuple(found), 0 if op.name == "stablehlo.scatter" else None)


def _summed(op: mlir.Operation) -> list[list[tuple[int, int]]]:
    """Dims of operands along which an op adds up."""
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        pairs = zip(
            numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True
        )
        return [[(0, left), (1, right)] for left, right in pairs] if adds_up(op) else []
    if op.name == "stablehlo.reduce":
        if not adds_up(op) or not is_zero(op.operands[1]):
            return []
        return [[(0, dim)] for dim in ints(op, "dimensions", [])]
    if op.name == "stablehlo.scatter" and adds_up(op):
        numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        windows = set(numbers.update_window_dims)
        rank, indices_rank = len(shape_of(op.operands[2])), len(shape_of(op.operands[1]))
        updated = [dim for dim in range(rank) if dim not in windows]
        indexed = [dim for dim in range(indices_rank) if dim != numbers.index_vector_dim]
        taken = set(numbers.scatter_indices_batching_dims)
        return [
            [(1, index), (2, update)]
            for index, update in zip(indexed, updated, strict=True)
            if index not in taken
        ]
    return []


def _joined(chains: Sequence[Chain]) -> list[Chain]:
    """Chains that have a value in common are one."""
    owner: dict[mlir.Value, Chain] = {}
    found: list[Chain] = []
    for chain in chains:
        others: list[Chain] = []
        for value in chain.values:
            other = owner.get(value)
            if other is not None and all(other is not each for each in others):
                others.append(other)
        for other in others:
            _add(chain, other)
            found = [each for each in found if each is not other]
        owner.update(dict.fromkeys(chain.values, chain))
        found.append(chain)
    return found


def _add(chain: Chain, other: Chain) -> None:
    known = set(chain.values)
    made = [producer.op for producer in chain.producers]
    chain.sums += other.sums
    chain.producers += [each for each in other.producers if each.op not in made]
    chain.followers += [each for each in other.followers if each not in chain.followers]
    chain.carried += [each for each in other.carried if each not in chain.carried]
    chain.zeros += [each for each in other.zeros if each not in chain.zeros]
    chain.values += [value for value in other.values if value not in known]


def _is_whole(chain: Chain, mesh: Mesh) -> bool:
    """Say over which axes the parts are; is it over some, and does nothing else read them?"""
    shared = [producer.axes for producer in chain.producers]
    common = frozenset.intersection(*shared) if shared else frozenset[str]()
    chain.axes = tuple(name for name in mesh.axis_names if name in common)
    if not any(mesh.axis_size(name) > 1 for name in chain.axes):
        return False
    if any(_is_pinned(value) for value in chain.values):
        return False
    known: dict[mlir.Value, list[Slot]] = {}
    for op, operands in chain.readers():
        for operand in operands:
            known.setdefault(op.operands[operand], []).append((op, operand))
    free = [loop.results[slot] for loop, slot in chain.sums]
    return all(
        value in free
        or all(
            (use.owner.operation, use.operand_number) in known.get(value, ()) for use in value.uses
        )
        for value in chain.values
    )


def _is_pinned(value: mlir.Value) -> bool:
    maker = maker_of(value)  # what a loop carries is pinned at its results
    return maker is not None and is_pinned(maker, mlir.OpResult(value).result_number)
