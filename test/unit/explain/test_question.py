"""Solves of a plan's program with one thing changed."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard._core import FactorKind, Place
from autoshard.errors import PlanError
from autoshard.explain.question import Change, Subject, subject_of
from autoshard.importer.pins import Pinned, pin_of

X = jax.ShapeDtypeStruct((256, 1024), jnp.float32)
UP = jax.ShapeDtypeStruct((1024, 8192), jnp.float32)
DOWN = jax.ShapeDtypeStruct((8192, 1024), jnp.float32)


def loss(up: Any, down: Any, x: Any) -> Any:
    return jnp.mean((jax.nn.relu(x @ up) @ down - x) ** 2)


def gradients(up: Any, down: Any, x: Any) -> Any:
    return jax.grad(loss, argnums=(0, 1))(up, down, x)


@functools.cache
def subject(**options: Any) -> Subject:
    return subject_of(autoshard.plan(gradients, UP, DOWN, X, cluster="v5e:4x2", **options))


def seconds(asked: Subject, change: Change) -> float:
    outcome = asked.solved(change)
    assert outcome.plan is not None
    return outcome.plan.step_seconds


def test_a_solve_without_a_change_is_the_plan() -> None:
    asked = subject()
    assert asked.plan.step_seconds == pytest.approx(asked.summary.step_seconds)
    assert seconds(asked, Change()) == pytest.approx(asked.summary.step_seconds)


def test_an_operand_that_is_kept_is_not_resharded() -> None:
    asked = subject()
    moved = {
        (op, position)
        for place, op, position in zip(
            asked.plan.reshards.place,
            asked.plan.reshards.index,
            asked.plan.reshards.position,
            strict=True,
        )
        if place is Place.OPERAND
    }
    outcome = asked.solved(Change(kept_operands=tuple(sorted(moved))))
    assert moved
    assert outcome.plan is not None
    table = outcome.plan.reshards
    left = zip(table.place, table.index, table.position, strict=True)
    assert not moved & {(op, at) for place, op, at in left if place is Place.OPERAND}
    assert outcome.plan.step_seconds > asked.plan.step_seconds


def test_a_factor_that_is_whole_is_cut_by_no_axis() -> None:
    asked = subject()
    table = asked.plan.reshards
    summed = [op for op, partial in zip(table.index, table.partial_axes, strict=True) if partial]
    whole = tuple(
        (op, number)
        for op in summed
        for number, factor in enumerate(asked.imported.program.rule_of(op).factors)
        if factor.kind == FactorKind.REDUCTION
    )
    outcome = asked.solved(Change(whole_factors=whole))
    assert whole
    assert outcome.plan is not None
    left = outcome.plan.reshards
    assert not any(
        partial and op in summed for op, partial in zip(left.index, left.partial_axes, strict=True)
    )


def test_less_memory_than_any_plan_needs_is_said_with_its_tensors() -> None:
    outcome = subject().solved(Change(memory_limit=1e6))
    assert not outcome.fits
    assert not outcome.is_impossible
    assert outcome.peak_bytes > 1e6
    assert outcome.tensors
    assert "Largest tensors" in outcome.reason


def test_pins_that_contradict_are_impossible() -> None:
    asked = subject()
    pins = tuple(
        Pinned(
            asked.imported.functions[-1].arguments[0],
            pin_of(text, asked.mesh, (1024, 8192), None),
            None,
            text,
        )
        for text in ("(8, 1)", "(1, 8)")
    )
    outcome = asked.searched(Change(pins=pins))
    assert outcome.is_impossible
    assert "contradict" in outcome.reason


def test_without_the_users_pins_what_they_cost_is_free() -> None:
    pinned = subject_of(
        autoshard.plan(
            gradients,
            UP,
            DOWN,
            X,
            cluster="v5e:4x2",
            mesh="a=8",
            in_shardings=(jax.P(), None, None),
        )
    )
    free = seconds(pinned, Change(without_pins=True))
    assert free < pinned.plan.step_seconds
    assert free == pytest.approx(subject().plan.step_seconds)


def test_the_whole_search_is_never_behind_the_near_one() -> None:
    asked = subject()
    first = next(
        number
        for number, op in enumerate(asked.imported.core_ops)
        if op.name == "stablehlo.dot_general" and number not in asked.imported.rounded
    )
    change = Change(memory_limit=math.inf, kept_operands=((first, 0), (first, 1)))
    searched = asked.searched(change)
    assert searched.plan is not None
    assert searched.plan.step_seconds <= seconds(asked, change)


def test_marks_hold_in_every_solve() -> None:
    layout = autoshard.Layout((8,), ("a",))
    matmul = autoshard.shard(jnp.matmul, in_strategy=(layout("a", "None"), layout("None", "None")))
    plan = autoshard.plan(lambda x, w: matmul(x, w).sum(), X, UP, cluster="v5e:4x2")
    asked = subject_of(plan)
    assert asked.plan.step_seconds == pytest.approx(plan.step_seconds)
    assert any(pinned.is_users for pinned in asked.imported.pins)
    assert seconds(asked, Change()) == pytest.approx(plan.step_seconds)


def test_plans_that_were_not_searched_by_time_are_refused() -> None:
    plan = autoshard.plan(gradients, UP, DOWN, X, mesh="a=8", mode="data_parallel", batch_argnums=2)
    with pytest.raises(PlanError, match="planned in mode 'data_parallel'"):
        subject_of(plan)


def test_what_does_not_fit_is_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the plan on nothing fits, and the search from nothing is not made again for that."""
    from autoshard import _core

    asked = subject()
    searches: list[float] = []
    search = _core.recursive_programming

    def counted(*given: Any, **options: Any) -> _core.CorePlan:
        searches.append(options["memory_limit"])
        return search(*given, **options)

    monkeypatch.setattr(_core, "recursive_programming", counted)
    outcome = asked.searched(Change(memory_limit=1e6))
    assert not outcome.fits
    assert outcome.peak_bytes > 1e6
    assert searches == [1e6]
    asked.solved(Change(memory_limit=2e6))
    assert searches == [1e6, 2e6]
