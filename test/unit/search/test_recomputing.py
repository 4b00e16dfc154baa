"""Searches whose plans fit once values are computed again or sent to the host: what is compared,
and what is said of plans that do not fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.planned.given_plan import Costed, cost_of_module
from autoshard.search import automatic


def type_of(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layers_step(weights: Any, x: Any) -> Any:
    """Within little memory the search gathers weights again in the backward half."""

    def loss(weights: Any) -> Any:
        h = x
        for up, down in weights:
            h = jnp.tanh(h @ up) @ down
        return jnp.sum(h * h)

    return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))


def planned_layers(layers: int, batch: int, **options: Any) -> autoshard.Plan:
    weights = [(type_of(512, 2048), type_of(2048, 512))] * layers
    return autoshard.plan(layers_step, weights, type_of(batch, 512), donate_argnums=0, **options)


def test_seconds_of_computing_again_are_by_one_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[float, float]] = []
    recomputed_module = automatic.recomputed_module

    def compared(module: Any, cluster: Any, options: Any, costed: Costed) -> Any:
        written = cost_of_module(module, cluster).plan
        steps.append((costed.plan.step_seconds, written.step_seconds))
        return recomputed_module(module, cluster, options, costed)

    monkeypatch.setattr(automatic, "recomputed_module", compared)
    plan = planned_layers(1, 16384, cluster="h100:8", memory_limit="58MiB", recompute="auto")
    ((searched, written),) = steps
    assert searched != pytest.approx(written, rel=1e-4)
    assert plan.summary is not None
    assert plan.summary.recompute_seconds == pytest.approx(plan.step_seconds - written, rel=1e-6)
