"""What one block of a result reads of an operand that is cut along the same dim: its window.

A window op (convolution, pooling, pad, slice) computes result ``o`` of

    padded[o * stride : o * stride + extent]

where ``padded`` is the operand with ``dilation - 1`` elements between neighbours and ``low`` in
front. A device with results ``[i * block, (i + 1) * block)`` reads a window of elements that is as
long on every device. Most of it is the device's own block, the rest (the halo) comes from its
neighbours. Arithmetic only: what ops are written for it is in ``exporter/blocks/windows.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Window:
    """Which elements along one dim each device reads, and how its op sees them.

    Device ``i`` reads ``length`` elements from ``starts[i]`` on; what lies outside of the operand
    is padding. They stand ``dilation`` apart. The op reads ``extent`` positions of that, from
    ``offsets[i]`` on; positions before the first element (a negative offset) and between elements
    are padding, too.
    """

    size: int
    """Elements of the whole operand along the dim."""
    starts: tuple[int, ...]
    length: int
    dilation: int
    offsets: tuple[int, ...]
    extent: int

    @property
    def has_one_offset(self) -> bool:
        """Whether all devices pad alike, so that the op can do it by itself."""
        return len(set(self.offsets)) == 1

    @property
    def reaches_outside(self) -> bool:
        """Whether some device reads padding in place of elements."""
        return min(self.starts) < 0 or max(self.starts) + self.length > self.size

    @property
    def has_elements(self) -> bool:
        """Whether any device reads more than padding before, between and behind the elements."""
        starts, offsets = np.array(self.starts), np.array(self.offsets)
        # The first element at or behind the first position that is read, counted from `start`.
        nearest = np.maximum(-starts, -(-offsets // self.dilation)).clip(min=0)
        is_read = nearest * self.dilation < offsets + self.extent
        return bool(np.any(is_read & (starts + nearest < self.size)))

    def halo(self, own: int) -> tuple[int, int]:
        """Elements that a device needs before and behind its ``own``, the most of any device."""
        shifts = [start - number * own for number, start in enumerate(self.starts)]
        return max(0, -min(shifts)), max(0, max(shifts) + self.length - own)

    @property
    def low(self) -> int:
        """Positions before the first element; expects ``has_one_offset``."""
        return -self.offsets[0]

    @property
    def high(self) -> int:
        """Positions behind the last element; expects ``has_one_offset``."""
        return self.extent - self.low - ((self.length - 1) * self.dilation + 1)


def window_of(
    *, size: int, count: int, step: int, low: int, extent: int, dilation: int = 1
) -> Window:
    """The windows of ``count`` devices; device ``i`` reads from position ``i * step - low`` on.

    Args:
        size: Elements of the whole operand along the dim.
        count: Devices along the dim.
        step: Positions between the windows of neighbours: results a device * stride.
        low: Positions of padding before the operand; negative cuts off.
        extent: Positions that one device reads.
        dilation: Positions from one element to the next.

    Example:
        A convolution of 3 with padding of 1, 16 elements on 4 devices: ``step=4, low=1,
        extent=6``. Device 1 reads elements 3 to 8, its own 4 and one of each neighbour.
    """
    firsts = [number * step - low for number in range(count)]
    if len({-first % dilation for first in firsts}) == 1:
        starts = [-(-first // dilation) for first in firsts]
        offset = firsts[0] - starts[0] * dilation  # zero or negative
        length = (extent + offset - 1) // dilation + 1
        if length > 0:
            offsets = (offset,) * count
            return Window(size, tuple(starts), length, dilation, offsets, extent)
    starts = [first // dilation for first in firsts]
    offsets = tuple(first - start * dilation for first, start in zip(firsts, starts, strict=True))
    length = (max(offsets) + extent - 1) // dilation + 1
    return Window(size, tuple(starts), length, dilation, offsets, extent)
