"""What a reshard sends, against volumes worked out by hand."""

from __future__ import annotations

from math import prod

import pytest
from core_cluster import core_cluster
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_oracle import Dims, blocks, shardings

from autoshard import _core
from autoshard.exporter.steps import reshard_steps
from autoshard.sharding import AxisRef, Sharding
from autoshard.sharding.mesh import Axis, Mesh

MESH = (2, 4)
SHAPE = (64, 128)
"""float32: 32 KiB."""
KIB = 1024


def sent(
    before: Dims, after: Dims, partial: tuple[int, ...] = (), shape=SHAPE, mesh=MESH, bits: int = 32
) -> tuple[float, int]:
    mask = sum(1 << axis for axis in partial)
    made = _core.reshard(shape, bits, before, after, mask, mesh)
    return made.bytes, made.collectives


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


GATHER, SCATTER, REDUCE, ALL_TO_ALL, PERMUTE = _core.CollectiveKind

Steps = list[tuple[int, int, int, float]]


def steps(
    before: Dims, after: Dims, partial: tuple[int, ...] = (), shape=SHAPE, mesh=MESH
) -> Steps:
    """(kind, axes as bits, participants, bytes held), of float32."""
    mask = sum(1 << axis for axis in partial)
    return rows(_core.reshard_steps(shape, 32, before, after, mask, mesh))


def rows(made: list[_core.Step]) -> Steps:
    return [(step.kind, step.axes, step.participants, step.held_bytes) for step in made]


def sent_bytes(of: Steps) -> float:
    factors = {
        GATHER: lambda n: n - 1,
        SCATTER: lambda n: (n - 1) / n,
        REDUCE: lambda n: 2 * (n - 1) / n,
        ALL_TO_ALL: lambda n: (n - 1) / n,
        PERMUTE: lambda n: 1,
    }
    return sum(factors[kind](n) * held for kind, _, n, held in of)


@pytest.mark.parametrize(
    ("before", "after", "partial", "expected"),
    [
        (((1,), ()), ((), ()), (), [(GATHER, 0b10, 4, 8 * KIB)]),
        # the smallest group first, whatever dim it is of
        (((0,), (1,)), ((), ()), (), [(GATHER, 0b01, 2, 4 * KIB), (GATHER, 0b10, 4, 8 * KIB)]),
        (((1,), (0,)), ((), ()), (), [(GATHER, 0b01, 2, 4 * KIB), (GATHER, 0b10, 4, 8 * KIB)]),
        (((0, 1), ()), ((0,), (1,)), (), [(ALL_TO_ALL, 0b10, 4, 4 * KIB)]),
        (((0,), ()), ((), (1,)), (), [(GATHER, 0b01, 2, 4 * KIB)]),
        (((0, 1), ()), ((1, 0), ()), (), [(PERMUTE, 0b11, 8, 4 * KIB)]),
        # half of axis 1 moves: 2 devices of 4
        (
            ((0,), (1,)),
            ((1,), (0,)),
            (),
            [(ALL_TO_ALL, 0b10, 2, 4 * KIB), (PERMUTE, 0b11, 8, 4 * KIB)],
        ),
        (((), ()), ((), ()), (0, 1), [(REDUCE, 0b11, 8, 32 * KIB)]),
        (
            ((), ()),
            ((0,), ()),
            (0, 1),
            [(SCATTER, 0b01, 2, 32 * KIB), (REDUCE, 0b10, 4, 16 * KIB)],
        ),
        # reduced in place, then moved
        (
            ((0,), ()),
            ((), (0,)),
            (1,),
            [(REDUCE, 0b10, 4, 16 * KIB), (ALL_TO_ALL, 0b01, 2, 16 * KIB)],
        ),
        (((0,), ()), ((0,), (1,)), (), []),
    ],
)
def test_steps(before: Dims, after: Dims, partial, expected: Steps) -> None:
    assert steps(before, after, partial) == expected


def test_of_equal_groups_the_most_major_axis_is_gathered_first() -> None:
    gathers = steps(((1,), (0,)), ((), ()), shape=(64, 64), mesh=(4, 4))
    assert [axes for _, axes, _, _ in gathers] == [0b01, 0b10]


@settings(max_examples=300, deadline=None)
@given(cases(2), st.data())
def test_steps_sum_up_to_the_bytes(case, data) -> None:
    mesh, shape, (before, after) = case
    used = {axis for axes in before for axis in axes}
    idle = [axis for axis in range(len(mesh)) if axis not in used]
    partial = tuple(data.draw(st.sets(st.sampled_from(idle)))) if idle else ()
    total, collectives = sent(before, after, partial, shape, mesh)
    made = steps(before, after, partial, shape, mesh)
    assert sent_bytes(made) == pytest.approx(total)
    assert len(made) == collectives


@st.composite
def moves(draw: st.DrawFn, mesh: tuple[int, ...]) -> tuple[Dims, Dims]:
    """Two shardings of one, two or three dims."""
    rank = draw(st.integers(1, 3))

    def sharding() -> Dims:
        dims: list[list[int]] = [[] for _ in range(rank)]
        for axis in draw(st.permutations(range(len(mesh)))):
            place = draw(st.integers(0, rank))
            if place < rank:
                dims[place].append(axis)
        return tuple(map(tuple, dims))

    return sharding(), sharding()


def in_order(before: Dims, after: Dims, mesh: tuple[int, ...]) -> float:
    shape = (720,) * len(before)
    return sent_bytes(rows(_core.reshard_steps_in_order(shape, 32, before, after, mesh)))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from([(2, 2), (2, 2, 2), (3, 2, 2), (2, 3, 5)]), st.data())
def test_rules_are_near_the_search(mesh: tuple[int, ...], data) -> None:
    before, after = data.draw(moves(mesh))
    searched, _ = sent(before, after, (), (720,) * len(before), mesh)
    by_rules = in_order(before, after, mesh)
    # a way of fewer steps is taken at up to a thousandth of the tensor more
    assert by_rules >= searched - 4 * 720 ** len(before) / 1000
    # at most 2.0 with equal axes and 2.24 with others, of all pairs on these meshes
    assert by_rules <= (2.0 if set(mesh) == {2} else 2.25) * searched * (1 + 1e-9)


def as_exported(dims: Dims, mesh: tuple[int, ...]) -> Sharding:
    axes = Mesh(tuple(Axis(f"a{i}", size) for i, size in enumerate(mesh)))
    return Sharding(axes, tuple(tuple(AxisRef(f"a{axis}") for axis in dim) for dim in dims))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([(2, 2, 2, 2), (2, 3, 2, 2)]), st.data())
def test_meshes_of_four_axes_take_the_ways_that_are_exported(mesh: tuple[int, ...], data) -> None:
    before, after = data.draw(moves(mesh))
    # the exporter may also park axes in a dim from and to which none moves
    shape = tuple(
        720 if old != new else prod(mesh[axis] for axis in old)
        for old, new in zip(before, after, strict=True)
    )
    written = 0.0
    at = before
    for sharding in reshard_steps(as_exported(before, mesh), as_exported(after, mesh), shape):
        to = tuple(tuple(int(ref.name[1:]) for ref in dim) for dim in sharding.dims)
        written += sent(at, to, (), shape, mesh)[0]
        at = to
    assert at == after
    assert sent(before, after, (), shape, mesh)[0] == pytest.approx(
        written, abs=4 * prod(shape) / 1000
    )


@settings(max_examples=200, deadline=None)
@given(moves((2,) * 6))
def test_many_axes_take_no_more_than_the_rules(move: tuple[Dims, Dims]) -> None:
    before, after = move
    mesh, shape = (2,) * 6, (64 * 9,) * len(move[0])
    searched, collectives = sent(before, after, (), shape, mesh)
    made = steps(before, after, (), shape, mesh)
    assert sent_bytes(made) == pytest.approx(searched)
    assert len(made) == collectives
    by_rules = sent_bytes(rows(_core.reshard_steps_in_order(shape, 32, before, after, mesh)))
    assert searched <= by_rules + 4 * prod(shape) / 1000
    assert (searched == 0) == all(
        new[: len(old)] == old for old, new in zip(before, after, strict=True)
    )


def test_axes_that_move_together_are_one_step_however_many_they_are() -> None:
    mesh, all_axes = (2,) * 6, tuple(range(6))
    shape = (64, 64)
    held = 4 * 64
    assert steps((all_axes, ()), ((), all_axes), (), shape, mesh) == [
        (ALL_TO_ALL, 0b111111, 64, held)
    ]
    assert steps((all_axes, ()), ((), ()), (), shape, mesh) == [(GATHER, 0b111111, 64, held)]
    assert steps((all_axes, ()), ((0, 1), all_axes[2:]), (), shape, mesh) == [
        (ALL_TO_ALL, 0b111100, 16, held)
    ]


def test_seconds_are_those_of_the_steps() -> None:
    dims = [(size, _core.LinkKind.RING, 1e9, 1e-6) for size in MESH]
    cluster = core_cluster(dims, [[(0, 2)], [(1, 4)]])
    swap = (((0,), (1,)), ((1,), (0,)))
    alone = [
        _core.collective_seconds(_core.Step(*step), cluster, MESH) for step in steps(*swap, ())
    ]
    total = _core.reshard_seconds(SHAPE, 32, *swap, 0, cluster, MESH)
    assert len(alone) == 2
    assert total == pytest.approx(sum(alone))


@settings(max_examples=300, deadline=None)
@given(cases(2))
def test_without_all_to_all_there_are_gathers_and_permutes(case) -> None:
    mesh, shape, (before, after) = case
    found = rows(_core.reshard_steps(shape, 32, before, after, 0, mesh, all_to_all=False))
    assert {kind for kind, *_ in found} <= {GATHER, PERMUTE}
    # a way of fewer steps is taken at up to a thousandth of the tensor more
    least = sent_bytes(steps(before, after, (), shape, mesh))
    assert sent_bytes(found) >= least - 4 * prod(shape) / 1000


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([(2, 4), (2, 2, 2, 2), (2,) * 6]), st.data())
def test_without_all_to_all_no_exported_step_moves_axes_between_dims(mesh, data) -> None:
    before, after = data.draw(moves(mesh))
    shape = (720,) * len(before)
    now = as_exported(before, mesh)
    for step in reshard_steps(now, as_exported(after, mesh), shape, False):
        cuts = zip(now.dims, step.dims, strict=True)
        changes = {_change(old, new) for old, new in cuts if old != new}
        assert len(changes) == 1 or now.tile == step.tile, (now, step)
        now = step
    assert now.tile == as_exported(after, mesh).tile


def _change(old: tuple[AxisRef, ...], new: tuple[AxisRef, ...]) -> str:
    """What a step does to one dim."""
    if old == new[: len(old)]:
        return "cut"
    return "gather" if new == old[: len(new)] else "other"
