"""What Shardy's propagation makes of lines, read back into the values of a plan."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
import pytest
from small_step import PARAMS, rows, step_with

import autoshard
from autoshard.errors import PassError
from autoshard.explain import propagated_lines
from autoshard.explain.annotations import annotate, annotated_values
from autoshard.explain.line_candidates import Candidate
from autoshard.explain.propagated_lines import ByPlanner, ByShardy, propagation_of
from autoshard.explain.question import Dims, Subject

STEP = step_with(jnp.square)


def planned(count: int) -> Subject:
    return autoshard.plan(STEP, PARAMS, rows(count), cluster="v5e:2x4", mesh="a=8").subject


@cache
def subject() -> Subject:
    return planned(4096)


def said(asked: Subject, argument: int, dims: Dims) -> Candidate:
    """A line of one argument."""
    _, lines = annotated_values(subject(), 1)
    value = asked.imported.functions[-1].arguments[argument]
    return Candidate(lines[0].annotation, (value,), dims)


def made_by(asked: Subject, name: str) -> list[int]:
    return [v for op, values in asked.imported.result_values if op.name == name for v in values]


def test_shardy_cuts_what_follows_from_a_line() -> None:
    """CHLO ops are cut as well, though Shardy has no rule: XLA has replaced them before."""
    asked = subject()
    found = ByShardy(asked).shardings([said(asked, 2, ((0,), ()))])
    squares = made_by(asked, "chlo.square")
    assert squares
    assert {found[value] for value in squares} == {((0,), ())}
    dots = [found[v] for v in made_by(asked, "stablehlo.dot_general")]
    assert ((0,), ()) in dots


def test_without_lines_all_is_whole_and_nothing_is_sent() -> None:
    judge = ByShardy(subject())
    assert {axes for dims in judge.shardings(()).values() for axes in dims} == {()}
    assert not sum(judge(()).sent.values())


@pytest.mark.parametrize(("rows", "cut"), [(4100, None), (4101, ((), ()))])
def test_rows_that_an_axis_does_not_divide(rows: int, cut: Dims | None) -> None:
    """A part of the axis, which the plan cannot say, is left open; else the rows are whole."""
    asked = planned(rows)
    value = asked.imported.functions[-1].arguments[2]
    found = ByShardy(asked).shardings([said(asked, 2, ((0,), ()))])
    assert found.get(value) == cut


def test_what_shardy_refuses_is_asked_of_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ByShardy, lines: Any) -> Any:
        raise PassError("no such op")

    monkeypatch.setattr(ByShardy, "shardings", refuse)
    asked, why_not = propagation_of(subject())
    assert isinstance(asked, ByPlanner)
    assert why_not == "Shardy refuses the program: no such op"
    found = annotate(subject())
    assert found.not_by_shardy == why_not
    assert found.reproduced > 0.9
    assert "as the planner propagates, not Shardy: Shardy refuses" in " ".join(str(found).split())
    monkeypatch.setattr(propagated_lines, "is_native", lambda _: False)
    assert "has no sdy-propagation-pipeline" in propagation_of(subject())[1]
