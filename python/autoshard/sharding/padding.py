"""Dims that are cut although their size does not divide: XLA pads them inside of the program."""

from __future__ import annotations

from collections.abc import Sequence


def padded_size(size: int, devices: int) -> int:
    """What a dim counts as on so many devices: the next multiple, if every device gets a row.

    Example:
        250 on 7 devices is 252; 5 is 5, as two devices would have nothing.
    """
    return size if size < devices else -(-size // devices) * devices


def padded_shape(shape: Sequence[int], devices: int) -> tuple[int, ...]:
    """Padded shape of a value that is neither an argument nor a result of the program."""
    return tuple(padded_size(size, devices) for size in shape)
