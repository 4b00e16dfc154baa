from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharding_cases import divisible_shape, meshes, shardings, slices_by_counting
from sharding_oracle import Oracle

from autoshard.errors import ParseError, ShardingError
from autoshard.sharding import (
    Axis,
    AxisRef,
    Mesh,
    OpStrategy,
    Sharding,
    format_sharding,
    mesh_without_sub_axes,
)

DP2_TP4 = Mesh.parse("dp=2,tp=4")


# --- meshes ---


@given(meshes())
def test_a_mesh_is_read_as_it_is_printed(mesh: Mesh) -> None:
    assert Mesh.parse(str(mesh)) == mesh


def test_a_listed_order_that_is_plain_counts_as_none() -> None:
    assert Mesh.parse("dp=2,tp=2 device_ids=0,1,2,3") == Mesh.parse("dp=2,tp=2")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", ParseError, "expected a name at column 1"),
        ("dp", ParseError, "expected '=' at column 3"),
        ("dp=x", ParseError, "expected an integer at column 4, found 'x'"),
        ("dp=2 tp=2", ParseError, "expected the end"),
        ("dp=0", ShardingError, 'axis "dp" has size 0'),
        ("dp=2,dp=2", ShardingError, 'names axis "dp" more than once'),
        ("dp=2,tp=2 device_ids=0,1,2", ShardingError, "3 given, 4 needed"),
        ("dp=2,tp=2 device_ids=0,1,2,2", ShardingError, r"each of the devices 0\.\.3 exactly once"),
    ],
)
def test_a_wrong_mesh_is_an_error(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Mesh.parse(text)


def test_a_mesh_larger_than_the_machine_is_an_error() -> None:
    with pytest.raises(ShardingError, match="needs 8 devices, but there are 4"):
        DP2_TP4.check_device_count(4)


@pytest.mark.parametrize(
    ("texts", "refined"),
    [
        (["a=4,b=2", "c=2,d=4"], "a_0=2,a_1=2,b=2"),
        (["dp=2,tp=4", "x=2,y=4"], "dp=2,tp=4"),
        (["dp=8", "x=2,y=2,z=2"], "dp_0=2,dp_1=2,dp_2=2"),
        (["dp=2,one=1,tp=4"], "dp=2,tp=4"),
        (["a=1,b=1", "c=1"], "a=1,b=1"),
        (["a=6,b=2", "c=3,d=4"], "a_0=3,a_1=2,b=2"),
        (["a_0=2,a=4", "x=4,y=2"], "a_0=2,a_0_=2,a_1=2"),
        (["a=2,b=4", "x=4,y=2 device_ids=0,4,1,5,2,6,3,7"], "a=2,b=4"),
        (["a=2,b=4 device_ids=7,6,5,4,3,2,1,0", "x=8 device_ids=7,6,5,4,3,2,1,0"],
         "a=2,b=4 device_ids=7,6,5,4,3,2,1,0"),
    ],
)  # fmt: skip
def test_common_refinement(texts: list[str], refined: str) -> None:
    assert str(Mesh.common_refinement([Mesh.parse(text) for text in texts])) == refined


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a=2,b=3", "c=3,d=2"], "every 2 devices and another every 3"),
        (["a=2,b=3", "c=4"], "the device counts differ"),
        (["a=4", "b=4 device_ids=0,1,3,2"], "device orders are not transposes"),
        (["a=4", "b=4 device_ids=3,2,1,0"], "device orders are not transposes"),
        ([], "needs at least one mesh"),
    ],
)
def test_meshes_that_have_no_common_refinement(texts: list[str], message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        Mesh.common_refinement([Mesh.parse(text) for text in texts])


@settings(max_examples=200, deadline=None)
@given(shardings(sub_axes=False), st.data())
def test_on_a_common_refinement_only_whole_axes_are_needed(
    sharding: Sharding, data: st.DataObject
) -> None:
    other = data.draw(meshes(size=sharding.mesh.size))
    try:
        refined = Mesh.common_refinement([other, sharding.mesh])
    except ShardingError:
        return
    moved = sharding.on(refined)
    assert moved.same_placement(sharding)
    refs = [ref for refs in (*moved.dims, moved.unreduced, moved.manual) for ref in refs]
    assert all(ref.size is None for ref in refs)


# --- shardings ---


@settings(max_examples=200, deadline=None)
@given(shardings())
def test_every_device_gets_the_slice_that_counting_gives(sharding: Sharding) -> None:
    shape = divisible_shape(sharding)
    assert sharding.device_slices(shape) == slices_by_counting(sharding, shape)


@settings(max_examples=100, deadline=None)
@given(shardings())
def test_the_slices_of_an_array_cover_it_equally_often(sharding: Sharding) -> None:
    shape = divisible_shape(sharding)
    covered = np.zeros(shape, dtype=int)
    for held in sharding.device_slices(shape).values():
        assert covered[held].shape == sharding.local_shape(shape)
        covered[held] += 1
    assert (covered == sharding.mesh.size // np.prod(sharding.tile, dtype=int)).all()


@settings(max_examples=100, deadline=None)
@given(shardings(sub_axes=False, extras=False))
def test_jax_places_the_same_slices(oracle: Oracle, sharding: Sharding) -> None:
    mesh = sharding.mesh
    shape = divisible_shape(sharding)
    answer = oracle.ask(
        kind="named",
        sizes=mesh.axis_sizes,
        names=mesh.axis_names,
        ids=mesh.device_order().tolist(),
        spec=[[ref.name for ref in refs] or None for refs in sharding.dims],
        shape=shape,
    )
    ours: dict[str, Any] = {
        str(device): [[part.start, part.stop] for part in held]
        for device, held in sharding.device_slices(shape).items()
    }
    assert answer == {"slices": ours}


@settings(max_examples=200, deadline=None)
@given(shardings())
def test_a_sharding_is_read_as_it_is_printed(sharding: Sharding) -> None:
    assert Sharding.parse(str(sharding), sharding.mesh) == sharding
    assert Sharding.parse(format_sharding(sharding, with_mesh=True)) == sharding


@pytest.mark.parametrize(
    "text",
    [
        "mesh[dp=2,sp=2,mp=2] [{mp}, {sp, dp}]",
        "mesh[dp=2,tp=2; 0,2,1,3] [{?}, {tp}]",
        "mesh[] [{}, {}]",
        "mesh[tp=8] [{tp:(1)2, ?}p1, {tp:(4)2}] replicated={tp:(2)2} shard_like 4",
        "mesh[tp=8] [] unreduced={tp:(1)2} manual={tp:(4)2}",
        'mesh["a-b"=8] [{"a-b"}]',
    ],
)
def test_text_with_a_mesh(text: str) -> None:
    assert format_sharding(Sharding.parse(text), with_mesh=True) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("[{tp:(1)4}]", "[{tp}]"),
        ("[{tp:(1)2, tp:(2)2}]", "[{tp}]"),
        ("[{tp:(2)2, tp:(1)2}]", "[{tp:(2)2, tp:(1)2}]"),
        ("[{tp:(2)1, dp}]", "[{dp}]"),
        ("[{}] unreduced={tp, dp}", "[{}] unreduced={dp, tp}"),
        (" [ {dp,?} , { } ] ", "[{dp, ?}, {}]"),
    ],
)
def test_equal_shardings_have_one_form(text: str, canonical: str) -> None:
    assert str(Sharding.parse(text, DP2_TP4)) == canonical


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[{x}]", ShardingError, r'axis "x" is not an axis of mesh "dp=2,tp=4" \(axes: "dp", "tp"'),
        ("[{tp}, {dp, tp}]", ShardingError, r'axis "tp" \(size 4\) is used more than once'),
        ("[{tp:(1)2}, {tp}]", ShardingError, r'axis "tp" \(size 4\) is used more than once'),
        ("[{dp}] unreduced={dp}", ShardingError, r'axis "dp" \(size 2\) is used more than once'),
        ("[{tp:(1)3}]", ShardingError, r'sub-axis "tp":\(1\)3 does not fit axis "tp" of size 4'),
        ("[{tp:(4)2}]", ShardingError, "does not fit"),
        ("[{dp]", ParseError, "expected ',' at column 5, found ']'"),
        ("{dp}", ParseError, r"expected '\['"),
        ("[{dp}] bogus", ParseError, "expected the end"),
    ],
)
def test_a_wrong_sharding_is_an_error(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Sharding.parse(text, DP2_TP4)


def test_sub_axes_that_do_not_nest_are_an_error() -> None:
    with pytest.raises(ShardingError, match="do not fit one another"):
        Sharding.parse("mesh[a=12] [{a:(1)2}, {a:(3)2}]")


def test_a_text_without_a_mesh_needs_one() -> None:
    with pytest.raises(ParseError, match="names no mesh"):
        Sharding.parse("[{dp}]")


def test_a_size_that_does_not_divide_is_an_error_with_a_way_out() -> None:
    sharding = Sharding.named(DP2_TP4, None, "tp")
    message = (
        r'model.py:42: dot_general result: dim 1 \(size 250\) cannot be split by axis "tp"'
        r" \(size 4\): 250 % 4 = 2. Choose another dim or another axis, or pad the dim to 252"
    )
    with pytest.raises(ShardingError, match=message):
        sharding.check((8, 250), "dot_general result", "model.py:42")
    sharding.check((8, 250), allow_padding=True)


def test_several_axes_on_one_dim_are_named_in_the_error() -> None:
    with pytest.raises(ShardingError, match=r'axes "dp", "tp" \(size 2 \* 4\): 12 % 8 = 4'):
        Sharding.named(DP2_TP4, ("dp", "tp")).check((12,))


def test_a_shape_of_another_rank_is_an_error() -> None:
    with pytest.raises(ShardingError, match=r"has 1 dims, but the shape \(2, 2\) has 2"):
        Sharding.named(DP2_TP4, "dp").check((2, 2))


def test_pieces_of_an_indivisible_dim_are_padded_at_the_end() -> None:
    sharding = Sharding.named(Mesh.parse("tp=4"), "tp")
    assert sharding.local_shape((5,)) == (2,)
    slices = sharding.device_slices((5,))
    assert [slices[d][0] for d in range(4)] == [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 5)]


def test_vmap_inserts_an_open_dim() -> None:
    sharding = Sharding.named(DP2_TP4, "dp", "tp").with_dim_inserted(1, open_dim=True)
    assert str(sharding) == "[{dp}, {?}, {tp}]"


def test_on_another_mesh_sub_axes_say_the_same() -> None:
    assert str(Sharding.named(Mesh.parse("a=8"), "a").on(DP2_TP4)) == "[{dp, tp}]"
    moved = Sharding.parse("mesh[a=4,b=2] [{a, ?}, {b}]").on(DP2_TP4)
    assert str(moved) == "[{dp, tp:(1)2, ?}, {tp:(2)2}]"


def test_on_a_mesh_of_another_device_order() -> None:
    turned = Mesh.parse("tp=4,dp=2 device_ids=0,4,1,5,2,6,3,7")
    assert str(Sharding.named(turned, "dp", "tp").on(DP2_TP4)) == "[{dp}, {tp}]"
    odd = Mesh.parse("a=8 device_ids=0,1,3,2,4,5,6,7")
    with pytest.raises(ShardingError, match="cannot be expressed with the axes of mesh"):
        Sharding.named(odd, "a").on(DP2_TP4)


@settings(max_examples=200, deadline=None)
@given(shardings())
def test_splitting_axes_removes_sub_axes(sharding: Sharding) -> None:
    whole = sharding.with_whole_axes()
    assert whole.same_placement(sharding)
    assert all(ref.size is None for refs in whole.dims for ref in refs)


def test_several_shardings_are_split_together() -> None:
    first = Sharding.parse("mesh[dp=2,tp=8] [{tp:(1)2}]")
    second = Sharding.parse("mesh[dp=2,tp=8] [{tp:(1)4}]")
    assert str(mesh_without_sub_axes([first, second])) == "dp=2,tp_0=2,tp_1=2,tp_2=2"


def test_same_placement_looks_at_devices_not_names() -> None:
    one = Sharding.named(DP2_TP4, ("dp", "tp"))
    assert one.same_placement(Sharding.named(Mesh.parse("x=8"), "x"))
    assert not one.same_placement(Sharding.named(DP2_TP4, ("tp", "dp")))
    assert not Sharding.parse("[{}] unreduced={dp}", DP2_TP4).same_placement(
        Sharding.parse("[{}]", DP2_TP4)
    )


def test_axes_of_size_one_say_nothing() -> None:
    mesh = Mesh((Axis("one", 1), Axis("tp", 4)))
    sharding = Sharding(mesh, ((AxisRef("one"),), (AxisRef("tp"),)))
    assert sharding.tile == (1, 4)
    assert str(sharding.on(mesh.without_unit_axes())) == "[{}, {tp}]"
    assert Sharding.named(mesh, "one").is_replicated


# --- strategies of ops ---


@pytest.mark.parametrize(
    "text",
    ["[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]", "[] -> []", "-> [{dp}]", "[{dp}] -> [{dp}], [{}]"],
)
def test_an_op_strategy_is_read_as_it_is_printed(text: str) -> None:
    assert str(OpStrategy.parse(text, DP2_TP4)) == text


def test_an_op_strategy_needs_an_arrow() -> None:
    with pytest.raises(ParseError, match="expected '->'"):
        OpStrategy.parse("[{dp}, {}]", DP2_TP4)


def test_a_device_order_of_fewer_devices_than_the_mesh_has_is_refused() -> None:
    with pytest.raises(ShardingError, match="does not name each of the devices"):
        Mesh.parse("a=999999999,b=9999999999999 device_ids=1,0")
