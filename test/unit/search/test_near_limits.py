"""A limit that leaves room for the fastest plan is enough for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.planned.summary import PlanSummary
from bench.programs.llama import LLAMA2, train_step


def planner(traced: Any, cluster: str) -> Callable[[str], PlanSummary]:
    """The search of a traced step within a limit of memory."""
    text = traced.lower(lowering_platforms=("tpu",)).as_text().encode()

    def planned(limit: str) -> PlanSummary:
        module = parse_bytes(text, new_context(), "step")
        options = RecursiveProgramming(memory_limit=limit)
        return search_module(module, Cluster.of(cluster), options).summary

    return planned


def test_the_last_steps_of_a_search_may_make_a_plan_fit() -> None:
    """Plans of its first steps need more than the limit, of which the last one needs 99%."""
    config = dataclasses.replace(LLAMA2["70B"], layers=20, batch=16, tokens=2048)
    step, arguments = train_step(config)
    traced = jax.jit(step, donate_argnums=(0, 1)).trace(*arguments)
    planned = planner(traced, "v5p:4x4x4")

    free = planned("1000TiB")
    within = planned(str(int(1.01 * free.peak_bytes_per_device)))
    assert within.step_seconds == free.step_seconds


def test_prices_of_memory_cover_what_is_gathered_and_made() -> None:
    """Sums that are not scattered yet, and what is gathered beside the product before, take most
    of the memory of this step, of which 60% are enough."""

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((jax.nn.gelu(x @ params[0]) @ params[1]) ** 2)

    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    params = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((8192, 32768), (32768, 8192))]
    x = jax.ShapeDtypeStruct((16384, 8192), jnp.bfloat16)
    traced = jax.jit(step, donate_argnums=0).trace(params, x)
    planned = planner(traced, "v5e:4x4")

    free = planned("1000TiB")
    for share, slower in ((0.8, 1.1), (0.6, 1.4)):
        within = planned(str(int(share * free.peak_bytes_per_device)))
        assert within.step_seconds <= slower * free.step_seconds
