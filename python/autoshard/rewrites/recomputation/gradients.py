"""Gradients that are made at most a layer late, where straight-line code computes layers again.

As rewrites/gradient_order.py says it of layers that a program computes again by itself.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence

from autoshard._core import Storage
from autoshard.rewrites.gradient_order import (
    BARRIERS_LATE,
    MATMULS,
    SUM,
    has_dims,
    sums_activations,
)
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
    for position in block.once("gradients", lambda: _gradients(block)):
        following = barriers[bisect(barriers, position) :][: BARRIERS_LATE + 1]
        if len(following) <= BARRIERS_LATE:  # the last ones wait: that takes up to a fifth more
            break
        waited.setdefault(following[-1], []).extend(_read_behind(block, position, following[-1]))
    return {barrier: list(dict.fromkeys(numbers)) for barrier, numbers in waited.items()}


def _gradients(block: Block) -> list[int]:
    """Positions of ops that make gradients, of which only updates read anything."""
    core, ops = block.core, block.ops
    may_move = movable_of(block.costed.imported.module)
    readers = [[r for v in core.results(at) for r in core.readers(v)] for at in range(len(ops))]
    is_update = [False] * len(ops)
    for at in reversed(range(len(ops))):
        is_update[at] = all(is_update[one] for one in readers[at]) and may_move(ops[at])

    def made_of(position: int) -> Iterator[tuple[int, bool]]:
        for number in core.operands(position):
            value = core.value(number)
            if value.maker >= 0 and value.storage is not Storage.FREE:
                yield value.maker, not all(is_update[one] for one in core.readers(number))

    def is_part(position: int) -> bool:
        return is_update[position] and ops[position].name != SUM

    found: list[int] = []
    for at, op in enumerate(ops):
        if op.name in MATMULS:
            is_gradient = all(is_update[one] for one in readers[at])
        else:
            is_sum = op.name == SUM and is_update[at] and has_dims(op)
            is_gradient = is_sum and sums_activations(at, made_of, is_part)
        if is_gradient:
            found.append(at)
    return found


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
