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
    slack = draw.choice([1.0, 1.25, 2.0])
    found = loop_shares(seconds, parts, stages, slack)
    times = {
        shares: its
        for shares in all_shares(own, stages)
        if (its := slowest(seconds, parts, shares, stages)) is not None
    }
    if not times:
        assert found is None
        return
    assert found is not None
    limit = min(times.values()) * slack
    assert times[found] <= limit * (1 + 1e-4)
    few = min(number_of_parts(shares) for shares, its in times.items() if its <= limit)
    assert number_of_parts(found) <= few


def loop_shares(
    seconds: Sequence[float], parts: Sequence[Sequence[int]], stages: int, slack: float
) -> tuple[tuple[int, int], ...] | None:
    """The first stage and the parts of each loop."""
    found = _core.loop_shares(seconds, parts, stages=stages, slack=slack)
    return None if found is None else tuple((share.first_stage, share.parts) for share in found)


def number_of_parts(shares: Sequence[tuple[int, int]]) -> int:
    return sum(parts for _, parts in shares)


def test_loops_are_in_as_few_parts_as_the_best_time_allows() -> None:
    assert loop_shares([8.0, 1.0], [[1, 2, 4], []], 3, 1.0) == ((0, 2),)
    assert loop_shares([8.0], [[1, 2, 4]], 4, 1.0) == ((0, 4),)
    assert loop_shares([8.0], [[1, 3]], 4, 1.0) is None


def test_slack_takes_fewer_parts() -> None:
    ends = [1.0, 8.0, 1.0], [[], [1, 2, 4], []]
    found = [loop_shares(*ends, stages=4, slack=slack) for slack in (1.0, 1.5, 3.0)]
    assert found == [((0, 4),), ((1, 2),), ((0, 1),)]


@pytest.mark.parametrize(
    ("parts", "stages", "slack", "said"),
    [
        ([[1, 2]], 0, 1.0, "stages=0: expected 1 or more"),
        ([[1, 2]], 2, 0.5, "slack=0.5: expected 1 or more"),
        ([[1, 0]], 2, 1.0, r"parts\[0\]: is cut into 0 parts"),
        ([], 2, 1.0, "parts: must be as long as seconds"),
    ],
)
def test_what_is_no_share_is_refused(
    parts: Sequence[Sequence[int]], stages: int, slack: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        _core.loop_shares([8.0], parts, stages=stages, slack=slack)
