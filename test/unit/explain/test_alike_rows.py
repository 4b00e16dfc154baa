"""Rows that are equal, against a dict of tuples."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from autoshard.explain.folding import alike_rows


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_equal_tuples(seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        (chance.randrange(4), chance.randrange(3) - 2**40, chance.choice((0.0, -0.0, 1e-9, 2.5)))
        for _ in range(seed and chance.randrange(300))
    ]
    groups: defaultdict[tuple[int, int, float], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row].append(number)
    assert alike_rows([[row[n] for row in rows] for n in range(3)]) == list(groups.values())


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="inhomogeneous"):
        alike_rows([[1, 2], [1]])
