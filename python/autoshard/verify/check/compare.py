"""Whether two runs of a program gave the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Piece = tuple[tuple[slice, ...], np.ndarray]
"""What a device has of an array, and where in it that is."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What two runs may differ by."""

    of_element: float
    of_largest: float
    """Smaller elements may be what is left of larger ones."""


DOUBLE = Tolerance(1e-6, 1e-9)
"""Sums in another order differ by 1e-16 of their terms in double precision; a wrong program differs
by parts of the values. Between lies room for what amplifies rounding."""

SINGLE = Tolerance(1e-5, 1e-6)
"""Where something is added up in single precision: by 6e-8 of the terms."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of one array on all devices from what it should be."""

    different: int
    """Elements that differ on some device by more than the tolerance, or that none holds."""
    elements: int
    error: float
    """The largest of all; infinite where only one of two is a finite number."""
    finite: int
    """Elements of the right array that are finite numbers."""
    largest: float
    """The largest of them, by magnitude."""

    @property
    def is_same(self) -> bool:
        """Up to the tolerance."""
        return self.different == 0

    @property
    def relative_error(self) -> float:
        """The largest error over the largest element."""
        return self.error / self.largest if self.largest else float("inf")


def by_stage(right: Sequence[Piece], pieces: Sequence[Piece]) -> tuple[np.ndarray, list[Piece]]:
    """What each stage has, in an array with a dim for them, and the pieces of their devices in it.

    Args:
        right: The whole of each stage, one of them where there are no stages.
        pieces: Of all devices, those of a stage one behind the other.
    """
    devices = len(pieces) // len(right)
    placed = [
        ((slice(number // devices, number // devices + 1), *where), piece[None])
        for number, (where, piece) in enumerate(pieces)
    ]
    return np.stack([whole for _, whole in right]), placed


def compare(
    right: np.ndarray,
    pieces: Sequence[Piece],
    tolerance: Tolerance | None,
) -> Difference:
    """Compare the pieces that devices hold with the whole.

    Args:
        right: The whole array.
        pieces: Where in the whole each device's piece is, and the piece.
        tolerance: Of floats; None: the least difference counts.
    """
    wrong = np.ones(right.shape, bool)  # what no device holds
    for where, _ in pieces:
        wrong[where] = False
    inexact = right.dtype.kind in "fc"
    if not inexact and right.dtype.kind not in "biu":
        right = right.astype(np.float32)  # int4 and the like
        pieces = [(where, piece.astype(np.float32)) for where, piece in pieces]
    finite = np.isfinite(right)
    largest = float(np.abs(right[finite].astype(complex)).max()) if finite.any() else 0.0
    error = 0.0
    for where, piece in pieces:
        expected = right[where]
        assert piece.shape == expected.shape, "a piece is as large as its place"
        with np.errstate(all="ignore"):
            same = piece == expected
            if inexact:
                same |= np.isnan(piece) & np.isnan(expected)
            gap = np.abs(piece.astype(complex) - expected.astype(complex))
            gap = np.where(same, 0.0, np.nan_to_num(gap, nan=np.inf))
            if inexact and tolerance is not None:
                allowed = tolerance.of_element * np.abs(expected) + tolerance.of_largest * largest
                same |= gap <= np.nan_to_num(allowed, nan=0.0, posinf=0.0)
        wrong[where] |= ~same
        error = max(error, float(gap.max(initial=0.0)))
    return Difference(int(wrong.sum()), int(right.size), error, int(finite.sum()), largest)
