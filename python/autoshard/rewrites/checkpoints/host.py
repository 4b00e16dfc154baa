"""Keep on the device what a policy of ``jax.checkpoint`` sends to the host for the backward half.

before  %h = stablehlo.custom_call @annotate_device_placement(%x) {.. = "pinned_host"}
        ..                                  // also through the stacks of loops
        %d = stablehlo.custom_call @annotate_device_placement(%h) {.. = "device"}
after   readers of %d take %x

What comes from an argument on the host, or goes to such a result, or to what the host computes,
stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autoshard.importer.host_stacks import PLACED, placed_operands
from autoshard.ir import mlir
from autoshard.ir.host_memory import DEVICE, moved_to
from autoshard.ir.module import operations_of
from autoshard.rewrites.checkpoints.straight import BARRIER

_SAME = frozenset((BARRIER, "sdy.sharding_constraint"))


def keep_on_device(module: mlir.Module) -> int:
    """Take moves to the host and back out of a module without calls; how many there were."""
    there = [op for op in operations_of(module.operation) if moved_to(op) not in (None, DEVICE)]
    journeys = {op: _journey(op) for op in there}
    kept = {back for one in journeys.values() if not one.is_round for back in one.back}
    count = 0
    while True:  # ends: more is kept each time
        staying = {op for op, one in journeys.items() if not one.is_round or one.back & kept}
        more = kept.union(*(journeys[op].back for op in staying))
        if more == kept:
            break
        kept = more
    gone = {back for op in there if op not in staying for back in journeys[op].back}
    for op in [*(op for op in there if op not in staying), *gone]:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
        count += 1
    return count


@dataclass(slots=True)
class _Journey:
    """Where a value goes from the move that brings it to the host."""

    back: set[mlir.Operation] = field(default_factory=set[mlir.Operation])
    """Moves that bring it back."""
    is_round: bool = True
    """Does nothing else read it?"""


def _journey(move: mlir.Operation) -> _Journey:
    found = _Journey()
    waiting = [move.results[0]]
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        for use in value.uses:
            op, number = use.owner.operation, use.operand_number
            if moved_to(op) == DEVICE:
                found.back.add(op)
                continue
            behind = _passed_on(op, number)
            found.is_round = found.is_round and behind is not None
            waiting += [one for one in behind or () if one not in seen]
            seen.update(behind or ())
    return found


def _passed_on(op: mlir.Operation, number: int) -> list[mlir.Value] | None:
    """What an operand is on the host under other names; None for what is read there."""
    if op.name in PLACED and number < len(placed_operands(op)):
        return [op.results[0]]
    if op.name in _SAME:
        return [op.results[number]]
    if op.name == "stablehlo.while":
        return [op.results[number], *(region.blocks[0].arguments[number] for region in op.regions)]
    parent = op.parent
    if op.name == "stablehlo.return" and parent is not None:
        loop = parent.operation
        if loop.name == "stablehlo.while" and op.block == loop.regions[1].blocks[0]:
            return _passed_on(loop, number)
    return None
