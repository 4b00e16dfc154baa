"""What a redistribution sends, against volumes worked out by hand."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_oracle import Dims, blocks, shardings

from autoshard import _core

MESH = (2, 4)
SHAPE = (64, 128)
"""float32: 32 KiB."""
KIB = 1024


def sent(
    before: Dims, after: Dims, partial: tuple[int, ...] = (), shape=SHAPE, mesh=MESH, bits: int = 32
) -> tuple[float, int]:
    mask = sum(1 << axis for axis in partial)
    return _core.redistribution(shape, bits, before, after, mask, mesh)


@pytest.mark.parametrize(
    ("before", "after", "partial", "expected"),
    [
        # all-gather: (n-1) times what a device holds
        (((0,), ()), ((), ()), (), (16 * KIB, 1)),
        (((1,), ()), ((), ()), (), (3 * 8 * KIB, 1)),
        (((0, 1), ()), ((), ()), (), (7 * 4 * KIB, 1)),
        (((0, 1), ()), ((0,), ()), (), (3 * 4 * KIB, 1)),
        (((0,), (1,)), ((), ()), (), (7 * 4 * KIB, 2)),
        # all-to-all: (n-1)/n of what a device holds
        (((0,), ()), ((), (0,)), (), (0.5 * 16 * KIB, 1)),
        (((0, 1), ()), ((), (0, 1)), (), (7 / 8 * 4 * KIB, 1)),
        (((0, 1), ()), ((0,), (1,)), (), (3 / 4 * 4 * KIB, 1)),
        # a swap: half of axis 1 moves to the rows, then all blocks move to their devices
        (((0,), (1,)), ((1,), (0,)), (), (0.5 * 4 * KIB + 4 * KIB, 2)),
        # permute: all that a device holds
        (((0, 1), ()), ((1, 0), ()), (), (4 * KIB, 1)),
        # slices come first and are free, gathers last
        (((0,), ()), ((), (1,)), (), (4 * KIB, 1)),
        # all-reduce: 2 (n-1)/n of what a device holds
        (((), ()), ((), ()), (0,), (32 * KIB, 1)),
        (((), ()), ((), ()), (1,), (2 * 3 / 4 * 32 * KIB, 1)),
        (((), ()), ((), ()), (0, 1), (2 * 7 / 8 * 32 * KIB, 1)),
        (((0,), ()), ((0,), ()), (1,), (2 * 3 / 4 * 16 * KIB, 1)),
        # reduce-scatter: (n-1)/n of it
        (((), ()), ((1,), ()), (1,), (3 / 4 * 32 * KIB, 1)),
        (((), ()), ((0,), ()), (0, 1), (0.5 * 32 * KIB + 2 * 3 / 4 * 16 * KIB, 2)),
        # a slice before the all-reduce makes it smaller
        (((), ()), ((0,), ()), (1,), (2 * 3 / 4 * 16 * KIB, 1)),
    ],
)
def test_bytes_and_collectives(before: Dims, after: Dims, partial, expected) -> None:
    assert sent(before, after, partial) == pytest.approx(expected)


def test_bytes_follow_the_width_of_elements() -> None:
    gather = (((0,), ()), ((), ()))
    assert sent(*gather, bits=4) == (2 * KIB, 1)
    assert sent(*gather, bits=8) == (4 * KIB, 1)
    assert sent(*gather, bits=64) == (32 * KIB, 1)


def test_a_swap_of_axes_between_dims_costs_less_than_gathering_all() -> None:
    swapped, _ = sent(((0,), (1,)), ((1,), (0,)))
    gathered, _ = sent(((0,), (1,)), ((), ()))
    assert swapped < gathered


@st.composite
def cases(draw: st.DrawFn, count: int) -> tuple[tuple[int, ...], tuple[int, ...], list[Dims]]:
    """A mesh, a shape and shardings of it."""
    mesh = tuple(draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3)))
    shape = tuple(draw(st.lists(st.sampled_from([24, 48, 144]), min_size=1, max_size=3)))
    options = shardings(shape, mesh)
    return mesh, shape, [draw(st.sampled_from(options)) for _ in range(count)]


@settings(max_examples=300, deadline=None)
@given(cases(2))
def test_costs_nothing_only_without_a_collective(case) -> None:
    mesh, shape, (before, after) = case
    sent_bytes, collectives = sent(before, after, (), shape, mesh)
    assert (sent_bytes == 0) == (collectives == 0)
    assert sent_bytes >= 0
    only_cuts_further = all(new[: len(old)] == old for old, new in zip(before, after, strict=True))
    assert (sent_bytes == 0) == only_cuts_further


@settings(max_examples=200, deadline=None)
@given(cases(1))
def test_staying_is_free(case) -> None:
    mesh, shape, (dims,) = case
    assert sent(dims, dims, (), shape, mesh) == (0, 0)


@settings(max_examples=300, deadline=None)
@given(cases(2))
def test_never_more_than_gathering_all_and_slicing(case) -> None:
    mesh, shape, (before, after) = case
    direct, _ = sent(before, after, (), shape, mesh)
    whole, _ = sent(before, ((),) * len(shape), (), shape, mesh)
    held = 4 * prod(shape) / prod(blocks(axes, mesh) for axes in before)
    # axes that change order within a dim are permuted: at most what a device holds, twice
    assert direct <= whole + 2 * held


@settings(max_examples=300, deadline=None)
@given(cases(2), st.data())
def test_a_partial_sum_is_never_free(case, data) -> None:
    mesh, shape, (before, after) = case
    used = {axis for axes in before for axis in axes}
    idle = [axis for axis in range(len(mesh)) if axis not in used]
    assume(idle)
    partial = tuple(data.draw(st.lists(st.sampled_from(idle), min_size=1, unique=True)))
    summed, collectives = sent(before, after, partial, shape, mesh)
    assert summed > 0
    assert collectives >= 1


@settings(max_examples=200, deadline=None)
@given(cases(2))
def test_bytes_are_linear_in_the_size_of_elements(case) -> None:
    mesh, shape, (before, after) = case
    narrow, _ = sent(before, after, (), shape, mesh, bits=16)
    wide, _ = sent(before, after, (), shape, mesh, bits=64)
    assert wide == pytest.approx(4 * narrow)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([(2,), (4,), (2, 2), (2, 4), (2, 2, 2), (2, 3)]), st.data())
def test_no_detour_is_shorter(mesh: tuple[int, ...], data) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([24, 48]), min_size=1, max_size=2)))
    options = st.sampled_from(shardings(shape, mesh))
    start, stop, end = (data.draw(options) for _ in range(3))
    direct, _ = sent(start, end, (), shape, mesh)
    first, _ = sent(start, stop, (), shape, mesh)
    second, _ = sent(stop, end, (), shape, mesh)
    # a way of fewer steps is taken at up to a thousandth of the tensor more
    assert direct <= first + second + 4 * prod(shape) / 1000
