"""Which stacks of two loops to do without: the second loop computes their values again.

They come from what is stacked anyway, from slices of the arrays that the first loop took slices of,
and from the first loop's carried values, which are stacked if they were not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from autoshard.ir import mlir
from autoshard.planned.summarize import line_of, short_name, type_text
from autoshard.planned.summary import RecomputedValue
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

_HELD = frozenset(
    ("stablehlo.while", "stablehlo.case", "stablehlo.if", "stablehlo.rng", "func.call")
)


@dataclass(slots=True)
class Slice:
    """What the second loop has to do for some stacks to be dropped."""

    ops: list[mlir.Operation] = field(default_factory=list[mlir.Operation])
    """Ops of the first loop's body, in order."""
    stacked: list[Stack] = field(default_factory=list[Stack])
    """Kept stacks that they read."""
    invariant: list[int] = field(default_factory=list[int])
    """Slots of the first loop that never change."""
    carried: list[int] = field(default_factory=list[int])
    """Slots of the first loop that have to be stacked, too."""


def choose_stacks(block: Block, pair: Pair, wanted: float, rules: Rules) -> list[Stack]:
    """The stacks that cost least to do without, of which ``wanted`` bytes are freed.

    As many as help, if that is less.
    """
    imported = block.costed.imported
    everything = [
        stack
        for stack in pair.stacks
        # What the program keeps on the host takes no memory of the device.
        if imported.value_of[pair.first.results[stack.slot]] not in imported.host.values
        and slice_of(block, pair, [stack], rules) is not None
    ]
    best: tuple[float, float, list[Stack]] = (max(wanted, 0.0), 0.0, [])
    for chosen in (_grown(block, pair, everything, wanted, rules), everything):
        chosen = _given_back(block, pair, chosen, wanted, rules)
        freed, seconds = _effect(block, pair, chosen, rules)
        best = min(best, (max(0.0, wanted - freed), seconds, chosen), key=lambda one: one[:2])
    return best[2]


def _grown(
    block: Block, pair: Pair, stacks: list[Stack], wanted: float, rules: Rules
) -> list[Stack]:
    chosen: list[Stack] = []
    freed, seconds = 0.0, 0.0
    while freed < wanted:
        options: list[tuple[float, int, float, float]] = []
        for number, stack in enumerate(stacks):
            if stack in chosen:
                continue
            more, time = _effect(block, pair, [*chosen, stack], rules)
            if more > freed:
                rate = (more - freed) / (max(time - seconds, 0.0) + 1e-9)
                options.append((-rate, number, more, time))
        if not options:
            break
        _, number, freed, seconds = min(options)
        chosen.append(stacks[number])
    return chosen


def _given_back(
    block: Block, pair: Pair, chosen: list[Stack], wanted: float, rules: Rules
) -> list[Stack]:
    """Without what is not needed, or makes it worse."""
    freed, seconds = _effect(block, pair, chosen, rules)
    for stack in sorted(chosen, key=lambda stack: stack.bytes):
        rest = [other for other in chosen if other != stack]
        less, time = _effect(block, pair, rest, rules)
        if less >= min(freed, wanted) and time <= seconds:
            chosen, freed, seconds = rest, less, time
    return chosen


def _effect(block: Block, pair: Pair, chosen: list[Stack], rules: Rules) -> tuple[float, float]:
    """(bytes freed on a device, seconds that it adds to a step)."""
    if not chosen:
        return 0.0, 0.0
    found = slice_of(block, pair, chosen, rules)
    if found is None:
        return -1.0, float("inf")
    value_of = block.costed.imported.value_of
    freed = sum(stack.bytes for stack in chosen)
    trips = trips_of(pair)
    freed -= sum(
        trips * block.costs.bytes_of(value_of.get(pair.first.results[slot], -1))
        for slot in found.carried
    )
    kept = {stack.value for stack in chosen}
    for op in found.ops:
        for result in op.results:
            core = value_of.get(result, -1)
            if block.costs.is_stored(core) and result not in kept:
                freed -= block.costs.bytes_of(core)
    return freed, sum(block.costs.seconds_of(op) for op in found.ops)


def slice_of(block: Block, pair: Pair, dropped: Collection[Stack], rules: Rules) -> Slice | None:
    """What is needed to compute some stacked values; None if it cannot be done."""
    body = body_of(pair.first)
    arguments: dict[mlir.Value, int] = {
        argument: slot for slot, argument in enumerate(body.arguments)
    }
    yielded = yielded_of(pair.first)
    gone = {stack.value for stack in dropped}
    kept = {stack.value: stack for stack in pair.stacks if stack.value not in gone}
    index = pair.stacks[0].index
    found = Slice()
    done: set[mlir.Value] = set()
    stack: list[tuple[mlir.Value, bool]] = [(one.value, False) for one in dropped]
    while stack:
        value, is_ready = stack.pop()
        if is_ready:
            op = maker_of(value)
            if op is not None and op not in found.ops:
                found.ops.append(op)
            continue
        if value in done or value == index:
            continue
        done.add(value)
        if value in kept:
            found.stacked.append(kept[value])
            continue
        slot = arguments.get(value)
        if slot is not None:
            if yielded[slot] == value:
                found.invariant.append(slot)
            elif isinstance(value.type, mlir.RankedTensorType) and value.type.rank:
                found.carried.append(slot)
            else:
                return None  # a counter, or a scalar that nobody stacks
            continue
        op = maker_of(value)
        if op is None or op.name in _HELD or op.block != body:
            return None
        if rules.keep_sent and block.costs.sends_result(op):
            return None
        stack.append((value, True))
        stack.extend((operand, False) for operand in op.operands)
    return found


def describe_stacks(block: Block, dropped: list[Stack]) -> list[RecomputedValue]:
    """What is computed again, as the summary of a plan tells it; before the loops are rewritten."""
    rows: list[RecomputedValue] = []
    for stack in dropped:
        op = maker_of(stack.value)
        type_ = mlir.RankedTensorType(stack.value.type)
        rows.append(
            RecomputedValue(
                name=f"{'carried' if op is None else short_name(op)} {type_text(type_)}",
                count=mlir.RankedTensorType(_stack_type(stack)).shape[0],
                bytes=stack.bytes,
                seconds=0.0 if op is None else block.costs.seconds_of(op),
                location=None if op is None else line_of(op),
            )
        )
    return rows


def _stack_type(stack: Stack) -> mlir.Type:
    return stack.reads[0].operands[0].owner.operation.operands[0].type
