"""Values of a block that may go for a while: those that only wait to be read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoshard._core import Dropped, Storage

if TYPE_CHECKING:
    from autoshard.rewrites.recomputation.block import Block


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest stretch in which a value only waits."""

    value: Dropped
    first: int
    """The first point of the program at which it waits."""
    end: int
    """The point at which it is read again."""


def gaps_of(block: Block) -> list[Gap]:
    """Values that may go while they wait, in the order of the program.

    What the block returns, or the program keeps on the host, may not.
    """
    on_host, last = block.costed.imported.host.values, len(block.ops) - 1
    found: list[Gap] = []
    for number, value in enumerate(block.values):
        if value.kind is not Storage.STORED or value.core in on_host:
            continue
        readers = block.demanders[number]
        gap = longest_gap(block, number) if readers and readers[-1] != last else None
        if gap is not None:
            found.append(Gap(gap, block.point[max(gap.early, 0)] + 1, block.point[gap.late]))
    return found


def longest_gap(block: Block, number: int) -> Dropped | None:
    """The longest stretch in which a value only waits; None for a value without readers."""
    readers = block.stops[number]
    if not readers:
        return None
    stops = [block.values[number].maker, *readers]
    points = [block.point[max(stop, 0)] for stop in stops]
    widest = max(range(len(readers)), key=lambda at: points[at + 1] - points[at])
    middle = (points[widest] + points[widest + 1]) // 2
    early, late = stops[widest], stops[widest + 1]
    return Dropped(number, early=early, late=late, middle=middle)
