"""Which convolutions XLA would swap wrongly; verdicts are those of jaxlib 0.10.2 and 0.12.0.1."""

from __future__ import annotations

import pytest

from autoshard.exporter.blocks.swapped import Dim, swapped_wrongly


def wide(pixels: int, taps: int = 2) -> Dim:
    """A dim that is padded behind."""
    return Dim(pixels, taps, 1, (0, 3), 2, 2, is_reversed=False)


def like_groups(pixels: int, taps: int, behind: int = 0) -> Dim:
    return Dim(pixels, taps, taps - 1, (0, behind), taps, 1, is_reversed=False)


@pytest.mark.parametrize(
    ("dims", "wrong"),
    [
        ((wide(1), like_groups(5, 2)), [1]),  # ends the process
        ((wide(2), like_groups(5, 2)), []),  # not swapped: as many pixels as taps
        ((wide(1), like_groups(2, 2)), []),  # swapped, and right
        ((wide(1), like_groups(5, 2, behind=1)), []),
        ((wide(1), like_groups(5, 3)), [1]),  # ends the process
        ((wide(1), like_groups(5, 3, behind=1)), []),
        ((wide(1, taps=3), like_groups(5, 2, behind=1)), []),
    ],
)
def test_a_dim_dilated_by_its_taps_is_wrong_where_operands_are_swapped(
    dims: tuple[Dim, Dim], wrong: list[int]
) -> None:
    assert swapped_wrongly(dims) == wrong
