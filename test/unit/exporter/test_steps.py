"""Reshard step by step."""

from __future__ import annotations

from itertools import product

import pytest

from autoshard.exporter.steps import reshard_steps
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import Sharding
from planned_text import every_matrix_sharding

MESH = Mesh.parse("dp=2,tp=4")


def steps(source: str, target: str, shape: tuple[int, ...] = (16, 8)) -> list[str]:
    before, after = (Sharding.parse(text, MESH) for text in (source, target))
    return [str(step) for step in reshard_steps(before, after, shape)]


def test_nothing_to_do_is_no_step() -> None:
    assert steps("[{dp}, {}]", "[{dp}, {}]") == []


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("[{}, {}]", "[{dp}, {tp}]"),
        ("[{dp, tp}, {}]", "[{}, {}]"),
        ("[{tp}, {}]", "[{}, {tp}]"),
        ("[{dp, tp}, {}]", "[{dp}, {tp}]"),
        ("[{dp, tp}, {}]", "[{tp, dp}, {}]"),
    ],
    ids=["cut", "gather", "all-to-all", "all-to-all of a minor axis", "permute"],
)
def test_what_one_collective_does_is_one_step(source: str, target: str) -> None:
    assert steps(source, target) == [target]


def test_dims_are_gathered_one_by_one_the_smallest_group_first() -> None:
    assert steps("[{dp}, {tp}]", "[{}, {}]") == ["[{}, {tp}]", "[{}, {}]"]
    assert steps("[{tp}, {dp}]", "[{}, {}]") == ["[{tp}, {}]", "[{}, {}]"]
    mesh = Mesh.parse("a=4,b=2,c=8,d=2")
    source, target = (Sharding.parse(t, mesh) for t in ("[{a, b}, {c}, {d}]", "[{a}, {}, {}]"))
    found = [str(step) for step in reshard_steps(source, target, (64, 64, 64))]
    assert found == ["[{a}, {c}, {d}]", "[{a}, {c}, {}]", "[{a}, {}, {}]"]
    source, target = (Sharding.parse(t, mesh) for t in ("[{d}, {b}]", "[{}, {}]"))
    assert reshard_steps(source, target, (64, 64))[0] == Sharding.parse("[{d}, {}]", mesh)


def test_dims_are_gathered_one_by_one_behind_a_cut() -> None:
    mesh = Mesh.parse("a=8,b=2,c=2,d=2,e=2")
    source, target = (Sharding.parse(t, mesh) for t in ("[{a}, {b, c}, {}]", "[{}, {}, {d, e}]"))
    found = reshard_steps(source, target, (64, 64, 64), has_all_to_all=False)
    cut, gathered = "[{a}, {b, c}, {d, e}]", "[{a}, {}, {d, e}]"
    assert [str(step) for step in found] == [cut, gathered, str(target)]


def test_a_free_axis_is_cut_before_the_gather() -> None:
    assert steps("[{dp}, {}]", "[{}, {tp}]") == ["[{dp}, {tp}]", "[{}, {tp}]"]


def test_two_axes_move_one_after_the_other() -> None:
    assert steps("[{dp, tp}, {}]", "[{}, {tp, dp}]") == ["[{dp}, {tp}]", "[{}, {tp, dp}]"]


def test_a_part_of_an_axis_moves_alone() -> None:
    assert steps("[{dp}, {}]", "[{tp}, {}]") == ["[{dp, tp:(1)2}, {}]", "[{tp}, {}]"]


def test_many_axes_side_by_side_move_as_one() -> None:
    mesh = Mesh.parse("data=4,a=2,b=2,c=2,d=2,sequence=2")
    source = Sharding.parse("[{data}, {}, {a, b, c, d, sequence}]", mesh)
    target = Sharding.parse("[{data, a, b, c, d}, {sequence}, {}]", mesh)
    there = [str(step) for step in reshard_steps(source, target, (64, 64, 64))]
    assert there == ["[{data}, {sequence}, {a, b, c, d}]", str(target)]
    back = [str(step) for step in reshard_steps(target, source, (64, 64, 64))]
    assert back == ["[{data}, {sequence}, {a, b, c, d}]", str(source)]


def test_too_many_axes_that_move_apart_are_one_step() -> None:
    mesh = Mesh.parse("a=2,b=2,c=2,d=2,e=2")
    source = Sharding.parse("[{a, b, c, d, e}, {}]", mesh)
    target = Sharding.parse("[{}, {e, d, c, b, a}]", mesh)
    assert reshard_steps(source, target, (64, 64)) == (target,)


def test_no_step_cuts_a_dim_unevenly() -> None:
    # A cut of dim 1 (size 6) by tp (4) on the way would be cheaper.
    on_the_way = steps("[{tp}, {}]", "[{}, {dp}]", shape=(16, 6))
    assert on_the_way[-1] == "[{}, {dp}]"
    for text in on_the_way:
        Sharding.parse(text, MESH).check((16, 6))


def test_every_pair_ends_at_its_target() -> None:
    for source, target in product(every_matrix_sharding(), repeat=2):
        found = steps(source, target)
        assert found == [] if source == target else found[-1] == target
        assert len(found) <= 4


def test_many_axes_go_in_one_step() -> None:
    mesh = Mesh.parse("a=2,b=2,c=2,d=2,e=2,f=2")
    source = Sharding.parse("[{a, b, c, d, e, f}, {}]", mesh)
    target = Sharding.parse("[{f, e, d, c, b, a}, {}]", mesh)
    assert reshard_steps(source, target, (64, 64)) == (target,)


def test_without_all_to_all_every_step_is_a_gather_a_slice_or_a_permute() -> None:
    before, after = (Sharding.parse(text, MESH) for text in ("[{tp}, {}]", "[{}, {tp}]"))
    found = reshard_steps(before, after, (16, 8), False)
    assert list(map(str, found)) == ["[{}, {}]", "[{}, {tp}]"]
    square = Mesh.parse("a=2,b=2")
    before, after = (Sharding.parse(text, square) for text in ("[{a}, {}]", "[{}, {a}]"))
    found = reshard_steps(before, after, (16, 8), False)
    # Half of the whole is sent in the permute and the gather, as in one gather; that has one step.
    assert list(map(str, found)) == ["[{}, {}]", "[{}, {a}]"]


def test_many_axes_are_gathered_and_cut_without_all_to_all() -> None:
    mesh = Mesh.parse("a=2,b=2,c=2,d=2,e=2,f=2")
    source = Sharding.parse("[{a, b, c, d, e, f}, {}]", mesh)
    target = Sharding.parse("[{a}, {f, e, d, c, b}]", mesh)
    between = Sharding.parse("[{a}, {}]", mesh)
    assert reshard_steps(source, target, (64, 64), False) == (between, target)


def test_a_dim_that_is_padded_has_steps_without_all_to_all() -> None:
    mesh = Mesh.parse("a=2,b=2,c=2")
    source, target = (Sharding.parse(text, mesh) for text in ("[{a, b, c}]", "[{a, c}]"))
    # 250 = 8 x 31.25; what is left once a is kept, 125, has no part of two.
    steps = reshard_steps(source, target, (250,), has_all_to_all=False)
    assert steps[-1].tile == target.tile
