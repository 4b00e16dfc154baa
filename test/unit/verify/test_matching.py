"""Planned collectives beside those of compiled HLO; bytes worked out by hand."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.planned.collective import Collective, CollectiveKind
from autoshard.planned.summary import CollectiveSummary
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import AxisRef
from autoshard.verify.matching import (
    CollectiveMatch,
    Matching,
    Verdict,
    collectives_of_summary,
    match_collectives,
)
from autoshard.verify.rematerialization import unplanned_replications

CPU = Cluster.parse("cpu:8")
MESH = Mesh.parse("dp=2,tp=4")
DP, TP = (AxisRef("dp"),), (AxisRef("tp"),)
GATHER, REDUCE = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE
SCATTER = CollectiveKind.REDUCE_SCATTER


def at(line: int) -> str:
    return f'metadata={{op_name="jit(f)/dot_general" source_file="model.py" source_line={line}}}'


def match(planned: list[Collective], *lines: str, before: str = "", mesh: Mesh = MESH) -> Matching:
    body = "\n".join(f"  {line}" for line in lines)
    entry = f"ENTRY %main (p: f32[8,8]) -> f32[8,8] {{\n{body}\n}}\n"
    text = f"HloModule m, num_partitions=8\n\n{before}\n{entry}"
    return match_collectives(planned, text, mesh, CPU)


def plan(
    kind: CollectiveKind,
    axes: tuple[AxisRef, ...],
    size: int,
    local: float,
    line: int | None,
    times: int = 1,
) -> Collective:
    place = None if line is None else f"model.py:{line}:3"
    return Collective(kind, axes, size, local, times, place=place)


def verdicts(matching: Matching) -> list[Verdict]:
    return [row.verdict for row in matching.rows]


def only(matching: Matching) -> CollectiveMatch:
    (row,) = matching.rows
    return row


def test_same_kind_axes_and_line_are_as_planned() -> None:
    row = only(
        found := match(
            [plan(GATHER, TP, 4, 64, 7)],
            "%p = f32[2,8]{1,0} parameter(0)",
            f"ROOT %g = f32[8,8]{{1,0}} all-gather(%p), replica_groups=[2,4]<=[8], {at(7)}",
        )
    )
    assert (row.verdict, row.place) == (Verdict.AS_PLANNED, "model.py:7")
    assert found.planned_bytes == found.compiled_bytes == 192
    assert found.planned_seconds == found.compiled_seconds > 0
    assert (found.agreement, found.byte_error) == (1.0, 0.0)


def test_axes_are_compared_as_sets_of_devices() -> None:
    halves = (AxisRef("tp", 1, 2), AxisRef("tp", 2, 2))
    found = match(
        [plan(GATHER, halves, 4, 64, 7)],
        "%p = f32[2,8]{1,0} parameter(0)",
        f"ROOT %g = f32[8,8]{{1,0}} all-gather(%p), replica_groups=[2,4]<=[8], {at(7)}",
    )
    assert verdicts(found) == [Verdict.AS_PLANNED]


def test_a_lost_line_does_not_make_a_difference() -> None:
    row = only(
        match(
            [plan(GATHER, TP, 4, 64, 7)],
            "%p = f32[2,8]{1,0} parameter(0)",
            "ROOT %g = f32[8,8]{1,0} all-gather(%p), replica_groups=[2,4]<=[8]",
        )
    )
    assert (row.verdict, row.place) == (Verdict.AS_PLANNED, "model.py:7")


GATHER_AS_REDUCE = (
    "%p = f32[2,8]{1,0} parameter(0)",
    "%i = s32[] parameter(1)",
    "%zero = f32[] constant(0)",
    "%zeros = f32[8,8]{1,0} broadcast(%zero), dimensions={}",
    "%part = f32[8,8]{1,0} dynamic-update-slice(%zeros, %p, %i, %i)",
    "%r = f32[8,8]{1,0} all-reduce(%part), replica_groups=[2,4]<=[8], to_apply=%add",
    f"ROOT %d = f32[8,8]{{1,0}} dot(%r, %r), {at(7)}",
)


def test_a_gather_written_as_a_reduce_is_known_and_takes_twice_the_bytes() -> None:
    found = match([plan(GATHER, TP, 4, 64, 7)], *GATHER_AS_REDUCE)
    row = only(found)
    assert row.verdict is Verdict.WRITTEN_AS
    assert row.compiled is not None
    assert (row.compiled.kind, row.compiled.meant) == (REDUCE, GATHER)
    assert (found.planned_bytes, found.compiled_bytes) == (192, 384)
    assert (found.agreement, found.partitioner_agreement, found.byte_error) == (0.0, 1.0, 1.0)


def test_a_gather_in_a_fused_update_is_known() -> None:
    fused = """%fused (p: f32[8,8], q: f32[2,8], i: s32[]) -> f32[8,8] {
  %p.1 = f32[8,8]{1,0} parameter(0)
  %q.1 = f32[2,8]{1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  ROOT %u = f32[8,8]{1,0} dynamic-update-slice(%p.1, %q.1, %i.1, %i.1)
}
"""
    lines = list(GATHER_AS_REDUCE)
    lines[4] = "%part = f32[8,8]{1,0} fusion(%zeros, %p, %i), kind=kLoop, calls=%fused"
    row = only(match([plan(GATHER, TP, 4, 64, 7)], *lines, before=fused))
    assert row.verdict is Verdict.WRITTEN_AS


def test_a_scatter_written_as_a_reduce_and_a_slice_is_known() -> None:
    row = only(
        match(
            [plan(SCATTER, TP, 4, 256, 7)],
            "%p = f32[8,8]{1,0} parameter(0)",
            "%i = s32[] parameter(1)",
            "%r = f32[8,8]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, " + at(7),
            "ROOT %s = f32[2,8]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={2,8}",
        )
    )
    assert row.verdict is Verdict.WRITTEN_AS
    assert row.compiled is not None
    assert row.compiled.meant is SCATTER


def test_a_reduce_that_others_read_whole_is_a_reduce() -> None:
    row = only(
        match(
            [plan(REDUCE, TP, 4, 256, 7)],
            "%p = f32[8,8]{1,0} parameter(0)",
            "%i = s32[] parameter(1)",
            "%r = f32[8,8]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, " + at(7),
            "%s = f32[2,8]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={2,8}",
            "ROOT %n = f32[8,8]{1,0} negate(%r)",
        )
    )
    assert row.verdict is Verdict.AS_PLANNED


def test_arrays_of_a_joined_collective_have_their_own_lines() -> None:
    found = match(
        [plan(REDUCE, TP, 4, 256, 7), plan(REDUCE, TP, 4, 128, 9)],
        "%p = f32[8,8]{1,0} parameter(0)",
        "%q = f32[4,8]{1,0} parameter(1)",
        "%r = (f32[8,8]{1,0}, f32[4,8]{1,0}) all-reduce(%p, %q), replica_groups=[2,4]<=[8],"
        f" to_apply=%add, {at(7)}",
        "%a = f32[8,8]{1,0} get-tuple-element(%r), index=0",
        "%b = f32[4,8]{1,0} get-tuple-element(%r), index=1",
        f"%c = f32[8,8]{{1,0}} negate(%a), {at(7)}",
        f"ROOT %d = f32[4,8]{{1,0}} negate(%b), {at(9)}",
    )
    rows = [(row.place, row.compiled.bytes if row.compiled else 0) for row in found.rows]
    assert rows == [("model.py:7", 384), ("model.py:9", 192)]
    assert found.agreement == 1.0


def test_what_is_absent_and_what_is_not_planned_is_named() -> None:
    found = match(
        [plan(GATHER, DP, 2, 64, 7), plan(REDUCE, DP, 2, 64, 8)],
        "%p = f32[2,8]{1,0} parameter(0)",
        f"%g = f32[4,8]{{1,0}} all-gather(%p), replica_groups=[4,2]<=[2,4]T(1,0), {at(7)}",
        f"ROOT %h = f32[8,8]{{1,0}} all-gather(%p), replica_groups=[2,4]<=[8], {at(9)}",
    )
    assert verdicts(found) == [Verdict.NOT_PLANNED, Verdict.ABSENT, Verdict.AS_PLANNED]
    assert [row.place for row in found.rows] == ["model.py:9", "model.py:8", "model.py:7"]
    # 64 of 128 planned bytes and 64 of 256 compiled ones.
    assert found.agreement == pytest.approx(0.25)
    (replicated,) = unplanned_replications(found)
    assert replicated.place == "model.py:9"


def test_more_of_the_same_is_matched_as_far_as_it_goes() -> None:
    found = match(
        [plan(REDUCE, TP, 4, 256, 7, times=2)],
        "%p = f32[8,8]{1,0} parameter(0)",
        f"%r = f32[8,8]{{1,0}} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, {at(7)}",
        f"%s = f32[8,8]{{1,0}} all-reduce(%r), replica_groups=[2,4]<=[8], to_apply=%add, {at(7)}",
        f"ROOT %t = f32[8,8]{{1,0}} all-reduce(%s), replica_groups=[2,4]<=[8], to_apply=%add,"
        f" {at(7)}",
    )
    assert verdicts(found) == [Verdict.NOT_PLANNED, Verdict.AS_PLANNED]
    assert (found.planned_bytes, found.compiled_bytes) == (768, 3 * 384)
    assert found.byte_error == pytest.approx(0.5)


def test_a_reduce_over_two_axes_as_one_over_each_is_over_other_axes() -> None:
    found = match(
        [plan(REDUCE, DP + TP, 8, 256, 7)],
        "%p = f32[8,8]{1,0} parameter(0)",
        f"%r = f32[8,8]{{1,0}} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, {at(7)}",
        "ROOT %s = f32[8,8]{1,0} all-reduce(%r), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add,"
        f" {at(7)}",
    )
    assert sorted(verdicts(found)) == [Verdict.NOT_PLANNED, Verdict.OTHER_AXES]


def test_a_plan_without_communication_agrees_with_a_program_without() -> None:
    found = match([], "ROOT %p = f32[2,8]{1,0} parameter(0)")
    assert (found.rows, found.agreement, found.byte_error) == ((), 1.0, 0.0)


def test_collectives_of_a_summary_send_the_same_bytes() -> None:
    mesh = Mesh.parse("x0=2,x1=2,y=2")
    (one,) = collectives_of_summary(
        [CollectiveSummary("all-gather", ("x1", "x0"), 3072.0, 6.0, 1e-3, "model.py:7")], mesh
    )
    assert (one.axes, one.group_size, one.times) == ((AxisRef("x0"), AxisRef("x1")), 4, 6)
    assert (one.local_bytes, one.total_bytes) == (1024.0, 6 * 3072.0)


def test_the_same_data_in_wider_elements_is_as_planned_with_more_bytes() -> None:
    found = match(
        [plan(GATHER, TP, 4, 32, 7)],
        "%p = f32[2,8]{1,0} parameter(0)",
        f"ROOT %g = f32[8,8]{{1,0}} all-gather(%p), replica_groups=[2,4]<=[8], {at(7)}",
    )
    assert verdicts(found) == [Verdict.AS_PLANNED]
    assert (found.agreement, found.byte_error) == (1.0, 1.0)


def test_the_same_collective_twice_is_one_too_many() -> None:
    found = match(
        [plan(REDUCE, TP, 4, 256, 7)],
        "%p = f32[8,8]{1,0} parameter(0)",
        f"%r = f32[8,8]{{1,0}} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, {at(7)}",
        f"ROOT %s = f32[8,8]{{1,0}} all-reduce(%r), replica_groups=[2,4]<=[8], to_apply=%add,"
        f" {at(7)}",
    )
    assert verdicts(found) == [Verdict.NOT_PLANNED, Verdict.AS_PLANNED]
