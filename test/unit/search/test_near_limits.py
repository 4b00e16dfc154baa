"""A limit that leaves room for the fastest plan is enough for it."""

from __future__ import annotations

import dataclasses

import jax

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.planned.summary import PlanSummary
from bench.programs.llama import LLAMA2, train_step


def test_the_last_steps_of_a_search_may_make_a_plan_fit() -> None:
    """Plans of its first steps need more than the limit, of which the last one needs 99%."""
    config = dataclasses.replace(LLAMA2["70B"], layers=20, batch=16, tokens=2048)
    step, arguments = train_step(config)
    traced = jax.jit(step, donate_argnums=(0, 1)).trace(*arguments)
    text = traced.lower(lowering_platforms=("tpu",)).as_text().encode()

    def planned(limit: str) -> PlanSummary:
        module = parse_bytes(text, new_context(), "step")
        options = RecursiveProgramming(memory_limit=limit)
        return search_module(module, Cluster.of("v5p:4x4x4"), options).summary

    free = planned("1000TiB")
    within = planned(str(int(1.01 * free.peak_bytes_per_device)))
    assert within.step_seconds == free.step_seconds
