"""Rewrite two loops so that stacks are gone, or new ones are there.

before  a loop writes %r of trip i to a stack at i; a later loop reads the stack at i
after   the later loop computes %r again (rewrites/recomputation/stack_choice.py says from what)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, PIN, STRATEGY
from autoshard.ir.constants import zeros
from autoshard.ir.inline import substitute
from autoshard.planned.summarize import shardings_of
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.choice import Rules
from autoshard.rewrites.recomputation.loops import (
    Pair,
    Stack,
    body_of,
    maker_of,
    trips_of,
    yielded_of,
)
from autoshard.rewrites.recomputation.stack_choice import Slice, slice_of
from autoshard.sharding import Sharding, format_sharding, to_v2


def drop_stacks(block: Block, pair: Pair, dropped: list[Stack], rules: Rules) -> None:
    """Rewrite both loops so that these stacks are gone."""
    found = slice_of(block, pair, dropped, rules)
    assert found is not None
    _Rewriter(block, pair, dropped, found).run()


class Stacker:
    """Writes what the first loop of a pair stacks, and what the second one reads of it."""

    def __init__(self, block: Block, pair: Pair) -> None:
        self.pair = pair
        costed = block.costed
        self.shardings = shardings_of(costed.plan, costed.mesh)
        self.rows = costed.plan.value_sharding
        self.value_of = costed.imported.value_of

    def sharding(self, value: mlir.Value) -> Sharding | None:
        """Of a value of the module as it was read; None for scalars."""
        core = self.value_of.get(value, -1)
        return None if core < 0 else self.shardings[self.rows[core]]

    def text(self, value: mlir.Value) -> str:
        """``mhlo.sharding`` of a value of the module as it was read."""
        sharding = self.sharding(value)
        return "{replicated}" if sharding is None else to_v2(sharding)

    def empty(
        self, value: mlir.Value, own: Sharding, point: mlir.InsertionPoint
    ) -> tuple[mlir.Value, str, Sharding]:
        """Zeros for all trips of a value of the first loop."""
        type_ = mlir.RankedTensorType(value.type)
        sharding = Sharding(own.mesh, ((), *own.dims))
        stacked = mlir.RankedTensorType.get([trips_of(self.pair), *type_.shape], type_.element_type)
        scalar = mlir.RankedTensorType.get([], type_.element_type)
        text = to_v2(sharding)
        zero = _replicated_zero(scalar, point, value.location)
        made = _op(
            "stablehlo.broadcast_in_dim",
            stacked,
            [zero],
            {"broadcast_dimensions": mlir.DenseI64ArrayAttr.get([])},
            text,
            f"[] -> {format_sharding(sharding)}",
            point,
        )
        return made, text, sharding

    def update(
        self,
        stack: mlir.Value,
        value: mlir.Value,
        sharding: Sharding,
        index: mlir.Value,
        point: mlir.InsertionPoint,
    ) -> mlir.Value:
        """Write one trip's value to a stack."""
        type_ = mlir.RankedTensorType(value.type)
        part = mlir.RankedTensorType.get([1, *type_.shape], type_.element_type)
        own = Sharding(sharding.mesh, sharding.dims[1:])
        text = format_sharding(sharding)
        row = _op(
            "stablehlo.reshape",
            part,
            [value],
            {},
            to_v2(sharding),
            f"{format_sharding(own)} -> {text}",
            point,
        )
        zeros = self._zeros(index, len(type_.shape), point)
        scalars = ", ".join(["[]"] * (len(zeros) + 1))
        return _op(
            "stablehlo.dynamic_update_slice",
            stack.type,
            [stack, row, index, *zeros],
            {},
            to_v2(sharding),
            f"{text}, {text}, {scalars} -> {text}",
            point,
        )

    def part(
        self,
        stack: mlir.Value,
        type_: mlir.Type,
        own: Sharding,
        index: mlir.Value,
        point: mlir.InsertionPoint,
    ) -> mlir.Value:
        """Read one trip's value from a stack."""
        shape = mlir.RankedTensorType(type_).shape
        sharding = Sharding(own.mesh, ((), *own.dims))
        zeros = self._zeros(index, len(shape), point)
        text = format_sharding(sharding)
        scalars = ", ".join(["[]"] * (len(zeros) + 1))
        row = _op(
            "stablehlo.dynamic_slice",
            mlir.RankedTensorType.get([1, *shape], mlir.RankedTensorType(type_).element_type),
            [stack, index, *zeros],
            {"slice_sizes": mlir.DenseI64ArrayAttr.get([1, *shape])},
            to_v2(sharding),
            f"{text}, {scalars} -> {text}",
            point,
        )
        return _op(
            "stablehlo.reshape",
            type_,
            [row],
            {},
            to_v2(own),
            f"{text} -> {format_sharding(own)}",
            point,
        )

    def _zeros(self, index: mlir.Value, count: int, point: mlir.InsertionPoint) -> list[mlir.Value]:
        if not count:
            return []
        return [_replicated_zero(index.type, point, index.location)] * count


class _Rewriter:
    def __init__(self, block: Block, pair: Pair, dropped: list[Stack], found: Slice) -> None:
        self.pair = pair
        self.dropped = dropped
        self.found = found
        self.stacker = Stacker(block, pair)

    def run(self) -> None:
        pair, found, stacker = self.pair, self.found, self.stacker
        first_texts = [stacker.text(result) for result in pair.first.results]
        second_texts = [stacker.text(result) for result in pair.second.results]
        outer = mlir.InsertionPoint(pair.first)
        # the first loop: stack what is carried, forget what is dropped
        body = body_of(pair.first)
        carried_types = [body.arguments[slot].type for slot in found.carried]
        carried_shardings = [_known(stacker, pair.first.results[slot]) for slot in found.carried]
        added = [
            stacker.empty(pair.first.results[slot], own, outer)
            for slot, own in zip(found.carried, carried_shardings, strict=True)
        ]
        invariant_inits = [pair.first.operands[slot] for slot in found.invariant]
        invariant_pins = {
            slot: "[]" if sharding is None else format_sharding(sharding)
            for slot in found.invariant
            for sharding in [stacker.sharding(pair.first.results[slot])]
        }
        first_arguments = list(body.arguments)
        index = pair.stacks[0].index
        ops = [(op, list(op.operands), list(op.results)) for op in found.ops]
        order = {op: number for number, op in enumerate(o.operation for o in body.operations)}
        ops.sort(key=lambda one: order[one[0]])
        gone = {stack.slot for stack in self.dropped}

        def write_updates(arguments: list[mlir.Value], now: Now) -> list[mlir.Value]:
            return [
                stacker.update(argument, now.of_slot[slot], stack[2], now(index), now.end)
                for argument, slot, stack in zip(arguments, found.carried, added, strict=True)
            ]

        new_first, unused = rebuilt(
            pair.first,
            gone,
            [(value, text, format_sharding(stack)) for value, text, stack in added],
            first_texts,
            write_updates,
        )
        count = len(new_first.results)
        new_stacks = [new_first.results[count - len(added) + n] for n in range(len(added))]
        # the second loop: read them, and compute what is dropped
        body = body_of(pair.second)
        reads = [op for stack in self.dropped for op in stack.reads]
        readers = {use.owner.operation for op in reads for use in op.results[0].uses}
        readers = {_ancestor(op, body) for op in readers}
        position = {op.operation: number for number, op in enumerate(body.operations)}
        at = min(readers, key=lambda op: position[op]) if readers else None
        gone_second = {stack.read_slot for stack in self.dropped}
        extra: list[tuple[mlir.Value, str, str]] = [
            (value, text, format_sharding(stack))
            for value, (_, text, stack) in zip(new_stacks, added, strict=True)
        ]
        slots_of = {value: slot for slot, value in enumerate(pair.second.operands)}
        yielded = yielded_of(pair.second)
        old_arguments = list(body.arguments)
        known: dict[int, int] = {}
        for slot, init in zip(found.invariant, invariant_inits, strict=True):
            second_slot = slots_of.get(init)
            if second_slot is not None and yielded[second_slot] == old_arguments[second_slot]:
                known[slot] = second_slot
            else:
                extra.append((init, first_texts[slot], invariant_pins[slot]))

        def write(arguments: list[mlir.Value], now: Now) -> list[mlir.Value]:
            if at is None:
                return arguments
            point = mlir.InsertionPoint(at)
            read_index = now(self.pair.stacks[0].read_index)
            mapped: dict[mlir.Value, mlir.Value] = {index: read_index}
            fresh = iter(arguments)
            for number, slot in enumerate(found.carried):
                mapped[first_arguments[slot]] = stacker.part(
                    next(fresh), carried_types[number], carried_shardings[number], read_index, point
                )
            for slot in found.invariant:
                mapped[first_arguments[slot]] = (
                    now.of_slot[known[slot]] if slot in known else next(fresh)
                )
            for stack in found.stacked:
                mapped[stack.value] = _copied_read(stack, point)
            for op, operands, results in ops:
                copy = op.clone(ip=point).operation
                for place, operand in enumerate(operands):
                    copy.operands[place] = mapped.get(operand, operand)
                substitute(copy, mapped)
                mapped.update(zip(results, copy.results, strict=True))
            for stack in self.dropped:
                for read in stack.reads:
                    read.results[0].replace_all_uses_with(mapped[stack.value])
                    source = read.operands[0].owner.operation
                    read.erase()
                    if not len(list(source.results[0].uses)):
                        source.erase()
            return arguments

        _, more = rebuilt(pair.second, gone_second, extra, second_texts, write)
        for value in (*unused, *more):  # only now: copies were made of what they are made of
            erase_unused(value)
        pair.second.erase()
        pair.first.erase()


def _known(stacker: Stacker, value: mlir.Value) -> Sharding:
    sharding = stacker.sharding(value)
    assert sharding is not None, "a carried array"
    return sharding


def _op(
    name: str,
    type_: mlir.Type,
    operands: list[mlir.Value],
    attributes: dict[str, mlir.Attribute],
    sharding: str,
    strategy: str,
    point: mlir.InsertionPoint,
) -> mlir.Value:
    said: dict[str, mlir.Attribute] = {
        MHLO_SHARDING: mlir.StringAttr.get(sharding),
        STRATEGY: mlir.StringAttr.get(strategy),
    }
    made = mlir.Operation.create(
        name, results=[type_], operands=operands, attributes={**attributes, **said}, ip=point
    )
    return made.results[0]


def _replicated_zero(
    scalar: mlir.Type, point: mlir.InsertionPoint, why: mlir.Location
) -> mlir.Value:
    made = zeros(scalar, point, why)
    made.attributes[MHLO_SHARDING] = mlir.StringAttr.get("{replicated}")
    return made.results[0]


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


def _ancestor(op: mlir.Operation, block: mlir.Block) -> mlir.Operation:
    """The op of ``block`` in which ``op`` stands."""
    while op.block != block:
        parent = op.parent
        assert parent is not None
        op = parent.operation
    return op


@dataclass(frozen=True, slots=True)
class Now:
    """Where values of a loop's body are while it is rebuilt."""

    of_slot: dict[int, mlir.Value]
    old: list[mlir.Value]
    end: mlir.InsertionPoint
    """Before the body's return."""

    def __call__(self, value: mlir.Value) -> mlir.Value:
        """A value of the old body."""
        return self.of_slot[self.old.index(value)] if value in self.old else value


def rebuilt(
    loop: mlir.Operation,
    gone: set[int],
    added: Sequence[tuple[mlir.Value, str, str]],
    texts: list[str],
    write: Callable[[list[mlir.Value], Now], list[mlir.Value]],
) -> tuple[mlir.Operation, list[mlir.Value]]:
    """A loop without some carried values and with some more; ``loop`` is left without ops.

    Args:
        loop: What is rebuilt.
        gone: Slots that are left out; after ``write`` nothing reads them but their own updates.
        added: Initial value, sharding and pin of each new one.
        texts: Shardings of the old ones.
        write: Given the new block arguments of the body that were added, and where the old ones
            are now, writes what the body computes and returns what they are in the next trip.
    """
    kept = [slot for slot in range(len(loop.operands)) if slot not in gone]
    operands = [*(loop.operands[slot] for slot in kept), *(value for value, _, _ in added)]
    types = [value.type for value in operands]
    made_texts = [*(texts[slot] for slot in kept), *(text for _, text, _ in added)]
    attributes = {name: loop.attributes[name] for name in loop.attributes if name != MHLO_SHARDING}
    if PIN in attributes:
        pins = attributes[PIN]
        old_pins = list(pins) if isinstance(pins, mlir.ArrayAttr) else [pins] * len(texts)
        new_pins = [mlir.StringAttr.get(pin) for _, _, pin in added]
        attributes[PIN] = mlir.ArrayAttr.get([*(old_pins[slot] for slot in kept), *new_pins])
    whole = made_texts[0] if len(made_texts) == 1 else f"{{{', '.join(made_texts)}}}"
    made = mlir.Operation.create(
        "stablehlo.while",
        results=types,
        operands=operands,
        attributes={**attributes, MHLO_SHARDING: mlir.StringAttr.get(whole)},
        regions=2,
        loc=loop.location,
        ip=mlir.InsertionPoint(loop),
    )
    dead: list[mlir.Value] = []
    for number, region in enumerate(loop.regions):
        old = region.blocks[0]
        new = made.regions[number].blocks.append(*types, arg_locs=[loop.location] * len(types))
        ops = [op.operation for op in old.operations]
        for op in ops:
            new.append(op)
        for place, slot in enumerate(kept):
            old.arguments[slot].replace_all_uses_with(new.arguments[place])
        if number == 0:
            continue
        fresh = [new.arguments[len(kept) + place] for place in range(len(added))]
        end = ops[-1]
        of_slot = {slot: new.arguments[place] for place, slot in enumerate(kept)}
        now = Now(of_slot, list(old.arguments), mlir.InsertionPoint(end))
        following = write(fresh, now)
        yielded = [end.operands[slot] for slot in kept]
        dead = [end.operands[slot] for slot in gone if maker_of(end.operands[slot]) is not None]
        mlir.Operation.create(
            "stablehlo.return",
            operands=[*yielded, *following],
            loc=end.location,
            ip=mlir.InsertionPoint(end),
        )
        end.erase()
    for place, slot in enumerate(kept):
        loop.results[slot].replace_all_uses_with(made.results[place])
    return made, dead


def erase_unused(value: mlir.Value) -> None:
    """Erase the op that makes a value nobody reads, and what only it reads."""
    waiting = [value]
    erased: set[mlir.Value] = set()
    while waiting:
        current = waiting.pop()
        if current in erased:
            continue
        op = maker_of(current)
        if op is None or any(len(list(result.uses)) for result in op.results):
            continue
        operands = [operand for operand in op.operands if maker_of(operand) is not None]
        erased.update(op.results)
        op.erase()
        waiting.extend(dict.fromkeys(operands))
