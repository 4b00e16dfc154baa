"""Write what was decided for the values of a block."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.ir import mlir
from autoshard.planned.given_plan import Costed
from autoshard.rewrites.recomputation.block import Block, erase_unread_at
from autoshard.rewrites.recomputation.choice import Choice
from autoshard.rewrites.recomputation.decision import Fate
from autoshard.rewrites.recomputation.loops import Pair, Stack, pairs_among, pairs_of
from autoshard.rewrites.recomputation.stack_moves import send_stack
from autoshard.rewrites.recomputation.stack_rewrite import drop_stacks
from autoshard.rewrites.recomputation.straight import write_clones


def write_choice(
    choice: Choice, cost: Callable[[], Costed], copy: mlir.Module | None = None
) -> Costed:
    """Rewrite the module of a choice, which is of no use afterwards.

    Args:
        choice: What was decided.
        cost: Costs the module that was rewritten as it is then.
        copy: Is rewritten in its place.
    """
    block, effect = choice.question.block, choice.effect
    if copy is not None:
        block = block.on(copy)
    # Lists: the hash of an op changes with its operands.
    dropped = [stack.write for stack in choice.stacks(Fate.AGAIN, block)]
    sent = [stack.write for stack in choice.stacks(Fate.HOST, block)]
    write_clones(
        block,
        effect.clones,
        effect.fetches,
        keep_parameters=choice.question.rules.keep_parameters,
    )
    erase_unread_at(block, (op for batch in effect.clones.batches for op in batch.ops))
    while dropped:
        now = Block(cost(), block.number)
        pair, stacks = next(
            (pair, found)
            for pair in pairs_of(now)
            if (found := [stack for stack in pair.stacks if stack.write in dropped])
        )
        dropped = [op for op in dropped if op not in [stack.write for stack in stacks]]
        drop_stacks(now, pair, stacks)
    if sent:
        # Last: copies read the stack as it was, and are joined with what reads it already.
        ops = [op.operation for op in block.block.operations]
        moved: list[tuple[Pair, Stack]] = [
            (pair, stack)
            for pair in pairs_among(ops, lambda _: 0.0)
            for stack in pair.stacks
            if stack.write in sent
        ]
        for pair, stack in moved:
            send_stack(block.costed.mesh, pair, stack)
    return cost()
