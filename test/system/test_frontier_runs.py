"""Plans of a frontier that let values go give what the unsharded step gives."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_context_mesh as context
import test_values_on_host as steps
from jax.sharding import PartitionSpec as P

import autoshard


def cut(w: Any, x: Any) -> Any:
    """A small part is constrained to less than the search would do, which costs little."""
    part = jax.lax.with_sharding_constraint(x @ w[:, :32], P(None, "tp"))
    return (jnp.tanh(x @ w) @ w.T).sum() + jnp.tanh(part).sum()


CUT = tuple(jax.ShapeDtypeStruct((8 * a.shape[0], 8 * a.shape[1]), a.dtype) for a in context.LARGE)


def test_plans_that_let_values_go_give_equal_results() -> None:
    plan = steps.planned(False, recompute="auto", host_offload="auto")
    found = plan.frontier()
    again = next(n for n, one in enumerate(found.points, 1) if one.recomputed_bytes)
    sends = next(n for n, one in enumerate(found.points, 1) if one.host_transfer_bytes)
    step, arguments = steps.programs.step(None, False), steps.programs.arguments()
    expected = jax.jit(step)(*arguments)
    for number in (again, sends):
        taken = found.take(number)
        assert taken.peak_bytes == found.points[number - 1].peak_bytes < plan.peak_bytes
        result = autoshard.jit(step, plan=taken)(*arguments)
        jax.tree.map(np.testing.assert_array_equal, result, expected)


def test_a_plan_within_a_limit_gives_equal_results() -> None:
    plan = steps.planned(False, recompute="auto")
    limit = 0.9 * plan.peak_bytes
    within = plan.frontier().within(limit)
    assert within.peak_bytes <= limit
    assert steps.summary_of(within).recomputed
    step, arguments = steps.programs.step(None, False), steps.programs.arguments()
    result = autoshard.jit(step, plan=within)(*arguments)
    jax.tree.map(np.testing.assert_array_equal, result, jax.jit(step)(*arguments))


@pytest.mark.parametrize(
    ("step", "arguments", "cluster"),
    [(context.costly, context.LARGE, "v5e:2x4"), (cut, CUT, "v6e:2x4")],
    ids=["given up", "kept"],
)
def test_constraints_are_kept_where_the_plan_keeps_them(
    step: Any, arguments: Any, cluster: str
) -> None:
    options: Any = {"cluster": cluster, "constraints": "prefer", "recompute": "auto"}
    with jax.set_mesh(context.MESH), warnings.catch_warnings():
        warnings.simplefilter("ignore", autoshard.AutoshardWarning)
        plan = autoshard.plan(step, *arguments, **options)
        first = plan.frontier().points[0]
        other = autoshard.plan(step, *arguments, **{**options, "constraints": "ignore"})
    assert first.step_seconds == plan.step_seconds
    assert (plan.step_seconds == other.step_seconds) == (step is context.costly)
