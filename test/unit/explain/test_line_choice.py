"""Which lines are taken: what they bring back against what is sent besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import jax.numpy as jnp
import pytest
from small_step import PARAMS, rows, step_with

import autoshard
from autoshard.errors import StrategyError
from autoshard.explain.annotations import annotated_values
from autoshard.explain.line_candidates import candidates
from autoshard.explain.line_choice import LineChoice
from autoshard.explain.propagated_lines import ByShardy, propagation_of
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import Propagated

STEP = step_with(jnp.square)


@cache
def subject() -> Subject:
    return autoshard.plan(STEP, PARAMS, rows(4096), cluster="v5e:2x4", mesh="a=8").subject


@pytest.mark.parametrize(
    ("share", "excess", "is_better"),
    [
        (0.97, 0.1, True),  # 1 % more comes back, and 6 % more is sent besides
        (0.97, 0.5, False),
        (0.959, 0.02, True),
        (0.955, 0.02, False),  # half a percent less comes back, and 2 % less is sent
        (0.90, 0.0, False),
        (1.0, 0.05, True),
    ],
)
def test_what_is_missing_counts_ten_times_what_is_sent_besides(
    monkeypatch: pytest.MonkeyPatch, share: float, excess: float, is_better: bool
) -> None:
    propagation, _ = propagation_of(subject())
    choice = LineChoice(subject(), [], propagation)
    before = propagation(())
    found = replace(before)
    shares = {id(before): 0.96, id(found): share}
    excesses = {id(before): 0.04, id(found): excess}
    monkeypatch.setattr(choice, "_share", lambda one: shares[id(one)])
    monkeypatch.setattr(choice, "_excess", lambda one: excesses[id(one)])
    assert choice._is_better(found, before) is is_better


def test_lines_that_contradict_others_are_not_taken() -> None:
    asked = subject()
    propagation, _ = propagation_of(asked)
    _, taken = annotated_values(asked)

    def without_the_first(lines: Sequence[Any]) -> Propagated:
        if taken[0] in lines and len(lines) > 1:
            raise StrategyError("two operands of one op")
        return propagation(lines)

    chosen = LineChoice(asked, taken, without_the_first).chosen(20)
    assert chosen.lines
    assert taken[0] not in chosen.lines or len(chosen.lines) == 1


def test_a_line_with_which_it_is_worse_is_added_for_one_that_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = subject()
    lines = [line for line in candidates(asked) if line.is_writable][:3]
    losses = {0: 1.0, 1: 3.0, 2: 0.01, 3: 0.01}
    lost: dict[int, float] = {}
    before = propagation_of(asked)[0](())

    def propagation(said: Sequence[Any]) -> Propagated:
        found = replace(before)
        lost[id(found)] = losses[len(said)]
        made.append(found)
        return found

    made: list[Propagated] = []  # kept, so that no two have one id
    choice = LineChoice(asked, lines, propagation)
    monkeypatch.setattr(choice, "_loss", lambda found: lost[id(found)])
    monkeypatch.setattr(choice, "_is_enough", lambda found: not lost[id(found)])
    monkeypatch.setattr(
        choice, "_blamed", lambda chosen, most: range(len(chosen.lines), min(3, len(lines)))[:1]
    )
    assert choice.chosen(20).lines == tuple(lines[:2])
    choice.ops_again = choice.ops_to_add = 10**6
    assert len(choice.chosen(1).lines) <= 1


@pytest.mark.parametrize("pressed_at", [2, 3])
def test_ctrl_c_takes_the_best_lines_so_far(
    monkeypatch: pytest.MonkeyPatch, pressed_at: int
) -> None:
    """While lines are added, and while it is tried to do without some."""
    asked = subject()
    whole, times = ByShardy.__call__, count(1)

    def propagated(self: ByShardy, lines: Sequence[Any]) -> Propagated:
        if next(times) == pressed_at:
            raise KeyboardInterrupt
        return whole(self, lines)

    monkeypatch.setattr(ByShardy, "__call__", propagated)
    found, lines = annotated_values(asked)
    assert next(times) <= pressed_at + 2, "it went on"
    assert len(found.lines) == len(lines)
    monkeypatch.undo()
    assert found.reproduced <= annotated_values(asked)[0].reproduced
    assert found.untried == (len(lines) if pressed_at == 3 else 0)


def test_a_line_that_stands_for_one_that_went_is_missed_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = subject()
    lines = [line for line in candidates(asked) if line.is_writable][:3]
    losses = {
        (0, 1, 2): 0.0,
        (1, 2): 0.1,
        (0, 2): 0.2,
        (0, 1): 0.5,
        (2,): 2.0,
        (1,): 0.6,
        (0,): 0.7,
    }
    before = propagation_of(asked)[0](())
    lost: dict[int, float] = {}
    made: list[Propagated] = []  # kept, so that no two have one id

    def propagation(said: Sequence[Any]) -> Propagated:
        made.append(replace(before))
        lost[id(made[-1])] = losses.get(tuple(map(lines.index, said)), 9.0)
        return made[-1]

    choice = LineChoice(asked, lines, propagation)
    monkeypatch.setattr(choice, "_loss", lambda found: lost[id(found)])
    assert choice.needed(lines, 1, []).lines == (lines[1],)
