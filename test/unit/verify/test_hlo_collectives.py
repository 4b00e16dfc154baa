"""Collectives read from HLO text; bytes worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.errors import ParseError
from autoshard.planned.collective import Collective, CollectiveKind, axes_of_groups, total_bytes
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import AxisRef
from autoshard.verify.hlo_collectives import hlo_collectives

MESH = Mesh.parse("dp=2,tp=4")


def read(*lines: str, before: str = "", mesh: Mesh = MESH) -> list[Collective]:
    body = "\n".join(f"  {line}" for line in lines)
    entry = f"ENTRY %main (p: f32[8,8]) -> f32[8,8] {{\n{body}\n}}\n"
    return hlo_collectives(f"HloModule m, num_partitions=8\n\n{before}\n{entry}", mesh)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", "tp"),
        ("{{0,4},{1,5},{2,6},{3,7}}", "dp"),
        ("[2,4]<=[8]", "tp"),
        ("[4,2]<=[2,4]T(1,0)", "dp"),
        ("[1,8]<=[8]", "dp,tp"),
        ("{}", "dp,tp"),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", "tp"),
        ("mesh['axis_0'=1,'axis_1'=4,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", "tp"),
        ("{{0,1},{2,3},{4,5},{6,7}}", "tp:(2)2"),
        ("{{0,2},{1,3},{4,6},{5,7}}", "tp:(1)2"),
        ("{{0,5},{1,4},{2,7},{3,6}}", "irregular groups"),
    ],
)
def test_groups_are_named_by_mesh_axes(groups: str, axes: str) -> None:
    (found,) = read(f"%r = f32[8,8]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add")
    assert str(found).startswith(f"all-reduce over {axes}: ")


def test_groups_are_named_on_a_mesh_with_its_own_device_order() -> None:
    mesh = Mesh.parse("a=2,b=2 device_ids=0,2,1,3")
    assert axes_of_groups(np.array([[0, 2], [1, 3]]), mesh) == (AxisRef("b"),)


@pytest.mark.parametrize(
    ("line", "kind", "local", "moved"),
    [
        ("f32[8,8]{1,0} all-gather(%p)", CollectiveKind.ALL_GATHER, 64, 192),
        ("f32[8,8]{1,0} all-reduce(%p)", CollectiveKind.ALL_REDUCE, 256, 384),
        ("f32[2,8]{1,0} reduce-scatter(%p)", CollectiveKind.REDUCE_SCATTER, 256, 192),
        (
            "(bf16[8,2]{1,0}, bf16[8,2]{1,0}, /*index=2*/bf16[16,2]{1,0}) all-to-all(%p, %q, %r)",
            CollectiveKind.ALL_TO_ALL,
            128,
            96,
        ),
        (
            "(f32[8,8]{1,0:T(8,128)}, s4[16]{0}) all-reduce(%p, %q)",
            CollectiveKind.ALL_REDUCE,
            264,
            396,
        ),
        ("pred[8]{0} all-gather(%p)", CollectiveKind.ALL_GATHER, 2, 6),
        ("f8e4m3fn[8]{0} all-gather(%p)", CollectiveKind.ALL_GATHER, 2, 6),
    ],
)
def test_bytes_follow_the_ring_formulas(
    line: str, kind: CollectiveKind, local: float, moved: float
) -> None:
    (found,) = read(f"%r = {line}, replica_groups=[2,4]<=[8]")
    assert (found.kind, found.local_bytes, found.moved_bytes) == (kind, local, moved)


def test_a_permute_moves_what_a_device_holds() -> None:
    pairs = "{{0,0},{1,4},{2,1},{3,5},{4,2},{5,6},{6,3},{7,7}}"
    (found,) = read(f"%r = f32[4,8]{{1,0}} collective-permute(%p), source_target_pairs={pairs}")
    assert str(found) == "collective-permute over dp,tp: 128 bytes"


def test_a_permute_to_itself_and_groups_of_one_are_nothing() -> None:
    assert not read(
        "%r = f32[4]{0} collective-permute(%p), source_target_pairs={{0,0},{1,1}}",
        "%s = f32[4]{0} all-reduce(%p), replica_groups=[8,1]<=[8], to_apply=%add",
    )


def test_an_asynchronous_collective_counts_once() -> None:
    (found,) = read(
        "%s = (f32[2,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%p), replica_groups=[2,4]<=[8]",
        "%r = f32[8,8]{1,0} all-gather-done(%s)",
    )
    assert found.local_bytes == 64


LOOP = """%body (b: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %r = f32[8,8]{1,0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
}

"""


def test_a_collective_in_a_loop_runs_as_often_as_the_loop() -> None:
    trips = 'backend_config={"known_trip_count":{"n":"5"}}'
    found = read(
        f"%w = (s32[], f32[8,8]{{1,0}}) while(%t), condition=%cond, body=%body, {trips}",
        before=LOOP,
    )
    assert [(each.times, each.times_known) for each in found] == [(5, True)]
    assert total_bytes(found) == 5 * 384


def test_a_loop_without_trip_count_says_so() -> None:
    (found,) = read(
        "%w = (s32[], f32[8,8]{1,0}) while(%t), condition=%cond, body=%body", before=LOOP
    )
    assert (found.times, found.times_known) == (1, False)


COUNTED = """
%cond (t: (s32[], f32[8,8])) -> pred[] {
  %t = (s32[], f32[8,8]{1,0}) parameter(0)
  %end = s32[] constant(END)
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %lt = pred[] compare(%i, %end), direction=LT
}

%body (t: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %t = (s32[], f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8,8]{1,0} get-tuple-element(%t), index=1
  %two = s32[] constant(2)
  %next = s32[] add(%i, %two)
  %r = f32[8,8]{1,0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %out = (s32[], f32[8,8]{1,0}) tuple(%next, %r)
}
"""


@pytest.mark.parametrize(("end", "trips"), [(12, 6), (13, 7), (-1, 0)])
def test_a_counter_says_how_often_a_loop_runs(end: int, trips: int) -> None:
    """XLA:TPU writes no ``known_trip_count``."""
    found = read(
        "%zero = s32[] constant(0)",
        "%start = s32[] copy(%zero)",
        "%t = (s32[], f32[8,8]{1,0}) tuple(%start, %p)",
        "%w = (s32[], f32[8,8]{1,0}) while(%t), condition=%cond, body=%body",
        before=COUNTED.replace("END", str(end)),
    )
    assert [(each.times, each.times_known) for each in found] == [(trips, True)]


def test_a_collective_spread_over_fusions_counts_once() -> None:
    gather = (
        "%g = f32[8,8]{1,0} all-gather(%p), channel_id=7, replica_groups=[2,4]<=[8], "
        'frontend_attributes={chain_id="3"}'
    )
    parts = "".join(
        f"""
%{name} (p: f32[2,8]) -> f32[8,8] {{
  %p = f32[2,8]{{1,0}} parameter(0)
  {gather}
  ROOT %r = f32[8,8]{{1,0}} custom-call(%g), custom_call_target="{target}"
}}
"""
        for name, target in (
            ("begin", "AsyncCollectiveStart"),
            ("middle", "Other"),
            ("end", "AsyncCollectiveDone"),
        )
    )
    calls = [
        f"%{name}.1 = f32[8,8]{{1,0}} fusion(%p), kind=kCustom, calls=%{name}"
        for name in ("begin", "middle", "end")
    ]
    (found,) = read(*calls, before=parts)
    assert found.moved_bytes == 3 * 64


def test_every_branch_and_every_call_counts() -> None:
    found = read(
        "%c = f32[8,8]{1,0} conditional(%i, %p, %p), branch_computations={%body, %body}",
        "%d = f32[8,8]{1,0} call(%p), to_apply=%body",
        before=LOOP,
    )
    assert len(found) == 3


def test_source_lines_come_from_the_metadata() -> None:
    (found,) = read(
        "%r = f32[8]{0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, "
        'metadata={op_name="jit(f)/dot_general" source_file="model.py" source_line=7}'
    )
    assert (found.place, found.op_name) == ("model.py:7", "jit(f)/dot_general")


def test_source_lines_come_from_the_stack_frames() -> None:
    tables = (
        'FileNames\n1 "model.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n'
        "1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=8 end_column=8}\n\n"
        "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n\n"
    )
    (found,) = read(
        "%r = f32[8]{0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, "
        'metadata={op_name="f" stack_frame_id=1}',
        before=tables,
    )
    assert found.place == "model.py:9"


def test_text_without_an_entry_is_refused() -> None:
    with pytest.raises(ParseError, match="no ENTRY computation"):
        hlo_collectives("HloModule m\n", MESH)


SLICES = Mesh.parse("slice=4,x=2,y=2")


def between(target: str, kind: str) -> list[Collective]:
    """What a program of one of four slices with four devices each sends to others."""
    attributes = (
        "is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="
        f'"xla_megascale_runtime",_xla_megascale_target={target},'
        f'_xla_megascale_transfer_type="{kind}"}}'
    )
    text = (
        "HloModule m, num_partitions=4\n\nENTRY %main (p: f32[8,8]) -> f32[8,8] {\n"
        "  %p = f32[8,8]{1,0} parameter(0)\n  %t = token[] after-all()\n"
        f"  %s = (f32[8,8]{{1,0}}, u32[], token[]) send(%p, %t), channel_id=1, {attributes}\n"
        f"  %r = (f32[8,8]{{1,0}}, u32[], token[]) recv(%t), channel_id=2, {attributes}\n}}\n"
    )
    return hlo_collectives(text, SLICES)


@pytest.mark.parametrize(
    ("target", "kind", "expected"),
    [
        ('"{1,2,3,4}x{0:3}"', "ALL_REDUCE", "all-reduce over slice: 384 bytes"),
        (
            "{{100000,300000},{100001,300001},{100002,300002},{100003,300003},{200000,400000},"
            "{200001,400001},{200002,400002},{200003,400003}}",
            "ALL_GATHER",
            "all-gather over slice:(1)2: 256 bytes",
        ),
        (
            "{{100000->200000},{200000->100000}}",
            "ONE_TO_ONE",
            "collective-permute over slice:(2)2: 256 bytes",
        ),
        (
            "{{100000,100001,200000,200001},{100002,100003,200002,200003},"
            "{300000,300001,400000,400001},{300002,300003,400002,400003}}",
            "ALL_TO_ALL",
            "all-to-all over slice:(2)2,y: 192 bytes",
        ),
    ],
)
def test_transfers_between_slices_are_collectives(target: str, kind: str, expected: str) -> None:
    (found,) = between(target, kind)
    assert str(found) == expected


def test_a_permute_within_a_slice_is_one_in_every_slice() -> None:
    text = (
        "HloModule m, num_partitions=4\n\nENTRY %main (p: f32[8]) -> f32[8] {\n"
        "  %p = f32[8]{0} parameter(0)\n"
        "  %r = f32[8]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}\n}\n"
    )
    (found,) = hlo_collectives(text, SLICES)
    assert str(found) == "collective-permute over y: 32 bytes"


def test_groups_of_different_sizes_are_irregular() -> None:
    (found,) = read(
        "%r = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2},{3,4},{5},{6},{7}}, to_apply=%add"
    )
    assert (found.axes, found.group_size) == (None, 3)


def test_a_start_whose_end_is_in_another_run_counts_its_results() -> None:
    (found,) = read(
        "%s = (f32[2,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%p), replica_groups=[2,4]<=[8]",
    )
    assert found.local_bytes == 64


def test_a_transfer_to_the_host_is_no_collective_and_one_to_nobody_is_refused() -> None:
    send = "%s = (f32[8]{0}, u32[], token[]) send(%p, %t), channel_id=1"
    assert not read(f"{send}, is_host_transfer=true")
    with pytest.raises(ParseError, match="which devices the send"):
        read(send)


def test_a_send_between_devices_is_a_permute() -> None:
    (found,) = read(
        "%s = (f32[8]{0}, u32[], token[]) send(%p, %t), channel_id=1, frontend_attributes="
        '{_xla_send_recv_source_target_pairs="{{0,1},{1,2},{2,3}}"}'
    )
    assert str(found) == "collective-permute over tp: 32 bytes"


def test_a_fused_reduce_that_gives_only_a_slice_is_a_scatter() -> None:
    """XLA:TPU's reduce-scatter; the fusion has the line."""
    fused = """%all-reduce-scatter (p: f32[8,8], i: s32[]) -> f32[2,8] {
  %p = f32[8,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %r = f32[8,8]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add
  %d = f32[2,8]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={2,8}
  ROOT %b = f32[2,8,1]{2,1,0} bitcast(%d)
}
"""
    call = "%f = f32[2,8,1]{2,1,0} fusion(%p, %i), kind=kCustom, calls=%all-reduce-scatter, "
    metadata = 'metadata={op_name="jit(f)/dot_general" source_file="model.py" source_line=7}'
    (found,) = read(call + metadata, before=fused)
    assert str(found) == "reduce-scatter over tp: 192 bytes (model.py:7)"
    whole = fused.replace("ROOT %b", "%b").replace(
        "\n}\n", "\n  ROOT %n = f32[8,8]{1,0} negate(%r)\n}\n"
    )
    (found,) = read(call + metadata, before=whole)
    assert found.kind is CollectiveKind.ALL_REDUCE


def test_turns_of_a_ring_around_a_matmul_are_a_scatter() -> None:
    """XLA:TPU multiplies block by block and passes partial sums on; a gathered block has a dim
    of size 1 more."""
    pairs = "{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}"
    name = 'metadata={op_name="jit(f)/dot_general"}'
    turn = "%t = {type} collective-permute(%p), source_target_pairs={pairs}, {name}"
    (found,) = read(turn.format(type="f32[2,8]{1,0}", pairs=pairs, name=name))
    assert str(found) == "reduce-scatter over tp: 64 bytes"
    (found,) = read(turn.format(type="f32[1,2,8]{2,1,0}", pairs=pairs, name=name))
    assert str(found) == "all-gather over tp: 64 bytes"
    # a permute of the user's, and one that is no ring, stay what they are
    permute = name.replace("dot_general", "ppermute")
    (found,) = read(turn.format(type="f32[2,8]{1,0}", pairs=pairs, name=permute))
    assert found.kind is CollectiveKind.PERMUTE
    swap = "{{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}"
    (found,) = read(turn.format(type="f32[2,8]{1,0}", pairs=swap, name=name))
    assert found.kind is CollectiveKind.PERMUTE


def test_a_text_that_calls_what_it_does_not_have_is_damaged() -> None:
    text = "HloModule m\n\nENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8]{0} parameter(0)\n"
    call = "  ROOT %y = f32[8]{0} call(%x), to_apply=%gone\n}\n"
    with pytest.raises(ParseError, match="the HLO text is damaged: KeyError: 'gone'"):
        hlo_collectives(text + call, Mesh.parse("d=2"))
