"""For how long a device waits for transfers to and from its host, if ops run in order.

One link, which sends one value after the other, first come, first served, while ops run:

    ops        | matmul | matmul | matmul |     | reader |
    link         out a ......... | back a .......|
                                            ^ waits for a
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Transfer:
    """One value that is sent."""

    seconds: float
    """What it takes if the link sends nothing else."""
    begins: int
    """Number of the op before which it may begin."""
    needed: int
    """Number of the op that waits for it; the number of ops: only the end of the step does."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """When transfers are over."""

    waited: float
    """Seconds in which no op runs, all together."""
    over: tuple[int, ...]
    """For each transfer the number of the first op that runs when it is over."""


def timetable(start: Sequence[float], transfers: Sequence[Transfer]) -> Timetable:
    """Send all transfers beside the ops.

    Args:
        start: Seconds that the link is free before each op, and in all: one more than ops.
        transfers: What is sent, in any order.
    """
    order = sorted(range(len(transfers)), key=lambda one: transfers[one].begins)
    coming = deque(order)
    queue: deque[int] = deque()
    left = [one.seconds for one in transfers]
    end = len(start) - 1
    over = [end] * len(transfers)
    needed: dict[int, list[int]] = {}
    for number, one in enumerate(transfers):
        if one.needed < end:
            needed.setdefault(one.needed, []).append(number)
    waited = 0.0

    def finish(op: int) -> float:
        first = queue.popleft()
        over[first] = op
        return left[first]

    stops = sorted({*needed, *(one.begins for one in transfers if one.begins < end)})
    for op, following in pairwise([*stops, end]):
        while coming and transfers[coming[0]].begins <= op:
            queue.append(coming.popleft())
        for number in needed.get(op, ()):
            while number in queue:
                waited += finish(op)
        now = start[op]
        while queue and now + left[queue[0]] <= start[following]:
            now += left[queue[0]]
            finish(bisect_left(start, now, op + 1))
        if queue:
            left[queue[0]] -= start[following] - now
    queue.extend(coming)
    while queue:
        waited += finish(end)
    return Timetable(waited, tuple(over))
