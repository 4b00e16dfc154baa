"""Ctrl-C in a search: the best plan so far where there is one that the task keeps, else it ends."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.errors import AutoshardWarning
from autoshard.passes.search_progress import shown_search
from autoshard.progress import Task, task


def test_what_is_tried_and_the_best_so_far_are_said() -> None:
    with task("planning", keeps_best=True) as planning:
        show = shown_search()
        assert show("levels", 0, math.inf, (), False)
        assert planning.text == "levels, 0 compared"
        assert show("joint", 3, 0.25, (4, 16), False)
        assert planning.text == "joint, 3 compared, best a step of 250 ms on a mesh of 4x16"


def test_an_interrupted_search_ends_where_no_plan_is_known_yet() -> None:
    with task("planning", keeps_best=True) as planning:
        with pytest.raises(KeyboardInterrupt):
            shown_search()("levels", 0, math.inf, (), True)
        assert not planning.is_interrupted


def test_an_interrupted_search_ends_where_the_task_keeps_no_plan() -> None:
    with task("compiling"), pytest.raises(KeyboardInterrupt):
        shown_search()("joint", 3, 0.25, (4, 16), True)


def test_an_interrupted_search_takes_the_best_plan_so_far_with_a_warning() -> None:
    with task("planning", keeps_best=True) as planning:
        with pytest.warns(AutoshardWarning, match="the best plan of 3 is taken, a step of 250 ms"):
            assert not shown_search()("joint", 3, 0.25, (4, 16), True)
        assert planning.is_interrupted


def pressed(task: Task, text: str) -> None:
    """Says nothing: Ctrl-C is pressed meanwhile."""
    raise KeyboardInterrupt


def test_ctrl_c_while_something_is_said_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "says", pressed)
    with task("planning", keeps_best=True) as planning:
        with pytest.warns(AutoshardWarning, match="the best plan of 3 is taken"):
            assert not shown_search()("joint", 3, 0.25, (4, 16), False)
        assert planning.is_interrupted


def test_after_an_interrupted_search_the_next_one_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan() -> autoshard.Plan:
        array = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        return autoshard.plan(lambda w, x: jnp.tanh(x @ w), array, array, cluster="v5e:2x2")

    with monkeypatch.context() as patched:
        patched.setattr(Task, "says", pressed)
        with pytest.raises(KeyboardInterrupt):
            plan()
    assert plan().mesh.size == 4
