"""Write what was decided for the values of a block."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.planned.given_plan import Costed
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.choice import Choice
from autoshard.rewrites.recomputation.decision import Fate
from autoshard.rewrites.recomputation.loops import Pair, Stack, pairs_of
from autoshard.rewrites.recomputation.stack_moves import send_stack
from autoshard.rewrites.recomputation.stack_rewrite import drop_stacks
from autoshard.rewrites.recomputation.straight import write_clones


def write_choice(choice: Choice, cost: Callable[[], Costed]) -> Costed:
    """Rewrite the module of a choice, which is of no use afterwards.

    Args:
        choice: What was decided.
        cost: Costs the module as it is then.
    """
    block, effect = choice.question.block, choice.effect
    write_clones(
        block,
        effect.clones,
        effect.fetches,
        keep_parameters=choice.question.rules.keep_parameters,
    )
    block.erase_unused()
    # Lists: the hash of an op changes with its operands.
    dropped = [stack.write for stack in choice.stacks(Fate.AGAIN)]
    sent = [stack.write for stack in choice.stacks(Fate.HOST)]
    costed = cost()
    while dropped:
        block = Block(costed, block.number)
        pair, stacks = next(
            (pair, found)
            for pair in pairs_of(block)
            if (found := [stack for stack in pair.stacks if stack.write in dropped])
        )
        dropped = [op for op in dropped if op not in [stack.write for stack in stacks]]
        drop_stacks(block, pair, stacks)
        costed = cost()
    if sent:
        # Last: copies read the stack as it was, and are joined with what reads it already.
        block = Block(costed, block.number)
        moved: list[tuple[Pair, Stack]] = [
            (pair, stack)
            for pair in pairs_of(block)
            for stack in pair.stacks
            if stack.write in sent
        ]
        for pair, stack in moved:
            send_stack(block, pair, stack)
        costed = cost()
    return costed
