"""``Plan.frontier``: plans that no other beats in time and memory."""

from __future__ import annotations

import dataclasses
import functools
import json
from itertools import pairwise
from pathlib import Path

import pytest
from explain.programs import once

import autoshard
from autoshard.errors import PlanError
from autoshard.explain.frontier import MOST_POINTS, Frontier


@functools.cache
def found() -> Frontier:
    return once("attention", cluster="h100:8").frontier()


def test_each_is_slower_and_needs_less_than_the_one_before() -> None:
    points = found().points
    assert 2 < len(points) <= MOST_POINTS
    for one, two in pairwise(points):
        assert one.step_seconds < two.step_seconds
        assert one.peak_bytes > two.peak_bytes


def test_the_plan_is_among_them_unless_it_is_beaten() -> None:
    plan = once("attention", cluster="h100:8")
    own = [(p.step_seconds, p.peak_bytes) for p in found().points if p.is_plan]
    step, peak = plan.step_seconds, plan.peak_bytes
    beats = any(p.step_seconds <= step and p.peak_bytes <= peak for p in found().points)
    assert own == [(step, peak)] if own else beats


def test_a_limit_in_between_is_kept_by_one_that_is_not_far_from_its_own_search() -> None:
    points = found().points
    limit = (points[0].peak_bytes + points[-1].peak_bytes) / 2
    mesh = str(once("attention", cluster="h100:8").mesh)
    searched = once("attention", cluster="h100:8", mesh=mesh, memory_limit=limit)
    fastest = next(point for point in points if point.peak_bytes <= limit)
    assert fastest.step_seconds < 1.1 * searched.step_seconds


def test_one_can_be_taken_and_saved(tmp_path: Path) -> None:
    number = len(found().points)
    taken = found().take(number)
    assert taken.step_seconds == pytest.approx(found().points[-1].step_seconds)
    assert taken.peak_bytes == pytest.approx(found().points[-1].peak_bytes)
    taken.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert [one.sharding for one in loaded.arguments] == [one.sharding for one in taken.arguments]
    assert not taken.diff(once("attention", cluster="h100:8")).is_same
    with pytest.raises(PlanError, match="count from 1"):
        found().take(0)
    with pytest.raises(PlanError, match=r"by what autoshard\.plan returned"):
        dataclasses.replace(found(), plan=loaded).take(number)


def test_it_is_shown_as_a_table_and_as_json() -> None:
    assert str(found()).count("MiB") >= len(found().points)
    assert json.loads(json.dumps(found().to_json()))[0]["mem_coeff"] == found().points[0].mem_coeff
