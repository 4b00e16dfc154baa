"""When values of straight-line code go to the host, and when they come back.

Each comes back as late as its first reader allows if the link does nothing else, the last one
first; it leaves memory when the link has sent it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard._core import Dropped, HostUse
from autoshard.planned.host_link import Transfer
from autoshard.planned.host_traffic import HostLink
from autoshard.rewrites.recomputation.block import Block


@dataclass(frozen=True, slots=True)
class Fetch:
    """One value that is on the host for a while."""

    number: int
    """Number of the value in the block."""
    gone: int
    """Position of the op before which it has left the memory of the device."""
    back: int
    """Position of the op before which the link begins to bring it back."""


@dataclass(frozen=True, slots=True)
class Timed:
    """All of them, and what they change."""

    fetches: list[Fetch]
    delta: list[tuple[int, float]]
    """(point, bytes): from this point on so many bytes more live on a device."""
    waited: float
    """Seconds for which devices wait for transfers outside of loops, the program's own included."""


def send_seconds(block: Block, number: int, rate: float) -> float:
    """Seconds of all transfers of a value one way, in a step; ``rate`` in bytes a second."""
    value = block.values[number]
    return block.trips[value.maker] * value.bytes / rate


def timed(
    block: Block,
    sent: Sequence[Dropped],
    uses: Mapping[int, HostUse],
    link: HostLink,
    start: Sequence[float],
    rate: float,
) -> Timed:
    """Place the transfers of values that are sent to the host.

    Args:
        block: The ops.
        sent: Values that go there.
        uses: When each is read again; those that are not need not come back.
        link: To the host.
        start: Seconds that it is free before each op of the core, and in all.
        rate: Bytes that it sends in a second.
    """
    end = len(start) - 1
    read = [one for one in sent if one.number in uses]
    backs = _backs(block, read, uses, start, rate)
    transfers: list[Transfer] = []
    for one in read:
        seconds = send_seconds(block, one.number, rate)
        made = block.core_at[block.values[one.number].maker] + 1
        needed = block.core_at[uses[one.number].first]
        begins = block.core_at[backs[one.number]]
        transfers.append(Transfer(seconds, made, end))
        transfers.append(Transfer(seconds, begins, needed))
    if block.number:  # for its own transfers the loop waits
        waited = link.timetable(start).waited
        over = [bisect_left(start, start[min(one.begins, end)] + one.seconds) for one in transfers]
    else:
        table = link.timetable(start, transfers)
        waited, over = table.waited, list(table.over)
    fetches: list[Fetch] = []
    delta: list[tuple[int, float]] = []
    last = len(block.ops) - 1
    for one, sent_at in zip(read, over[: 2 * len(read) : 2], strict=True):
        gone = max(bisect_left(block.core_at, sent_at), one.early + 1)
        back = backs[one.number]
        fetches.append(Fetch(one.number, min(gone, back), back))
        value, use = block.values[one.number], uses[one.number]
        if gone < back:
            first, again = block.point[gone], block.point[min(back, last)]
            delta += [(first, -value.bytes), (again, value.bytes)]
        if use.end > value.end:
            delta += [(value.end, value.bytes), (use.end, -value.bytes)]
    return Timed(fetches, delta, waited)


def _backs(
    block: Block,
    sent: Sequence[Dropped],
    uses: Mapping[int, HostUse],
    start: Sequence[float],
    rate: float,
) -> dict[int, int]:
    """Position at which each begins to come back."""
    found: dict[int, int] = {}
    latest = start[-1]
    for one in sorted(sent, key=lambda one: (-uses[one.number].first, one.number)):
        first = uses[one.number].first
        latest = min(latest, start[block.core_at[first]]) - send_seconds(block, one.number, rate)
        op = bisect_right(start, latest) - 1
        position = bisect_right(block.core_at, op) - 1
        found[one.number] = min(max(position, one.early + 1), first)
    return found
