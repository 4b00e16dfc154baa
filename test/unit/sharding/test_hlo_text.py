from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sharding_cases import divisible_shape, meshes, shardings
from sharding_oracle import Oracle

from autoshard.errors import ParseError, ShardingError
from autoshard.sharding import (
    AxisRef,
    Mesh,
    ShardGroup,
    Sharding,
    canonical_v2,
    from_hlo,
    result_from_hlo,
    to_v2,
    to_v2_results,
    tuple_from_hlo,
)

DP2_TP4 = Mesh.parse("dp=2,tp=4")


def without_v2_losses(sharding: Sharding) -> Sharding:
    """What V2 can say of a sharding: no open dims, no explicit replication, no axes of size 1."""
    kept = [
        tuple(ref for ref in refs if sharding.axis_size(ref) > 1)
        for refs in (*sharding.dims, sharding.unreduced, sharding.manual)
    ]
    *dims, unreduced, manual = kept
    return replace(
        sharding,
        dims=tuple(dims),
        unreduced=unreduced,
        manual=manual,
        replicated=(),
        open_dims=(),
        priorities=(),
    )


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ("[{}, {}]", "{replicated}"),
        ("[]", "{replicated}"),
        ("[{dp}, {tp}]", "{devices=[2,4]<=[8]}"),
        ("[{tp}, {dp}]", "{devices=[4,2]<=[2,4]T(1,0)}"),
        ("[{dp}, {}]", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
        ("[{dp, tp}]", "{devices=[8]<=[8]}"),
        ("[{tp, dp}]", "{devices=[8]<=[2,4]T(1,0)}"),
        (
            "[{tp:(2)2}]",
            "{devices=[2,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
        ),
        (
            "[{dp}] unreduced={tp}",
            "{devices=[2,4]<=[8] last_tile_dims={unreduced}}",
        ),
        (
            "[{}] unreduced={tp}",
            "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={unreduced, replicated}}",
        ),
        ("[{}] manual={dp, tp}", "{manual}"),
        ("[{}] unreduced={dp, tp}", "{unreduced}"),
        ("[{dp}, {?}] shard_as 3", "{devices=[2,1,4]<=[8] last_tile_dim_replicate shard_as 3}"),
    ],
)
def test_named_axes_become_tile_assignments(dims: str, text: str) -> None:
    assert to_v2(Sharding.parse(dims, DP2_TP4)) == text


def test_a_device_order_that_is_no_transpose_is_listed() -> None:
    mesh = Mesh.parse("dp=2,tp=2 device_ids=0,3,1,2")
    assert to_v2(Sharding.named(mesh, "dp", "tp")) == "{devices=[2,2]0,3,1,2}"


def test_replica_groups_are_sorted_so_that_one_placement_has_one_text() -> None:
    mesh = Mesh.parse("dp=2,tp=2 device_ids=3,0,2,1")
    assert to_v2(Sharding.named(mesh, "dp")) == "{devices=[2,2]0,3,1,2 last_tile_dim_replicate}"


def test_several_results_make_a_tuple_and_one_does_not() -> None:
    cut, whole = Sharding.named(DP2_TP4, "dp"), Sharding.named(DP2_TP4)
    text = "{{devices=[2,4]<=[8] last_tile_dim_replicate}, {replicated}}"
    assert to_v2_results([cut, whole]) == text
    assert to_v2_results([whole]) == "{replicated}"
    assert tuple_from_hlo(text, DP2_TP4, (1, 0)) == (cut, whole)
    assert tuple_from_hlo("{}", DP2_TP4, ()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "{{devices=[2,4]<=[8] last_tile_dim_replicate}, {replicated}}",
        "{{devices=[2,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate},{replicated}}",
        "{ {mesh['dp'=2,'tp'=4], [{'dp'}]}, {replicated} }",
        '{{devices=[2,4]<=[8] last_tile_dim_replicate metadata={op_name="}, {"}}, {replicated}}',
    ],
)
def test_results_are_read_one_by_one_as_all_of_them(text: str) -> None:
    both = Sharding.named(DP2_TP4, "dp"), Sharding.fully_replicated(DP2_TP4, 0)
    assert tuple_from_hlo(text, DP2_TP4, (1, 0)) == both
    assert [result_from_hlo(text, DP2_TP4, k, 2, 1 - k) for k in (0, 1)] == [*both]


@settings(max_examples=300, deadline=None)
@given(shardings())
def test_what_is_written_is_what_jaxlib_prints(oracle: Oracle, sharding: Sharding) -> None:
    text = to_v2(sharding)
    printed = oracle.ask(kind="hlo", text=text, tiles=False)["text"]
    if sharding.mesh.device_ids is None:
        assert printed == text
    else:  # To sort replica groups jaxlib makes a list of some iota orders.
        assert canonical_v2(printed) == text


@settings(max_examples=200, deadline=None)
@given(shardings())
def test_jaxlib_reads_the_slice_of_every_device(oracle: Oracle, sharding: Sharding) -> None:
    shape = divisible_shape(sharding)
    answer = oracle.ask(kind="hlo", text=to_v2(sharding), tiles=True)
    rank = sharding.rank
    slices = sharding.device_slices(shape)
    if "tile" not in answer:
        whole = tuple(slice(0, size) for size in shape)
        assert all(held == whole for held in slices.values())
        return
    assert tuple(answer["tile"][:rank]) == sharding.tile
    for place, device in enumerate(answer["devices"]):
        tile = np.unravel_index(place, answer["tile"])[:rank]
        local = sharding.local_shape(shape)
        expected = tuple(
            slice(number * size, (number + 1) * size)
            for number, size in zip(map(int, tile), local, strict=True)
        )
        assert slices[device] == expected


@settings(max_examples=300, deadline=None)
@given(shardings())
def test_axes_come_back_from_the_tile_assignment(sharding: Sharding) -> None:
    read = from_hlo(to_v2(sharding), sharding.mesh, sharding.rank)
    assert read == without_v2_losses(sharding)


@settings(max_examples=200, deadline=None)
@given(shardings(extras=False), st.data())
def test_any_mesh_of_the_same_devices_gives_the_placement_or_an_error(
    sharding: Sharding, data: st.DataObject
) -> None:
    mesh = data.draw(meshes(size=sharding.mesh.size))
    text = to_v2(sharding)
    try:
        read = from_hlo(text, mesh, sharding.rank)
    except ShardingError:
        return
    assert read.same_placement(sharding)
    assert to_v2(read) == text


@st.composite
def hlo_texts(draw: st.DrawFn) -> str:
    """Tiled texts of all kinds, also such as XLA rewrites."""
    sizes = st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=4)
    reshape = draw(sizes.filter(lambda sizes: prod(sizes) > 1))
    count = prod(reshape)
    tile: list[int] = []
    for _ in range(draw(st.integers(0, 4))):
        left = count // prod(tile)
        tile.append(draw(st.sampled_from([s for s in range(1, left + 1) if left % s == 0])))
    tile.append(count // prod(tile))
    kind = draw(st.sampled_from(["list", "iota", "transpose"]))
    if kind == "list":
        order = ",".join(map(str, draw(st.permutations(range(count)))))
    else:
        order = f"<=[{','.join(map(str, reshape))}]"
        if kind == "transpose":
            order += f"T({','.join(map(str, draw(st.permutations(range(len(reshape))))))})"
    text = f"devices=[{','.join(map(str, tile))}]{order}"
    types = draw(st.lists(st.sampled_from(["manual", "replicated", "unreduced"]), max_size=3))
    if draw(st.booleans()):
        text += " last_tile_dim_replicate"
    elif types and len(types) <= len(tile):
        text += f" last_tile_dims={{{', '.join(types)}}}"
    text += draw(st.sampled_from(["", "", " shard_as 1", " shard_like 22"]))
    text += draw(st.sampled_from(["", ' metadata={op_name="a}b"}']))
    return f"{{{text}}}"


@settings(max_examples=400, deadline=None)
@given(hlo_texts())
def test_any_tiled_text_means_the_same_to_jaxlib(oracle: Oracle, text: str) -> None:
    answer = oracle.ask(kind="hlo", text=text, tiles=False)
    if "error" in answer:
        return
    printed = answer["text"]
    ours = canonical_v2(text)
    assert ours == canonical_v2(printed)
    again = oracle.ask(kind="hlo", text=ours, tiles=False)
    assert canonical_v2(again["text"]) == ours


def v3_text(sharding: Sharding) -> str:
    """V3 as XLA prints it."""

    def axes(refs: tuple[AxisRef, ...], is_open: bool = False) -> str:
        entries = [
            f"'{ref.name}'" + ("" if ref.size is None else f":({ref.pre_size}){ref.size}")
            for ref in refs
        ]
        return f"{{{', '.join([*entries, *(['?'] if is_open else [])])}}}"

    mesh = sharding.mesh
    text = "mesh[" + ",".join(f"'{axis.name}'={axis.size}" for axis in mesh.axes) + "]"
    if mesh.device_ids is not None:
        text += f", device_ids=({','.join(map(str, mesh.device_ids))})"
    text += f", [{', '.join(map(axes, sharding.dims, sharding.open_dims))}]"
    for name in ("replicated", "unreduced", "manual"):
        if refs := getattr(sharding, name):
            text += f", {name}={axes(refs)}"
    return f"{{{text}}}"


@settings(max_examples=150, deadline=None)
@given(shardings())
def test_v3_texts_mean_the_same_to_jaxlib(oracle: Oracle, sharding: Sharding) -> None:
    assume(sharding.rank and sharding.mesh.size > 1)
    text = v3_text(sharding)
    read = from_hlo(text, sharding.mesh, sharding.rank)
    assert read == sharding
    answer = oracle.ask(kind="v3_to_v2", text=text)
    if "aborted" not in answer:
        assert canonical_v2(answer["text"]) == canonical_v2(text) == to_v2(sharding)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{replicated}", "[{}, {}]"),
        ("{replicated shard_like 7}", "[{}, {}] shard_like 7"),
        ('{replicated metadata={op_name="a {b} }"}}', "[{}, {}]"),
        ("{unknown}", "[{?}, {?}]"),
        ("{manual}", "[{}, {}] manual={dp, tp}"),
        ("{unreduced}", "[{}, {}] unreduced={dp, tp}"),
        ("{devices=[2,4]0,1,2,3,4,5,6,7}", "[{dp}, {tp}]"),
        (
            "{devices=[1,1,2,4]0,1,2,3,4,5,6,7 last_tile_dims={replicated, manual}}",
            "[{}, {}] manual={tp}",
        ),
        ("{devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}", "[{tp}, {}]"),
        ("{mesh['a'=8], [{'a'}, {}]}", "[{dp, tp}, {}]"),
        ("{mesh['a'=2,'b'=2,'c'=2], [{'b'}, {'c', ?}]}", "[{tp:(1)2}, {tp:(2)2, ?}]"),
        ("{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'}, {}]}", "[{tp:(2)2}, {}]"),
        ("{mesh['a'=8], replicated}", "[{}, {}]"),
        ("{mesh[], [{}, {?}]}", "[{}, {?}]"),
    ],
)
def test_every_version_is_read(text: str, expected: str) -> None:
    assert str(from_hlo(text, DP2_TP4, 2)) == expected


def test_on_one_device_every_kind_says_the_same() -> None:
    assert canonical_v2("{devices=[1,1]<=[1]}") == "{replicated}"
    assert canonical_v2("{devices=[1,1]0 last_tile_dims={unreduced}}") == "{replicated}"
    assert str(from_hlo("{maximal device=0}", Mesh.parse("dp=1"), 1)) == "[{}]"


def test_shard_groups_stay() -> None:
    sharding = from_hlo("{devices=[2,4]<=[8] shard_as 5}", DP2_TP4, 2)
    assert sharding.shard_group == ShardGroup("as", 5)
    assert to_v2(sharding) == "{devices=[2,4]<=[8] shard_as 5}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{bogus}", "expected 'devices' at column 2"),
        ("devices=[2]0,1", "expected '{' at column 1"),
        ("{replicated", "expected '}' at column 12, found the end"),
        ("{replicated} x", "expected the end at column 14"),
        ("{devices=[2,4]<=[9]}", r"tile dims \[2, 4\] need 8 devices, 9 are listed"),
        ("{devices=[2]0,0}", r"each of the devices 0\.\.1 exactly once"),
        ("{devices=[2]1,2}", r"each of the devices 0\.\.1 exactly once"),
        ("{devices=[4]<=[2,2]T(1,1)}", r"T\(1,1\) is no permutation of the 2 dims"),
        ("{devices=[0]<=[0]}", "must be at least 1"),
        ("{devices=[2]<=[2] last_tile_dims={bogus}}", "expected manual, unreduced or replicated"),
        ("{devices=[2]<=[2] last_tile_dims={manual, replicated}}", "2 subgroup types but only 1"),
        ("{{replicated}, {{replicated}}}", "expected 'devices'"),
    ],
)
def test_a_text_that_xla_would_ignore_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        canonical_v2(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{devices=[8]<=[8]}", "has 1 dims, but the value has 2"),
        ("{devices=[2,2]<=[4]}", 'has 4 devices, but mesh "dp=2,tp=4" has 8'),
        ("{maximal device=3}", "on one device"),
        ("{{replicated}}", "sharding of a tuple"),
        ("{devices=[8,1]0,3,1,2,4,5,6,7}", "cannot be written with the axes"),
        ("{mesh['a'=8], [{'a'}, {'a'}]}", 'axis "a" .* more than once'),
        ("{mesh['a'=8], [{'b'}, {}]}", 'axis "b" is not an axis'),
        ("{mesh['a'=4], [{'a'}, {}]}", "the device counts differ"),
    ],
)
def test_a_sharding_that_the_mesh_cannot_say_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        from_hlo(text, DP2_TP4, 2)


def test_a_tuple_text_needs_one_element_for_each_result() -> None:
    with pytest.raises(ShardingError, match="has 1 elements, but there are 2 results"):
        tuple_from_hlo("{{replicated}}", DP2_TP4, (1, 1))


def test_large_meshes_stay_fast() -> None:
    mesh = Mesh.parse("a=16,b=16,c=16,d=16")
    sharding = Sharding.named(mesh, "d", ("b", "a"))
    text = to_v2(sharding)
    assert text == "{devices=[16,256,16]<=[16,16,16,16]T(3,1,0,2) last_tile_dim_replicate}"
    assert from_hlo(text, mesh, 2) == sharding


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{devices=[2,1]0,99999999999999999999}", "an integer of at most 18 digits"),
        ("{devices=[4,99999999]<=[399999996]}", "it lists 399999996 devices"),
    ],
)
def test_numbers_beyond_any_machine_are_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        from_hlo(text, Mesh.parse("a=2"), 2)
