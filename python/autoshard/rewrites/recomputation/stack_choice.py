"""What it takes to do without stacks of two loops: the second loop computes their values again.

They come from what is stacked anyway, from slices of the arrays that the first loop took slices of,
and from the first loop's carried values, which are stacked if they were not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from autoshard.ir import mlir
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.loops import Pair, Stack, body_of, maker_of, yielded_of

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


def slice_of(
    block: Block, pair: Pair, dropped: Collection[Stack], *, keep_sent: bool
) -> Slice | None:
    """What is needed to compute some stacked values; None if it cannot be done.

    Args:
        block: That the loops stand in.
        pair: The loops.
        dropped: Stacks to do without.
        keep_sent: No result of a collective may be computed again.
    """
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
        if keep_sent and block.costs.sends_result(op):
            return None
        stack.append((value, True))
        stack.extend((operand, False) for operand in op.operands)
    return found
