"""Rows that are equal, against a dict of tuples."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from autoshard import _core


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_equal_tuples(seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        (chance.randrange(4), chance.randrange(3) - 2**40, chance.choice((0.0, -0.0, 1e-9, 2.5)))
        for _ in range(chance.randrange(300))
    ]
    groups: defaultdict[tuple[int, int, float], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row].append(number)
    first, second, third = ([row[n] for row in rows] for n in range(3))
    assert _core.alike_rows([first, second], [third]) == list(groups.values())


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="columns differ in length"):
        _core.alike_rows([[1, 2], [1]], [])
    assert _core.alike_rows([], []) == []
    assert _core.alike_rows([], [[1.0, 2.0, 1.0]]) == [[0, 2], [1]]
