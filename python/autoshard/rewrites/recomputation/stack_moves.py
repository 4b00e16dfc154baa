"""Let a stack of two loops be on the host.

before  the first loop writes %r of a trip to the stack; the second one reads %s of it
after   the first one writes %r moved to the host, the second one moves %s to the device

Compilers keep such a stack on the host, from the zeros on that it starts with.
"""

from __future__ import annotations

from autoshard._core import Place
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import mlir
from autoshard.ir.attributes import STRATEGY
from autoshard.ir.host_memory import DEVICE, PINNED_HOST
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.loops import Pair, Stack, body_of, maker_of
from autoshard.rewrites.recomputation.moves import write_move
from autoshard.sharding import Mesh, OpStrategy


def may_be_on_host(block: Block, pair: Pair, stack: Stack) -> bool:
    """Is a stack written and read at the top of the bodies, and nowhere sent between devices?"""
    update = maker_of(stack.write.operands[1])
    if update is None or update.block != body_of(pair.first):
        return False
    if any(read.block != body_of(pair.second) for read in stack.reads):
        return False
    number, value_of = block.costs.core_number, block.costed.imported.value_of
    slices = [maker_of(read.operands[0]) for read in stack.reads]
    ops = {number(op) for op in (update, stack.write, *slices, *stack.reads) if op is not None}
    loops = (pair.first.results[stack.slot], pair.second.results[stack.read_slot])
    values = {value_of.get(value, NO_VALUE) for value in (*loops, *stack.write.results)}
    table = block.costed.plan.reshards
    for where, index, position, value in zip(
        table.place, table.index, table.position, table.value, strict=True
    ):
        if where is Place.JOIN:
            if value in values:
                return False
        elif index in ops:
            # What is written may be sent before it goes to the host, as what is read behind it.
            if where is Place.OPERAND and index == number(update) and position == 0:
                continue
            return False
    return True


def send_stack(mesh: Mesh, pair: Pair, stack: Stack) -> None:
    """Write the moves, with shardings of the plan's mesh; both loops stay."""
    update = maker_of(stack.write.operands[1])
    assert update is not None
    sharding = _strategy(mesh, update).operands[0]
    point = mlir.InsertionPoint(update)
    update.operands[0] = write_move(update.operands[0], PINNED_HOST, sharding, point)
    body = body_of(pair.second)
    reads = [op.operation for op in body.operations if op.operation in stack.reads]
    first = reads[0]
    back = write_move(
        first.results[0],
        DEVICE,
        _strategy(mesh, first).results[0],
        mlir.InsertionPoint.after(first),
    )
    moved = back.owner
    for read in reads:
        for use in list(read.results[0].uses):
            if use.owner.operation != moved:
                use.owner.operation.operands[use.operand_number] = back


def _strategy(mesh: Mesh, op: mlir.Operation) -> OpStrategy:
    text = mlir.StringAttr(op.attributes[STRATEGY]).value
    return OpStrategy.parse(text, mesh)
