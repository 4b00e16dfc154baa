"""A schedule as text."""

import pytest

from autoshard.schedule.gantt import gantt
from autoshard.schedule.rules import pipeline_schedule
from autoshard.schedule.work import StageSeconds


def test_a_chart_has_a_row_for_every_stage():
    chunks = [StageSeconds(1, 1, 0)] * 2
    assert gantt(pipeline_schedule("1f1b", chunks, 2, 2)) == "\n".join(
        [
            "2 stages, 2 micro-batches: 6 s, bubble 33.3 %, no schedule is under 6 s",
            "stage 0  F0 F1 ...B0 ...B1   keeps 2",
            "stage 1  ...F0 B0 F1 B1 ...  keeps 1",
        ]
    )


def test_chunks_of_a_stage_are_told_apart():
    chunks = [StageSeconds(1, 1, 0)] * 4
    rows = gantt(pipeline_schedule("1f1b", chunks, 2, 2)).splitlines()
    assert "F0'" in rows[1]
    assert "B1'" in rows[2]


@pytest.mark.parametrize("width", [40, 80])
def test_a_long_schedule_is_drawn_within_the_width(width):
    chunks = [StageSeconds(1, 2, 3)] * 2
    rows = gantt(pipeline_schedule("zero_bubble", chunks, 2, 16), width).splitlines()[1:]
    assert all(len(row.split("  keeps")[0]) == width for row in rows)
