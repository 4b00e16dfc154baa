"""What XLA compiles in the automatic mode is what the search counted."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import MODELS, REALS, unmarked

import autoshard
from autoshard.frontend.checks import check_compiled
from autoshard.frontend.plan import Plan
from autoshard.planned.collective import total_bytes
from autoshard.verify.compiled import as_on_cpu
from autoshard.verify.hlo_collectives import hlo_collectives
from autoshard.verify.matching import collectives_of_summary

NAMES = [model.name for model in MODELS]

SPELLED_OTHERWISE = "embedding"
"""Shardy makes half the bytes of it, with a permute where the logits go from one cut dim to two."""


@cache
def planned(name: str) -> tuple[Plan, Any]:
    """The plan of a model's train step on 8 CPU devices, and the compiled program."""
    (model,) = (model for model in MODELS if model.name == name)
    random = np.random.default_rng(0)
    parameters = model.init(REALS, random)
    arguments = (parameters, REALS.optimizer.init(parameters), model.batch(REALS, random))
    jitted = autoshard.jit(model.step(unmarked, REALS), cluster="cpu:8")
    return jitted.plan(*arguments), jitted.lower(*arguments).compile()


@pytest.mark.parametrize("name", NAMES)
def test_the_compiled_program_has_the_collectives_that_the_search_counted(name: str) -> None:
    plan, compiled = planned(name)
    # Shardy may reduce to all devices what the search scatters, and XLA on CPU does.
    counted = total_bytes(as_on_cpu(collectives_of_summary(plan.summary.collectives, plan.mesh)))
    if name != SPELLED_OTHERWISE:
        read = total_bytes(as_on_cpu(plan.collectives))
        assert read == pytest.approx(counted, rel=0.03)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_compiled(plan, compiled)


def test_most_models_communicate() -> None:
    """Else the test above would say nothing."""
    talking = [name for name in NAMES if planned(name)[0].summary.collectives]
    assert len(talking) >= 4


def test_more_than_counted_is_told_with_its_line() -> None:
    """A program with the same arguments and results, that sums over the batch besides."""

    def forward(x, w):
        return jnp.tanh(x @ w)

    def centred(x, w):
        y = jnp.tanh(x @ w)
        return y - jnp.mean(y, axis=0)

    x, w = jnp.ones((16, 64)), jnp.ones((64, 8))
    layout = autoshard.Layout((8,), ("data",))
    rows, whole = layout("data", "None"), layout("None", "None")
    jitted = autoshard.jit(
        forward, cluster="cpu:8", mesh="data=8", in_shardings=(rows, whole), out_shardings=rows
    )
    plan = jitted.plan(x, w)
    assert not plan.collectives
    arguments, results = plan.named_shardings
    other = jax.jit(centred, in_shardings=tuple(arguments), out_shardings=results[0])
    with pytest.warns(
        autoshard.PlanMismatchWarning, match=r"each device sends .*test_auto_plan_is_kept\.py:\d+"
    ):
        check_compiled(plan, other.lower(x, w).compile())


def test_a_cut_matmul_is_one_all_reduce_of_its_bytes() -> None:
    """Weights pinned by rows, tokens whole: nothing else is left to the search."""

    def forward(x, w):
        return jnp.tanh(x @ w)

    x, w = jnp.ones((16, 64)), jnp.ones((64, 8))
    layout = autoshard.Layout((8,), ("model",))
    rows = layout("model", "None")
    whole = layout("None", "None")
    jitted = autoshard.jit(
        forward,
        cluster="cpu:8",
        mode="auto",
        mesh="model=8",
        in_shardings=(layout("None", "model"), rows),
        out_shardings=whole,
    )
    plan = jitted.plan(x, w)
    (one,) = plan.summary.collectives
    assert (one.kind, one.axes, one.bytes) == ("all-reduce", ("model",), 2 * 7 / 8 * (16 * 8 * 4))
    (found,) = hlo_collectives(jitted.lower(x, w).compile().as_text(), plan.mesh)
    assert found.moved_bytes == one.bytes
