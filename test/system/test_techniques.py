"""Techniques of hybrid parallelism in pairs: the same bits as the unsharded step.

Each pair is run in one of four forms here: over a scan or with layers one after the other, with
Shardy or GSPMD. ``bench/truth/techniques.py`` runs all of them, and each technique alone.
"""

from __future__ import annotations

import warnings
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from equivalence import assert_equal, shardy, unsharded
from models import unmarked
from techniques import DEVICES, PADDED_ROWS, STEPS, Case, all_pairs, look_up

import autoshard


def parts(plan: autoshard.Plan, start: str) -> set[int]:
    """Into how many parts arguments are cut whose names start so."""
    values = [value for value in plan.arguments if value.name.startswith(start)]
    return {prod(value.shape) // prod(value.local_shape) for value in values}


def check_is_used(case: Case, plan: autoshard.Plan) -> None:
    """Each technique shows in the plan or in the compiled program."""
    assert plan.summary is not None
    if case.level:
        assert parts(plan, "state") == {DEVICES}
        assert (parts(plan, "parameters") == {DEVICES}) == (case.level == 3)
    if case.has("recompute auto"):
        assert plan.summary.recomputed or case.has("recompute marks")
        assert plan.peak_bytes <= (plan.summary.memory_limit or 0)
    on_host = {value.name.partition("[")[0] for value in plan.arguments if value.is_on_host}
    assert on_host == ({"state"} if case.has("host states") else set())
    if case.has("manual split"):
        (table,) = (v for v in plan.arguments if v.name == "parameters['table']")
        assert table.local_shape[0] <= look_up.packed_rows // len(look_up.split)
    if case.has("pad"):
        cut = (op for op in plan.ops if any(s and DEVICES in s.tile for s in op.shardings))
        assert any(str(PADDED_ROWS) in type_ for op in cut for type_ in op.types)
    if case.has("accumulate"):
        assert plan.batch is None or plan.batch.gradient_accumulation == STEPS


@cache
def on_one_device(case: Case) -> Any:
    """What one device gives, compiled and run once for all cases of the same step."""
    return unsharded(case.step(unmarked), case.arguments())


def of_case(number: int, techniques: frozenset[str]) -> Any:
    case, use_shardy = Case(techniques, bool(number & 1)), bool(number & 2)
    return pytest.param(case, use_shardy, id=f"{'shardy' if use_shardy else 'gspmd'} {case}")


@pytest.mark.parametrize(("case", "use_shardy"), [of_case(*one) for one in enumerate(all_pairs())])
def test_the_step_equals_the_unsharded_one(case: Case, use_shardy: bool) -> None:
    with shardy(use_shardy), warnings.catch_warnings():
        # Whether XLA moves as little as planned is not what is asked here.
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        step, args = case.planned()
        found = jax.device_get(step(*jax.tree.map(jnp.array, args)))
        no_all_to_all = case.has("no all-to-all")
        text = step.lower(*args).compile().as_text() or "" if no_all_to_all else ""
    assert_equal(found, on_one_device(case.plain), 0.0)
    assert "all-to-all" not in text
    check_is_used(case, step.plan(*args))
