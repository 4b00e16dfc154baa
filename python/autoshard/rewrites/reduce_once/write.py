"""Write chains of sums as parts that are added up behind their loops.

before  %r = while(%sum = 0)
          %g = dot_general %x, %dy                       // reduced in every trip
          yields %sum + %g
after   %p = while(%parts = 0)                           // tensor<8x4x2xf32>, one part a device
          %g = dot_general %xs, %ys, batching_dims = [0] x [0]
          yields %parts + %g
        %r = reduce %p across dimensions = [0]           // reduced once
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.ir import mlir
from autoshard.ir.attributes import LEVEL, STRATEGY
from autoshard.ir.constants import zeros
from autoshard.rewrites.recomputation.loops import maker_of
from autoshard.rewrites.reduce_once.blocks import (
    Blocks,
    open_pins,
    sharding_of,
    shardings_of,
    write,
)
from autoshard.rewrites.reduce_once.chains import Chain, Slot
from autoshard.rewrites.reduce_once.followers import write_follower
from autoshard.rewrites.reduce_once.producers import write_producer
from autoshard.sharding import Mesh, Sharding
from autoshard.sharding.text import OpStrategy, parsed_strategy

REDUCED_ONCE = "reduced_once"
"""What reductions behind loops are called, at the line of what is added up."""

_BARRIER = "stablehlo.optimization_barrier"


def write_chains(chains: Sequence[Chain], mesh: Mesh) -> None:
    """Rewrite chains. Expects the module's context.

    Args:
        chains: Of a planned module, which is changed; other chains of it stay what they are.
        mesh: Of the plan.
    """
    carriers = _Carriers(mesh)
    for chain in chains:
        _Writer(chain, mesh, carriers).write()
    carriers.write()


class _Carriers:
    """Ops with several results, of which chains make some parts. A loop over layers has hundreds,
    of as many chains: how they are cut is read once, and written once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.cut: list[tuple[mlir.Operation, list[Sharding], list[int]]] = []
        """Each with how all its results are cut, and which of them are parts. No dict: the hash of
        an op is another one when it is changed."""

    def divide(self, slots: Iterable[Slot], blocks: Blocks) -> None:
        """Let these results be parts; their types are still those of whole values."""
        for op, slot in slots:
            known = next((each for each in self.cut if each[0] == op), None)
            if known is None:
                known = op, shardings_of(op, self.mesh), list[int]()
                self.cut.append(known)
            _, shardings, parts = known
            shardings[slot] = blocks.sharding(shardings[slot])
            parts.append(slot)

    def write(self) -> None:
        """Say so on the ops, whose results have the types of parts."""
        for op, shardings, parts in self.cut:
            open_pins(op, parts)
            write(op, shardings)


class _Writer:
    def __init__(self, chain: Chain, mesh: Mesh, carriers: _Carriers) -> None:
        self.chain = chain
        self.mesh = mesh
        self.carriers = carriers
        self.blocks = Blocks(mesh, chain.axes)
        self.strategies: dict[int, OpStrategy] = {}
        self.held = {value: _held(value, mesh) for value in chain.values}

    def write(self) -> None:
        chain, blocks = self.chain, self.blocks
        sums = [(loop, slot, loop.results[slot].type) for loop, slot in chain.sums]
        strategies = [self._strategy(producer.op) for producer in chain.producers]
        follows = [
            (op, parts, self._strategy(op)) for op, parts in chain.followers if op.name != _BARRIER
        ]
        slots: list[Slot] = list(chain.carried)
        for op, parts in chain.followers:
            slots += [(op, part) for part in parts if op.name == _BARRIER]
        self.carriers.divide(slots, blocks)
        for reader, operand in chain.zeros:
            self._write_zeros(reader, operand)
        for value in chain.values:
            value.set_type(blocks.type(value.type))
        for loop, slot in chain.carried:
            unread = loop.regions[0].blocks[0].arguments[slot]
            unread.set_type(blocks.type(unread.type))
        # Before followers, which are erased where they are made anew.
        for loop, slot, type_ in sums:
            self._add_up(loop, slot, type_)
        for producer, strategy in zip(chain.producers, strategies, strict=True):
            write_producer(producer, blocks, strategy, self.held[producer.op.results[0]])
        for op, parts, strategy in follows:
            write_follower(op, parts, blocks, strategy, self.held[op.results[0]])

    def _strategy(self, op: mlir.Operation) -> OpStrategy:
        if STRATEGY in op.attributes:
            return parsed_strategy(mlir.StringAttr(op.attributes[STRATEGY]).value, self.mesh)
        whole = Sharding(self.mesh, ())  # of scalars nothing is said
        return OpStrategy((whole,) * len(op.operands), (whole,) * len(op.results))

    def _write_zeros(self, reader: mlir.Operation, operand: int) -> None:
        value = reader.operands[operand]
        made = zeros(self.blocks.type(value.type), mlir.InsertionPoint(reader), reader.location)
        write(made, [self.blocks.sharding(_held(value, self.mesh))], like=maker_of(value))
        reader.operands[operand] = made.results[0]

    def _add_up(self, loop: mlir.Operation, slot: int, whole: mlir.Type) -> None:
        """Reduce behind a loop what it hands out, for all that do not go on with the parts."""
        parts, held = loop.results[slot], self.held[loop.results[slot]]
        of_parts = {(op, number) for op, numbers in self.chain.readers() for number in numbers}
        uses = [(use.owner.operation, use.operand_number) for use in parts.uses]
        readers = [use for use in uses if use not in of_parts]
        if not readers:
            return
        last = maker_of(self.chain.ends.of(loop).operands[slot])
        assert last is not None, "a sum of the loop"
        tensor = mlir.RankedTensorType(whole)
        scalar = mlir.RankedTensorType.get([], tensor.element_type)
        why = mlir.Location.name(REDUCED_ONCE, last.location)
        made = mlir.Operation.create(
            "stablehlo.reduce",
            results=[whole],
            operands=[parts, parts],
            attributes={"dimensions": mlir.DenseI64ArrayAttr.get(list(range(self.blocks.count)))},
            regions=1,
            loc=why,
            ip=mlir.InsertionPoint.after(loop),
        )
        zero = zeros(scalar, mlir.InsertionPoint(made), why)
        made.operands[1] = zero.results[0]
        block = made.regions[0].blocks.append(scalar, scalar, arg_locs=[why, why])
        inside = mlir.InsertionPoint(block)
        added = mlir.Operation.create(
            "stablehlo.add", results=[scalar], operands=list(block.arguments), loc=why, ip=inside
        )
        mlir.Operation.create("stablehlo.return", operands=added.results, loc=why, ip=inside)
        one = Sharding(self.mesh, ())
        strategy = OpStrategy((self.blocks.sharding(held), one), (held,))
        write(zero, [one], like=last)
        write(made, [held], strategy, like=last)
        for op in (zero, made):
            if LEVEL in op.attributes:
                op.attributes[LEVEL] = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(32), 0)
        for reader, operand in readers:
            reader.operands[operand] = made.results[0]


def _held(value: mlir.Value, mesh: Mesh) -> Sharding:
    """How a plan holds a value."""
    maker = maker_of(value)
    if maker is not None:
        return sharding_of(maker, mlir.OpResult(value).result_number, mesh)
    argument = mlir.BlockArgument(value)
    return sharding_of(argument.owner.owner.operation, argument.arg_number, mesh)
