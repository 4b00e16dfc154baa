"""Arithmetic on device orders: which digits of a device's number say where it sits.

A number of a mesh axis is written in mixed radix. A *digit* is a run of consecutive numbers
along which a value grows by a constant step, so that a sub-axis of a mesh axis is a digit.
Arrays are int64. Nothing here knows names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Digit:
    """Numbers ``0, block, 2 * block, ..`` (``size`` of them) give ``0, step, 2 * step, ..``."""

    size: int
    block: int
    """Product of the sizes of the more minor digits."""
    step: tuple[int, ...]


def digits_of(values: IntArray) -> list[Digit] | None:
    """The digits, minor first, whose sum is ``values``; None if there are none.

    Args:
        values: Shape ``(n, k)``: ``k`` values for each of ``n`` numbers. Row 0 must be zero.

    Example:
        ``[[0], [4], [1], [5]]`` -> digit of size 2 with step 4, then one of size 2 with step 1.
    """
    count = len(values)
    if count and values[0].any():
        return None
    digits: list[Digit] = []
    block = 1
    while block < count:
        heads = values[::block]
        step = heads[1]
        differs = (heads != np.arange(len(heads))[:, None] * step).any(axis=1)
        run = int(differs.argmax()) if differs.any() else len(heads)
        if len(heads) % run:
            return None
        digits.append(Digit(run, block, tuple(int(x) for x in step)))
        block *= run
    rebuilt = np.zeros_like(values)
    numbers = np.arange(count)
    for digit in digits:
        rebuilt += (numbers // digit.block % digit.size)[:, None] * np.array(digit.step)
    return digits if np.array_equal(rebuilt, values) else None


@dataclass(frozen=True, slots=True)
class SubAxis:
    """The digit of mesh axis ``axis`` with ``size`` numbers, more minor ones below ``block``."""

    axis: int
    size: int
    block: int


def axes_of_coordinates(
    axis_sizes: Sequence[int], coordinates: IntArray, sizes: Sequence[int]
) -> list[tuple[SubAxis, ...]] | None:
    """Which sub-axes of a mesh, major first, make each of ``k`` coordinates.

    Args:
        axis_sizes: The mesh, first axis outermost; ``n`` devices.
        coordinates: Shape ``(n, k)``: for each mesh position (row-major) its ``k`` coordinates.
        sizes: For each coordinate, how many values it takes.

    Returns:
        One tuple of sub-axes a coordinate, or None when no choice of sub-axes gives exactly
        these coordinates.
    """
    count = len(sizes)
    shape = (*axis_sizes, count)
    grid = coordinates.reshape(shape)
    total = np.zeros(shape, dtype=np.int64)
    found: list[list[tuple[int, SubAxis]]] = [[] for _ in sizes]
    for axis, size in enumerate(axis_sizes):
        line = grid[tuple(slice(None) if other == axis else 0 for other in range(len(axis_sizes)))]
        digits = digits_of(line)
        if digits is None:
            return None
        total += line.reshape(
            [size if other == axis else 1 for other in range(len(axis_sizes))] + [count]
        )
        for digit in digits:
            moved = [k for k, step in enumerate(digit.step) if step]
            if len(moved) > 1:
                return None
            for k in moved:
                found[k].append((digit.step[k], SubAxis(axis, digit.size, digit.block)))
    if not np.array_equal(total, grid):
        return None
    ordered: list[tuple[SubAxis, ...]] = []
    for parts, size in zip(found, sizes, strict=True):
        parts.sort(key=lambda part: part[0])
        stride = 1
        for step, part in parts:
            if step != stride:
                return None
            stride *= part.size
        if stride != size:
            return None
        ordered.append(tuple(part for _, part in reversed(parts)))
    return ordered


def transposed_iota(order: IntArray) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """``(reshape, permutation)`` of ``order = iota.reshape(reshape).transpose(permutation)``.

    The shortest such pair (XLA's canonical form), or None if ``order`` is not of this kind.
    """
    digits = digits_of(order[:, None])
    if digits is None:
        return None
    major_first = digits[::-1]
    by_stride = sorted(major_first, key=lambda digit: -digit.step[0])
    stride = 1
    for digit in reversed(by_stride):
        if digit.step[0] != stride:
            return None
        stride *= digit.size
    places = {digit.step[0]: place for place, digit in enumerate(by_stride)}
    return (
        tuple(digit.size for digit in by_stride),
        tuple(places[digit.step[0]] for digit in major_first),
    )


def canonical_iota(
    reshape: Sequence[int], permutation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shortest ``(reshape, permutation)`` of the same order: no ones, no neighbours kept.

    Example:
        ``[2,2,2]T(2,0,1)`` -> ``[4,2]T(1,0)``.
    """
    runs: list[list[int]] = []
    kept = [place for place in permutation if reshape[place] != 1]
    for place in kept:
        # A run goes on when the dims between its last one and this one are all of size 1.
        if runs and place > runs[-1][-1] and prod(reshape[runs[-1][-1] + 1 : place]) == 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    source = sorted(range(len(runs)), key=lambda run: runs[run][0])
    rank_of = {run: rank for rank, run in enumerate(source)}
    return (
        tuple(prod(reshape[place] for place in runs[run]) for run in source),
        tuple(rank_of[run] for run in range(len(runs))),
    )


def chain_of_cuts(cuts: Iterable[int]) -> list[int] | tuple[int, int]:
    """The cuts in rising order if each divides the next, else the first pair that does not."""
    ordered = sorted(set(cuts))
    for smaller, larger in pairwise(ordered):
        if larger % smaller:
            return smaller, larger
    return ordered


def prime_factors(size: int) -> list[int]:
    """``12`` -> ``[2, 2, 3]``; ``1`` has none."""
    primes: list[int] = []
    divisor = 2
    while size > 1:
        while size % divisor == 0:
            primes.append(divisor)
            size //= divisor
        divisor += 1
    return primes
