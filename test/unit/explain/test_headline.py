"""The headline adds up to the step, and names what most of it is spent on, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explained_plans import layers_plan
from small_record import FRAMES, RECORD, gather

from autoshard.errors import PlanError
from autoshard.explain.headline import headline_of, user_frame
from autoshard.explain.headline_text import headline_lines, headline_tables, short_scope
from autoshard.explain.record import Record
from autoshard.ir.locations import Frame


def test_shares_are_the_whole_step():
    """Half of the communication is hidden: the step has 2 s of 4 s; 1 s of compute is in no op."""
    shares = {share.what: share.seconds for share in headline_of(RECORD).shares}
    assert shares == {
        "HBM": 5.0,
        "matrix units": 4.0,
        "links of axis model (x0,x1)": 2.0,
        "slices of reshards": 1.0,
        "host link": 1.0,
    }


def test_the_bottleneck_is_named_with_the_function_that_has_most_of_it():
    found = headline_of(RECORD)
    assert found.bottleneck.what == "HBM"
    assert found.worst_function is not None
    assert found.worst_function.name == "layers/*"
    assert (
        "bottleneck: HBM, 38.5% of the step, most of all in layers/* (mlp.py:41), 23.1%"
        in headline_lines(found)
    )


def test_phases_have_their_distance_from_the_roofline():
    forward, backward, update = headline_of(RECORD).phases
    assert [forward.name, backward.name, update.name] == ["forward", "backward", "update"]
    assert forward.compute_seconds == 4.0
    assert forward.exposed_seconds == 2.0
    assert forward.wasted_seconds == 4.0 + 2.0 - 2.0
    assert backward.seconds == 3.0


def test_functions_are_those_of_the_user():
    """A library's layer counts for the line that calls it; its scope tells it from others."""
    found = {part.name: part for part in headline_of(RECORD).functions}
    assert found["layers/*"].place == "mlp.py:41"
    assert found["layers/*"].ops == 4
    assert found["step"].place == "run.py:9"


def test_the_innermost_frame_counts_where_all_are_libraries():
    assert user_frame(FRAMES, 2) == 1
    assert user_frame((Frame("f", "/lib/site-packages/a.py", 1, -1),), 0) == 0


def test_lines_say_memory_and_bound():
    first, step, _, memory, bound = headline_lines(headline_of(RECORD))
    assert first == "step on mesh model=16 (16 devices of v5e:4x4)"
    assert step == (
        "step 13 s = compute 10 s + exposed communication 2 s (2 s more are hidden)"
        " + host transfers 1 s"
    )
    assert memory == "memory 1 GiB a device of 2 GiB allowed (50.0%)"
    assert bound == "bound: 10 s, the plan is 30.0% above it (all plans)"


def test_a_real_plan_adds_up():
    plan = layers_plan()
    found = headline_of(plan.record)
    assert sum(share.seconds for share in found.shares) == pytest.approx(plan.step_seconds)
    assert sum(part.seconds for part in found.functions) == pytest.approx(
        plan.step_seconds, rel=0.02
    )
    assert [part.name for part in found.phases] == ["forward", "backward", "update"]
    assert found.functions[0].name == "loss"


def test_tables_say_what_is_left_out():
    many = tuple(gather(f"scope{number}", 2, 0.1) for number in range(13))
    record = replace(RECORD, collectives=many)
    *_, functions, collectives = headline_tables(headline_of(record), record)
    assert functions.rows[-1][0] == "and 3 more"
    assert collectives.rows[-1][0] == "and 3 more"
    assert all(len(row) == len(functions.columns) for row in functions.rows)


def test_a_record_from_before_there_were_ops_has_its_compute_in_one():
    summary = layers_plan().summary
    assert summary is not None
    record = Record.from_json(summary.to_json())
    found = headline_of(record)
    shares = {share.what: share.seconds for share in found.shares}
    assert shares["compute"] == summary.compute_seconds
    assert any("written before version 1" in line for line in headline_lines(found))


def test_a_long_scope_is_told_by_its_inner_part():
    assert short_scope("a/b") == "a/b"
    assert short_scope("Model" * 8 + "/layers/*/mlp") == "../layers/*/mlp"


def test_without_a_cluster_nothing_is_known_of_a_step():
    with pytest.raises(
        PlanError, match=r"plan of step: planned without .* known of plans for a cl"
    ):
        headline_of(replace(RECORD, summary=None, missing="planned without a cluster"))
