"""Remarks stand at the user's lines, say how much of a step they are about, leave out trifles."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explained_plans import layers_plan
from small_record import RECORD, SUMMARY

from autoshard.errors import PlanError
from autoshard.explain.record import Record, RecordedValue
from autoshard.explain.remarks import Remark, RemarkKind, Rule, remarks_of
from autoshard.planned.summary import PeakValue, RecomputedValue


def of(record: Record, rule: Rule) -> list[Remark]:
    return [one for one in remarks_of(record) if one.rule is rule]


def test_a_dim_that_no_axis_divides_is_missed():
    first = replace(RECORD.ops[0], idle_axes=("model",), uncut=(25, 7))
    (found,) = of(replace(RECORD, ops=(first,)), Rule.COMPUTED_ALIKE)
    assert found.kind is RemarkKind.MISSED
    assert (found.file, found.line, found.function) == ("/home/me/mlp.py", 41, "mlp")
    assert found.seconds == pytest.approx(4.0 * 15 / 16)
    assert found.message == (
        "dot_general x 2 of 8x8xf32 in layers/* is computed alike on 16 devices (model), 3.75 s a"
        " step: of its dims, 25, 7 on a device, none is divided by 16"
    )


def test_an_op_that_could_be_cut_and_is_not_has_no_such_reason():
    first = replace(RECORD.ops[0], idle_axes=("model",), uncut=(32, 7))
    (found,) = of(replace(RECORD, ops=(first,)), Rule.COMPUTED_ALIKE)
    assert found.message.endswith("3.75 s a step")


def test_what_of_a_collective_is_hidden_is_not_missed():
    (found,) = of(RECORD, Rule.EXPOSED)
    assert found.seconds == 2.0
    assert found.message == (
        "all-gather x 2 over model of w 8x8xf32 (operand 1 of dot_general) in layers/*: 2 s a step"
        " are not hidden, 16 B sent"
    )


def test_the_time_of_an_op_has_its_bound_and_distance_from_the_roofline():
    messages = [one.message for one in of(RECORD, Rule.TIME)]
    assert messages[0] == (
        "dot_general x 2 of 8x8xf32 in layers/* takes 4 s a step (forward), bound by matrix units,"
        " 2.00 x the roofline"
    )
    assert len(messages) == 3


def test_arguments_are_cut_or_whole_or_on_the_host():
    size = SUMMARY.peak_bytes_per_device / 4
    record = replace(
        RECORD,
        arguments=(
            RecordedValue("w[*]", "8x8xf32", "[{model}, {}]", size, 3, False),
            RecordedValue("b", "8xf32", "[{}]", size, 1, False),
            RecordedValue("m", "8xf32", "[{model}]", size, 1, True),
            RecordedValue("small", "8xf32", "[{}]", 1.0, 1, False),
        ),
    )
    assert [(one.kind.value, one.rule.label) for one in remarks_of(record) if one.bytes] == [
        ("passed", "Cut"),
        ("passed", "OnHost"),
        ("missed", "Whole"),
    ]
    assert of(record, Rule.CUT)[0].message == (
        "w[*] x 3 of 8x8xf32 cut as [{model}, {}]: 256 MiB on each device"
    )


def test_what_is_computed_again_and_what_fills_the_memory_has_its_line():
    summary = replace(
        SUMMARY,
        recomputed=(RecomputedValue("tanh 8xf32", 4, 1024.0, 1.0, "/a/m.py:3"),),
        peak_values=(PeakValue("dot_general", "8xf32", "[{}]", 2.0**29, 2, "/a/m.py:4"),),
    )
    record = replace(RECORD, summary=summary)
    (again,) = of(record, Rule.COMPUTED_AGAIN)
    assert (again.kind, again.file, again.line) == (RemarkKind.PASSED, "/a/m.py", 3)
    assert again.message == "tanh 8xf32 x 4 computed again: 1 KiB not kept"
    (peak,) = of(record, Rule.PEAK)
    assert (peak.kind, peak.line) == (RemarkKind.ANALYSIS, 4)


def test_trifles_get_no_remark():
    assert len(remarks_of(RECORD, least_share=0.4)) == 0
    assert len(remarks_of(RECORD, least_share=0.3)) == 1


def test_kinds_come_in_order_and_the_most_seconds_first():
    found = remarks_of(layers_plan().record)
    kinds = [list(RemarkKind).index(one.kind) for one in found]
    assert kinds == sorted(kinds)
    for kind in RemarkKind:
        seconds = [one.seconds for one in found if one.kind is kind]
        assert seconds == sorted(seconds, reverse=True)


def test_remarks_of_a_real_plan_stand_at_lines_of_the_program():
    found = remarks_of(layers_plan().record)
    timed = [one for one in found if one.rule is Rule.TIME]
    assert timed
    assert {(one.file or "").rpartition("/")[2] for one in timed} == {"explained_plans.py"}
    assert {one.function for one in timed} <= {"loss", "step", "step.<lambda>"}


def test_without_a_cluster_there_are_none():
    with pytest.raises(PlanError, match="What a step is spent on is known of plans for a cluster"):
        remarks_of(replace(RECORD, summary=None))
