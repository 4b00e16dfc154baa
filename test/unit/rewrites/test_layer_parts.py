"""How an array of the user lies in a program that has parts of it."""

from __future__ import annotations

import pytest

from autoshard.rewrites.layer_loops.parts import ArrayParts, RowParts


@pytest.mark.parametrize(
    ("stages", "homes"),
    [
        ((0, 1), (0, 1)),
        ((1, 0), (1, 0)),
        ((0, 1, 0, 1), (0, 0, 1, 1)),
        ((1, 2, 0, 1, 2, 0), (1, 1, 2, 2, 0, 0)),
    ],
)
def test_rows_of_one_stage_lie_next_to_each_other(
    stages: tuple[int, ...], homes: tuple[int, ...]
) -> None:
    parts = ArrayParts(tuple(range(len(stages))), stages=stages)
    assert parts.homes == homes
    assert parts.places == tuple(dict.fromkeys(homes))
    assert parts.is_moved == (stages != homes)


def test_what_is_whole_lies_anywhere_and_is_not_moved() -> None:
    whole = ArrayParts((3,))
    assert (whole.places, whole.homes, whole.is_moved) == ((), (), False)


def test_stages_take_turns_with_parts_of_rows() -> None:
    assert RowParts((1, 2, 3, 4), 2).stages == (1, 0, 1, 0)
