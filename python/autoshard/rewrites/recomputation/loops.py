"""Pairs of loops, the second of which reads what the first one stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autoshard.ir import mlir
from autoshard.ir.attributes import constant_integers
from autoshard.rewrites.recomputation.block import Block


@dataclass(frozen=True, slots=True)
class Stack:
    """What the first loop keeps for the second."""

    slot: int
    """Number of the carried value of the first loop."""
    value: mlir.Value
    """What a trip writes, without the dim of the trips."""
    index: mlir.Value
    """Where it writes it."""
    read_slot: int
    """Number of the carried value of the second loop."""
    reads: tuple[mlir.Operation, ...]
    """Ops of the second loop that take a trip's part, without the dim of the trips."""
    read_index: mlir.Value
    bytes: float
    """Bytes of the whole stack on one device."""
    write: mlir.Operation
    """The op of the first loop that writes a part; it stays when loops are written anew."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two loops, the second of which reads what the first one stacks."""

    first: mlir.Operation
    second: mlir.Operation
    stacks: tuple[Stack, ...]
    """All written, and read, at one index."""

    @property
    def index(self) -> mlir.Value:
        """Where the first loop writes in a trip."""
        return self.stacks[0].index

    @property
    def read_index(self) -> mlir.Value:
        """Where the second loop reads in a trip."""
        return self.stacks[0].read_index


def pairs_of(block: Block) -> list[Pair]:
    """All pairs of loops in the block."""
    if len(block.costs.blocks.blocks) == 1:  # it is the only one: there are no loops
        return []

    def bytes_of(value: mlir.Value) -> float:
        return block.costs.bytes_of(block.costed.imported.value_of.get(value, -1))

    return pairs_among(block.ops, bytes_of)


def pairs_among(
    ops: Iterable[mlir.Operation], bytes_of: Callable[[mlir.Value], float]
) -> list[Pair]:
    """All pairs of loops among the ops of a block; ``bytes_of`` a stack."""
    loops = [op for op in ops if op.name == "stablehlo.while"]
    found: list[Pair] = []
    for first in loops:
        readers = {use.owner.operation for result in first.results for use in result.uses}
        for second in loops:
            if second not in readers:
                continue
            stacks = stacks_between(first, second, bytes_of)
            if stacks:
                found.append(Pair(first, second, tuple(stacks)))
    return found


def trips_of(pair: Pair) -> int:
    """How many parts a stack has."""
    type_ = mlir.RankedTensorType(pair.first.results[pair.stacks[0].slot].type)
    return type_.shape[0]


def body_of(loop: mlir.Operation) -> mlir.Block:
    """What a loop does in a trip."""
    return loop.regions[1].blocks[0]


def yielded_of(loop: mlir.Operation) -> list[mlir.Value]:
    """What its carried values are in the next trip."""
    block = body_of(loop)
    return list(block.operations[len(block.operations) - 1].operation.operands)


def invariant_slots(loop: mlir.Operation) -> list[int]:
    """Slots that a loop does not change."""
    arguments, yielded = body_of(loop).arguments, yielded_of(loop)
    return [slot for slot, value in enumerate(yielded) if value == arguments[slot]]


def maker_of(value: mlir.Value) -> mlir.Operation | None:
    """The op that makes a value; None for an argument of a block."""
    owner = value.owner
    return None if isinstance(owner, mlir.Block) else owner.operation


def stacks_between(
    first: mlir.Operation, second: mlir.Operation, bytes_of: Callable[[mlir.Value], float]
) -> list[Stack]:
    """What the first of two loops stacks for the second one alone; ``bytes_of`` a stack."""
    yielded, arguments = yielded_of(first), list(body_of(first).arguments)
    found: list[Stack] = []
    for slot, (value, argument) in enumerate(zip(yielded, arguments, strict=True)):
        write = maker_of(value)
        if write is None or write.name != "stablehlo.dynamic_update_slice":
            continue
        if write.operands[0] != argument or len(list(argument.uses)) != 1:
            continue
        made = _without_first_dim(write.operands[1])
        if made is None or not _zeros(list(write.operands)[3:]):
            continue
        read = _read(first, slot, second)
        if read is None:
            continue
        read_slot, reads, index = read
        whole = bytes_of(first.results[slot])
        found.append(Stack(slot, made, write.operands[2], read_slot, reads, index, whole, write))
    if not found:
        return []
    # one index for all: that of the first one
    return [
        stack
        for stack in found
        if stack.index == found[0].index and stack.read_index == found[0].read_index
    ]


def _without_first_dim(update: mlir.Value) -> mlir.Value | None:
    """What a trip writes, if the update is that and a first dim of 1."""
    made = maker_of(update)
    if made is None or made.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        return None
    source, type_ = made.operands[0], mlir.RankedTensorType(update.type)
    if not isinstance(source.type, mlir.RankedTensorType):
        return None
    return source if [1, *source.type.shape] == list(type_.shape) else None


def _zeros(indices: list[mlir.Value]) -> bool:
    for index in indices:
        made = maker_of(index)
        if made is None or made.name != "stablehlo.constant":
            return False
        value = constant_integers(made)
        if value is None or any(value[number] != 0 for number in range(len(value))):
            return False
    return True


def _read(
    first: mlir.Operation, slot: int, second: mlir.Operation
) -> tuple[int, tuple[mlir.Operation, ...], mlir.Value] | None:
    """How the second loop reads a stack, if that is all that happens to it."""
    uses = [(use.owner.operation, use.operand_number) for use in first.results[slot].uses]
    if len(uses) != 1 or uses[0][0] != second:
        return None
    read_slot = uses[0][1]
    argument = body_of(second).arguments[read_slot]
    if yielded_of(second)[read_slot] != argument or len(list(second.results[read_slot].uses)):
        return None
    reads: list[mlir.Operation] = []
    indices: list[mlir.Value] = []
    for use in argument.uses:
        op = use.owner.operation
        if op.name == "stablehlo.return":
            continue
        if op.name != "stablehlo.dynamic_slice" or not _zeros(list(op.operands)[2:]):
            return None
        for inner in op.results[0].uses:
            reshape = inner.owner.operation
            whole = mlir.RankedTensorType(op.results[0].type).shape
            if reshape.name != "stablehlo.reshape" or [
                1,
                *mlir.RankedTensorType(reshape.results[0].type).shape,
            ] != list(whole):
                return None
            reads.append(reshape)
        indices.append(op.operands[1])
    if not reads or any(index != indices[0] for index in indices):
        return None
    return read_slot, tuple(reads), indices[0]
