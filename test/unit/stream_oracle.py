"""Streams run tick by tick, from the end: what ``scheduled_from_end`` has to find.

A tick is one second. With a slowdown of 2, what computes beside a collective does half a second of
its work in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Work:
    """As ``_core.StreamTask``, in whole seconds from 1 on."""

    seconds: int
    computes: bool
    links: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class Ticks:
    """The whole, and of each work begin, end, what is exposed and slack."""

    seconds: Fraction
    works: tuple[tuple[Fraction, Fraction, Fraction, Fraction], ...]


def run(works: Sequence[Work], slowdown: int) -> Ticks:
    """From the end: what others wait for comes last. Parts of a tick have ``slowdown`` as unit."""
    tick = Fraction(1, slowdown)
    count = len(works)
    left = [Fraction(work.seconds) for work in works]
    began: dict[int, Fraction] = {}
    ended: dict[int, Fraction] = {}
    exposed = [Fraction(0)] * count
    now = Fraction(0)
    readers = [[r for r in range(count) if t in works[r].after] for t in range(count)]

    def is_ready(task: int) -> bool:
        return task not in began and all(reader in ended for reader in readers[task])

    def taken() -> int:
        links = 0
        for task in began:
            links |= 0 if task in ended else works[task].links
        return links

    def begin_some() -> None:
        while True:
            ready = [
                task
                for task in range(count)
                if is_ready(task) and not works[task].computes and not works[task].links & taken()
            ]
            # The one that is longest waited for: whose maker stands last in the program.
            heads = {
                links: max(
                    (max(works[t].after, default=-1), t)
                    for t in range(count)
                    if is_ready(t) and not works[t].computes and works[t].links == links
                )[1]
                for links in {works[t].links for t in ready}
            }
            if not heads:
                break
            chosen = max(heads.values(), key=lambda t: (max(works[t].after, default=-1), t))
            began[chosen] = now
        if any(works[t].computes and t not in ended for t in began):
            return
        computing = [t for t in range(count) if is_ready(t) and works[t].computes]
        alone = max((t for t in computing if not works[t].links), default=-1)
        both = max((t for t in computing if works[t].links), default=-1)
        if both >= 0 and works[both].links & taken():
            both = -1
        if max(alone, both) >= 0:
            began[max(alone, both)] = now

    while len(ended) < count:
        begin_some()
        running = [task for task in began if task not in ended]
        sending = [task for task in running if not works[task].computes]
        computing = [task for task in running if works[task].computes]
        if not computing:
            first = min(sending, key=lambda t: left[t])
            exposed[first] += tick
        now += tick
        for task in sending:
            left[task] -= tick
        for task in computing:
            is_slowed = bool(sending) and not works[task].links
            left[task] -= tick / slowdown if is_slowed else tick
        for task in running:
            if left[task] <= 0:
                ended[task] = now
    found = tuple(
        (
            now - ended[t],
            now - began[t],
            exposed[t],
            min([began[before] for before in works[t].after], default=now) - ended[t],
        )
        for t in range(count)
    )
    return Ticks(now, found)
