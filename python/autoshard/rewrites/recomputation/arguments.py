"""What arguments take of a device while they only wait, read off a plan."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np

from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir.boundary import replaced_arguments
from autoshard.planned.given_plan import Costed
from autoshard.planned.summarize import main_values
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.question import live_on_device


class WaitingArguments:
    """A ``BytesWithout`` of one planned module without calls.

    An argument on the host is on the device from its first reader on, until what replaces it is
    made: the rest of the step it takes nothing. The order of the program stays.
    """

    def __init__(self, costed: Costed) -> None:
        """Nothing is read before somebody asks."""
        self._costed = costed

    def __call__(self, arguments: Collection[int]) -> float:
        """Bytes of a device; see ``BytesWithout``."""
        live, stays = self._read
        change = np.zeros(len(live) + 1)
        for one in arguments:
            size, first, end = stays[one]
            change[0] -= size
            change[first] += size
            change[max(first, end)] -= size
        return float((live + np.cumsum(change)[:-1]).max(initial=0.0))

    @cached_property
    def _read(self) -> tuple[np.ndarray, list[tuple[float, int, int]]]:
        """All that the plan needs at each point; for each argument its bytes, and the points from
        its first reader to where what replaces it waits."""
        costed = self._costed
        block = Block(costed)
        live = live_on_device(block)
        live += costed.peak_bytes - live.max(initial=0.0)
        main, core = main_values(costed.imported), block.core
        replaced = {argument: result for result, argument in replaced_arguments(main.op).items()}
        block_ops = main.op.regions[0].blocks[0].operations
        end = block_ops[len(block_ops) - 1].operation
        stays: list[tuple[float, int, int]] = []
        for number, value in enumerate(main.arguments):
            if value == NO_VALUE or value in costed.imported.host.values:
                stays.append((0.0, 0, 0))
                continue
            readers = core.readers(number)
            first = core.op(readers[0]).point if len(readers) else len(live)
            last = len(live)
            if number in replaced:
                made = core.value(block.number_of[end.operands[replaced[number]]]).maker
                last = core.op(made).point + 1 if made >= 0 else 0
            stays.append((block.costs.bytes_of(value), first, last))
        return live, stays
