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


def test_stages_take_as_long_as_each_other_where_their_parts_cannot():
    ones = [1.0] * 10
    found = _core.line_cuts(ones, [1.0] * 10, [0] * 10, [5] * 10, stages=2, slack=1.0, chunks=3)
    assert found is not None
    begins = [0, *found.first_units, 10]
    parts = [end - begin for begin, end in pairwise(begins)]
    assert parts == [1, 1, 2, 2, 2, 2], "the first turn, in which stages wait, is the shortest"


@pytest.mark.parametrize("seed", range(40))
def test_stages_with_several_parts_are_no_slower_than_with_equal_limits(seed):
    draw = random.Random(seed)
    stages, chunks = draw.randint(1, 3), draw.randint(2, 3)
    parts = stages * chunks
    count = draw.randint(parts, 12)
    seconds = [float(draw.randint(1, 6)) for _ in range(count)]
    data, first, last = [1.0] * count, [0] * count, [parts - 1] * count
    found = _core.line_cuts(seconds, data, first, last, stages=stages, slack=1.0, chunks=chunks)
    assert found is not None
    begins = [0, *found.first_units, count]
    taken = [sum(seconds[b:e]) for b, e in pairwise(begins)]
    assert all(taken)
    equal = min(slowest for slowest, _ in all_cuts(seconds, data, first, last, parts))
    assert max(sum(taken[stage::stages]) for stage in range(stages)) <= chunks * equal * (1 + 1e-6)
