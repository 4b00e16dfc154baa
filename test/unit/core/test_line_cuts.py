"""Cuts of a line into stages, against all that there are."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from autoshard import _core


def all_cuts(seconds, data, first, last, stages):
    """(slowest stage, bytes) of every cut that keeps to the ranges."""
    count = len(seconds)
    for inner in combinations(range(1, count), stages - 1):
        bounds = [0, *inner, count]
        parts = list(pairwise(bounds))
        if all(
            first[u] <= stage <= last[u]
            for stage, (begin, end) in enumerate(parts)
            for u in range(begin, end)
        ):
            yield max(sum(seconds[b:e]) for b, e in parts), sum(data[cut] for cut in inner)


@pytest.mark.parametrize("seed", range(60))
def test_cuts_are_the_best_of_all(seed):
    draw = random.Random(seed)
    count, stages = draw.randint(2, 9), draw.randint(1, 4)
    slack = draw.choice([1.0, 1.05, 1.5])
    seconds = [float(draw.randint(0, 6)) for _ in range(count)]
    data = [float(draw.randint(0, 9)) for _ in range(count)]
    first, last = [0] * count, [stages - 1] * count
    if seed % 2:
        marked, stage = draw.randrange(count), draw.randrange(stages)
        first[marked:] = [stage] * (count - marked)
        last[: marked + 1] = [stage] * (marked + 1)
    found = _core.line_cuts(seconds, data, first, last, stages=stages, slack=slack)
    cuts = list(all_cuts(seconds, data, first, last, stages))
    if not cuts:
        assert found is None
        return
    assert found is not None
    least = min(slowest for slowest, _ in cuts)
    allowed = [sent for slowest, sent in cuts if slowest <= least * slack * (1 + 1e-9)]
    assert found.bytes == min(allowed)
    assert found.slowest_seconds <= least * slack * (1 + 1e-9)
