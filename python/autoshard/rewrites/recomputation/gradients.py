"""Gradients that are made at most a layer late, where straight-line code computes layers again.

As rewrites/gradient_order.py says it of layers that a program computes again by itself.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from autoshard.rewrites.gradient_order import BARRIERS_LATE, MATMULS, of_updates
from autoshard.rewrites.offload_order import movable_of
from autoshard.rewrites.recomputation.block import Block


def gradients_before(block: Block, barriers: Sequence[int]) -> dict[int, list[int]]:
    """What barriers wait for, by position: gradients, or what is made of them before and read
    behind.

    Args:
        block: Whose compiler may make gradients late, beside what is sent; none wait where it does
            not, or on one device.
        barriers: Positions before which something is computed again, ascending.
    """
    waited: dict[int, list[int]] = {}
    cluster = block.costed.cluster
    if cluster.num_devices == 1 or not cluster.compiler.does("schedule.late_gradients"):
        return waited
    ops = [op.operation for op in block.block.operations]
    updates = of_updates(ops, movable_of(block.costed.imported.module))
    for position, op in enumerate(block.ops):
        if op.name not in MATMULS:
            continue
        following = barriers[bisect(barriers, position) :][: BARRIERS_LATE + 1]
        if len(following) <= BARRIERS_LATE:  # the last ones wait: that takes up to a fifth more
            break
        if all(use.owner.operation in updates for made in op.results for use in made.uses):
            waited.setdefault(following[-1], []).extend(
                _read_behind(block, position, following[-1])
            )
    return {barrier: list(dict.fromkeys(numbers)) for barrier, numbers in waited.items()}


def _read_behind(block: Block, position: int, barrier: int) -> list[int]:
    """Results of an op, and values made of them before a barrier, that are read behind it."""
    core = block.core
    found, seen, waiting = list[int](), {position}, [position]
    while waiting:
        for number in core.results(waiting.pop()):
            readers = core.readers(number)
            if any(reader >= barrier for reader in readers):
                found.append(number)
            news = [one for one in readers if one < barrier and one not in seen]
            seen.update(news)
            waiting.extend(news)
    return found
