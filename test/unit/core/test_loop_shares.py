"""Parts of loops over layers on stages, against all that there are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from autoshard import _core


def all_shares(
    parts: Sequence[Sequence[int]], stages: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every ``(first stage, parts)`` of the loops, in their order, each from the stage on which the
    one before it ends."""
    choices = [
        [(first, count) for first in range(stages) for count in own if first + count <= stages]
        for own in parts
    ]
    for shares in product(*choices):
        ends = [first + count - 1 for first, count in shares]
        if all(end <= first for end, (first, _) in zip(ends, shares[1:], strict=False)):
            yield shares


def slowest(
    seconds: Sequence[float],
    parts: Sequence[Sequence[int]],
    shares: Sequence[tuple[int, int]],
    stages: int,
) -> float | None:
    """Seconds of the slowest stage with other ops spread as well as can be; None: a stage has
    nothing. By halving what it may take, not by the formula of what is tested."""
    if not _fits(seconds, parts, shares, stages, limit := sum(seconds) + 1.0):
        return None
    fails = 0.0
    for _ in range(60):
        middle = (fails + limit) / 2
        if _fits(seconds, parts, shares, stages, middle):
            limit = middle
        else:
            fails = middle
    return limit


def _fits(
    seconds: Sequence[float],
    parts: Sequence[Sequence[int]],
    shares: Sequence[tuple[int, int]],
    stages: int,
    limit: float,
) -> bool:
    """Whether ops go where loops leave room, each between the loops that are around it."""
    load = [0.0] * stages
    is_used = [False] * stages
    loops = iter(shares)
    where: list[tuple[int, int] | None] = []
    for its, own in zip(seconds, parts, strict=True):
        if not own:
            where.append(None)
            continue
        first, count = next(loops)
        where.append((first, count))
        for stage in range(first, first + count):
            load[stage] += its / count
            is_used[stage] = True
    if any(its > limit * (1 + 1e-12) for its in load):
        return False
    low = 0
    for number, (its, at) in enumerate(zip(seconds, where, strict=True)):
        if at is not None:
            low = at[0] + at[1] - 1
            continue
        after = [other for other in where[number + 1 :] if other is not None]
        high = after[0][0] if after else stages - 1
        left = its
        for stage in range(low, high + 1):
            if its > 0:
                is_used[stage] = True
            taken = min(left, limit - load[stage])
            load[stage] += taken
            left -= taken
        if left > 1e-9:
            return False
    return all(is_used)


@pytest.mark.parametrize("seed", range(40))
def test_shares_are_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    stages = draw.randint(1, 4)
    kinds = draw.choice([[0, 1, 0], [1, 0], [0, 1, 0, 1, 0], [1, 1], [0, 1]])
    parts = [draw.choice([[1, 2, 4], [1, 3], [1], [1, 2]]) if is_loop else [] for is_loop in kinds]
    seconds = [float(draw.randint(1, 12)) for _ in kinds]
    own = [each for each in parts if each]
    found = _core.loop_shares(seconds, parts, stages=stages, slack=1.0)
    best = [
        its
        for shares in all_shares(own, stages)
        if (its := slowest(seconds, parts, shares, stages)) is not None
    ]
    if not best:
        assert found is None
        return
    assert found is not None
    shares = [(share.first_stage, share.parts) for share in found]
    its = slowest(seconds, parts, shares, stages)
    assert its == pytest.approx(min(best), rel=1e-4)


def test_slack_takes_fewer_parts() -> None:
    seconds, parts = [8.0, 1.0], [[1, 2, 4], []]
    few = _core.loop_shares(seconds, parts, stages=3, slack=1.0)
    assert few is not None
    assert [(share.first_stage, share.parts) for share in few] == [(0, 2)]
    four = _core.loop_shares([8.0], [[1, 2, 4]], stages=4, slack=1.0)
    assert four is not None
    assert [(share.first_stage, share.parts) for share in four] == [(0, 4)]
    assert _core.loop_shares([8.0], [[1, 3]], stages=4, slack=1.0) is None
