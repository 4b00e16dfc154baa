from __future__ import annotations

import pytest
from hypothesis import given, settings
from jaxlib.mlir import ir
from sharding_cases import meshes, shardings

from autoshard.errors import ParseError, ShardingError
from autoshard.ir import new_context
from autoshard.sharding import (
    Mesh,
    Sharding,
    from_sdy,
    mesh_from_sdy,
    mesh_to_sdy,
    per_value_from_sdy,
    to_sdy,
    to_sdy_per_value,
)

DP2_TP4 = Mesh.parse("dp=2,tp=4")
CONTEXT = new_context()


def printed_by_shardy(text: str) -> str:
    return str(ir.Attribute.parse(text, CONTEXT))


@settings(max_examples=100, deadline=None)
@given(meshes())
def test_shardy_reads_and_prints_our_mesh_text(mesh: Mesh) -> None:
    text = mesh_to_sdy(mesh)
    assert mesh_from_sdy(printed_by_shardy(text)) == mesh
    assert printed_by_shardy(text).replace(", ", ",") == text.replace(", ", ",")


@settings(max_examples=200, deadline=None)
@given(shardings())
def test_shardy_reads_and_prints_our_sharding_text(sharding: Sharding) -> None:
    if sharding.manual:
        with pytest.raises(ShardingError, match="manual_computation"):
            to_sdy(sharding)
        return
    text = to_sdy(sharding)
    assert printed_by_shardy(text) == text
    assert from_sdy(text, {"mesh": sharding.mesh}) == sharding
    inlined = printed_by_shardy(to_sdy(sharding, mesh_name=None))
    assert from_sdy(inlined, {}) == sharding


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ("[{dp}, {tp, ?}]", '#sdy.sharding<@mesh, [{"dp"}, {"tp", ?}]>'),
        ("[{tp:(1)2, ?}p1, {}]", '#sdy.sharding<@mesh, [{"tp":(1)2, ?}p1, {}]>'),
        ("[] replicated={dp}", '#sdy.sharding<@mesh, [], replicated={"dp"}>'),
        (
            "[{}] replicated={dp} unreduced={tp:(2)2}",
            '#sdy.sharding<@mesh, [{}], replicated={"dp"}, unreduced={"tp":(2)2}>',
        ),
    ],
)
def test_sharding_texts(dims: str, text: str) -> None:
    sharding = Sharding.parse(dims, DP2_TP4)
    assert to_sdy(sharding) == text == printed_by_shardy(text)
    assert from_sdy(text, DP2_TP4) == sharding


def test_several_results() -> None:
    values = (Sharding.named(DP2_TP4, "dp"), Sharding.named(DP2_TP4))
    text = to_sdy_per_value(values)
    assert text == '#sdy.sharding_per_value<[<@mesh, [{"dp"}]>, <@mesh, []>]>'
    assert printed_by_shardy(text) == text
    assert per_value_from_sdy(text, DP2_TP4) == values
    assert per_value_from_sdy("#sdy.sharding_per_value<[]>", DP2_TP4) == ()


def test_names_that_need_quotes_or_escapes() -> None:
    mesh = Mesh.parse('"größe 1"=8')
    sharding = Sharding.named(mesh, "größe 1")
    text = printed_by_shardy(to_sdy(sharding, "my mesh"))
    assert from_sdy(text, {"my mesh": mesh}) == sharding
    assert mesh_from_sdy(printed_by_shardy(mesh_to_sdy(mesh))) == mesh


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('#sdy.sharding<@other, [{"dp"}]>', ShardingError, "names mesh @other, .* are: @mesh"),
        ('#sdy.sharding<@mesh, [{"x"}]>', ShardingError, 'axis "x" is not an axis'),
        ('#sdy.sharding<@mesh, [{"dp"}, {"dp"}]>', ShardingError, "more than once"),
        ("#sdy.sharding<@mesh>", ParseError, "expected ','"),
        ("#sdy.mesh<[]>", ParseError, "expected 'sdy.sharding'"),
        ("#sdy.sharding<@mesh, [{}], manual={}>", ParseError, "expected replicated or unreduced"),
    ],
)
def test_a_wrong_text_is_an_error(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_sdy(text, {"mesh": DP2_TP4})


def test_a_mesh_of_one_other_device_is_no_mesh() -> None:
    with pytest.raises(ShardingError, match=r"devices 0\.\.0 exactly once"):
        mesh_from_sdy("#sdy.mesh<[], device_ids=[3]>")


def test_groups_are_ops_in_shardy() -> None:
    with pytest.raises(ShardingError, match="sharding_group"):
        to_sdy(Sharding.parse("[{dp}] shard_as 1", DP2_TP4))
