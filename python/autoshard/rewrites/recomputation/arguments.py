"""What arguments take of a device while they only wait, read off a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoshard.importer.host_values import COPIES_AT_A_TIME
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir.boundary import replaced_arguments
from autoshard.ir.types import tensor_bytes
from autoshard.planned.given_plan import Costed
from autoshard.planned.summarize import main_values
from autoshard.rewrites.offload_order import movable_of
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.question import live_on_device


@dataclass(frozen=True, slots=True)
class _Stay:
    """When an argument is on the device, if it is in the memory of the host before and behind."""

    bytes: float
    """Bytes on one device."""
    whole_bytes: float
    first: int
    """Program point of its first reader."""
    end: int
    """Program point behind which it is not there any more."""
    is_on_host: bool = False
    """Is it there already?"""


class WaitingArguments:
    """A ``BytesWithout`` of one planned module without calls.

    An argument on the host is on the device from its first reader on, until what replaces it is
    made: the rest of the step it takes nothing. The largest ones are fetched before anything waits
    for them (``ValuesOnHost.first_copied_back``). An update that may run anywhere runs where its
    gradient is made, as ``rewrites/offload_order.py`` puts it; the order of all else stays.
    """

    def __init__(self, costed: Costed) -> None:
        """Nothing is read before somebody asks."""
        self._costed = costed

    def __call__(self, arguments: Collection[int]) -> float:
        """Bytes of a device; see ``BytesWithout``."""
        live, _ = self._read
        return float((live + self.change(arguments)).max(initial=0.0))

    def change(self, arguments: Collection[int]) -> np.ndarray:
        """Bytes of a device that live more at each point with these arguments on the host."""
        live, stays = self._read
        change = np.zeros(len(live) + 1)
        there = [n for n, one in enumerate(stays) if one.is_on_host]
        largest = sorted((*there, *arguments), key=lambda n: -stays[n].whole_bytes)
        at_once = set(largest[:COPIES_AT_A_TIME])
        for number in arguments:
            one = stays[number]
            if number not in at_once:
                change[0] -= one.bytes
                change[one.first] += one.bytes
            change[max(one.first, one.end)] -= one.bytes
        return np.cumsum(change)[:-1]

    @cached_property
    def _read(self) -> tuple[np.ndarray, list[_Stay]]:
        """All that the plan needs at each point; each argument."""
        costed = self._costed
        block = Block(costed)
        live = live_on_device(block)
        live += costed.peak_bytes - live.max(initial=0.0)
        main, core = main_values(costed.imported), block.core
        replaced = {argument: result for result, argument in replaced_arguments(main.op).items()}
        block_ops = block.block.operations
        end = block_ops[len(block_ops) - 1].operation
        update_of = _Updates(block)
        types = [argument.type for argument in block.block.arguments]
        stays: list[_Stay] = []
        for number, value in enumerate(main.arguments):
            if value == NO_VALUE or value in costed.imported.host.values:
                whole = 0 if value == NO_VALUE else tensor_bytes(types[number])
                stays.append(_Stay(0.0, whole, 0, 0, is_on_host=value != NO_VALUE))
                continue
            size, whole = block.costs.bytes_of(value), tensor_bytes(types[number])
            early = update_of.point(number)
            if early is not None:
                stays.append(_Stay(size, whole, early, early + 1))
                continue
            readers = core.readers(number)
            first = core.op(readers[0]).point if len(readers) else len(live)
            last = len(live)
            if number in replaced:
                made = core.value(block.number_of[end.operands[replaced[number]]]).maker
                last = core.op(made).point + 1 if made >= 0 else 0
            stays.append(_Stay(size, whole, first, last))
        return live, stays


class _Updates:
    """Where all that depends on an argument runs, once the argument is on the host."""

    def __init__(self, block: Block) -> None:
        self.core = core = block.core
        may_move = movable_of(block.costed.imported.module)
        self.last = len(block.ops) - 1
        moves = [may_move(op) for op in block.ops]
        # By position the last op that does not run wherever its operands are, of all that an op
        # needs, and it itself; -1: none.
        ready: list[int] = []
        for position, is_moved in enumerate(moves):
            makers = (core.value(one).maker for one in core.operands(position))
            earlier = (ready[maker] for maker in makers if maker >= 0)
            ready.append(max(earlier, default=-1) if is_moved else position)
        self.latest: list[int | None] = [None] * len(ready)
        """By position the last of these for all that depends on an op, and it itself; None: a part
        of it stays where it is."""
        for position in reversed(range(self.last)):
            if moves[position]:
                self.latest[position] = self._latest(core.results(position), ready[position])

    def _latest(self, numbers: Iterable[int], latest: int) -> int | None:
        """The same of all that reads these values."""
        for number in numbers:
            for reader in self.core.readers(number):
                if reader == self.last:
                    continue
                behind = self.latest[reader]
                if behind is None:
                    return None
                latest = max(latest, behind)
        return latest

    def point(self, argument: int) -> int | None:
        """Program point; None: a part of it stays where it is."""
        latest = self._latest((argument,), -1)
        if latest is None:
            return None
        return self.core.op(latest).point + 1 if latest >= 0 else 0
