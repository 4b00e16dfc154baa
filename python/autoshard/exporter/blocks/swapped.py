"""Convolutions whose operands XLA would swap wrongly.

XLA's simplifier takes a spatial dim for one of groups where the images are dilated by the number of
taps, the windows move by one less, and nothing is padded; swapping images and kernel it keeps the
number of taps, and ends the process unless there are as many pixels (jaxlib 0.10.2 and 0.12.0.1, on
one device as on many: ``conv_operand_swapper.cc``). Blocks of an image may be such where the image
is not: their edges are read, not padded. So they get some padding, and the results of it are cut
off.

before  convolution(x, w), pad = [[0, 0]], lhs_dilate = [2]
after   slice(convolution(x, w), pad = [[0, 1]], lhs_dilate = [2])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Dim:
    """One spatial dim of a convolution."""

    pixels: int
    taps: int
    stride: int
    padding: tuple[int, int]
    image_dilation: int
    kernel_dilation: int
    is_reversed: bool

    @property
    def is_plain(self) -> bool:
        """Whether only sizes, strides and the dilation of images decide."""
        return self.padding == (0, 0) and self.kernel_dilation == 1 and not self.is_reversed

    @property
    def looks_like_groups(self) -> bool:
        """Whether XLA takes it for a dim of groups."""
        return self.is_plain and self.image_dilation == self.taps and self.stride == self.taps - 1

    @property
    def is_contracted(self) -> bool:
        """Whether a single window covers the images."""
        return (
            self.is_plain and self.taps == self.pixels and self.image_dilation == self.stride == 1
        )

    @property
    def pixels_as_taps(self) -> int:
        """How many taps there are along it when images and kernel are swapped, as XLA counts."""
        edge = self.taps - 1
        is_outer = self.pixels == self.stride == self.kernel_dilation == 1 and self.padding == (
            edge,
            edge,
        )
        return self.taps if is_outer else self.pixels


def swapped_wrongly(dims: Sequence[Dim]) -> list[int]:
    """Numbers of the spatial dims of a convolution without groups that end XLA's process."""
    others = [dim for dim in dims if not dim.looks_like_groups and not dim.is_contracted]
    if prod(dim.taps for dim in others) <= prod(dim.pixels_as_taps for dim in others):
        return []
    return [
        number
        for number, dim in enumerate(dims)
        if dim.looks_like_groups and dim.pixels != dim.taps
    ]
