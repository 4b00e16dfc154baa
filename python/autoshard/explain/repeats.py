"""Stretches of a sequence that follow each other several times, as those of equal layers do.

In ``a b c b c b c d`` a stretch begins at 1, of rounds of 2, 3 times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NEXT = 3
"""How many times a layer may have something alike, before it is not told from the next one."""

_LEAST_TIMES = 3
"""Rounds of what is taken to repeat: what is there twice may be so by chance."""

_MOST_LENGTHS = 64
"""Lengths of a round that are tried."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rounds that are alike."""

    first: int
    """Index at which the first one begins."""
    length: int
    """Items of one round."""
    times: int

    @property
    def end(self) -> int:
        """Index behind the last one."""
        return self.first + self.length * self.times


def repeated(keys: Sequence[int], weights: Sequence[float], least: float) -> list[Stretch]:
    """What repeats, in order, without overlaps: what covers most is taken first.

    Args:
        keys: The sequence.
        weights: Of each of its items, not negative.
        least: Weight of all rounds below which they are left as they are.
    """
    row = np.asarray(keys, np.int64)
    total = np.concatenate([[0.0], np.cumsum(weights)])
    found = [
        stretch
        for length in _lengths(row)
        for stretch in _stretches(row, length)
        if total[stretch.end] - total[stretch.first] >= least
    ]
    found.sort(key=lambda one: (one.first - one.end, one.length, one.first))
    is_free = np.ones(len(row), bool)
    kept: list[Stretch] = []
    for one in found:
        if is_free[one.first : one.end].all():
            is_free[one.first : one.end] = False
            kept.append(one)
    return sorted(kept, key=lambda one: one.first)


def _lengths(row: NDArray[np.int64]) -> list[int]:
    """How far what is alike lies apart: the distances that may cover most."""
    order = np.argsort(row, kind="stable")
    apart = [
        (order[step:] - order[:-step])[row[order[step:]] == row[order[:-step]]]
        for step in range(1, min(_NEXT, len(row) - 1) + 1)
    ]
    if not apart:
        return []
    lengths, counts = np.unique(np.concatenate(apart), return_counts=True)
    best = np.argsort(-lengths * counts, kind="stable")[:_MOST_LENGTHS]
    return lengths[best].tolist()


def _stretches(row: NDArray[np.int64], length: int) -> Iterator[Stretch]:
    """Those with rounds of one length."""
    alike = np.concatenate([[False], row[length:] == row[:-length], [False]])
    edges = np.flatnonzero(alike[1:] != alike[:-1])
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        times = (end - first + length) // length
        if times >= _LEAST_TIMES:
            yield Stretch(first, length, times)
