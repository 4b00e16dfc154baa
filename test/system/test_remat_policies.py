"""Remat policies that keep values of the forward half on the host are planned as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from plan_cases import WHOLE_PRODUCTS

import autoshard

LAYERS, BATCH, WIDTH = 8, 512, 256
policies = jax.checkpoint_policies
OFFLOAD = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["hidden"],
    offload_src="device",
    offload_dst="pinned_host",
)
SAVE = policies.save_only_these_names("hidden")
STACK_BYTES = LAYERS * BATCH * WIDTH * 4


def gradient(policy: Any) -> Callable[..., Any]:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        hidden = checkpoint_name(jnp.sin(x @ w), "hidden")
        return jnp.sin(hidden @ w), None

    def loss(weights: Any, x: Any) -> Any:
        body = jax.checkpoint(layer, policy=policy, prevent_cse=False)
        return jnp.sum(jax.lax.scan(body, x, weights)[0])

    return jax.grad(loss)


def planned(policy: Any, **options: Any) -> autoshard.Plan:
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    return autoshard.plan(gradient(policy), weights, x, **options)


def test_an_offloaded_stack_takes_the_memory_of_the_host() -> None:
    offloaded, saved = (
        planned(
            policy,
            cluster="v5e:2x2",
            # What is saved in float32 would be converted for a loop of matmuls.
            compiler=WHOLE_PRODUCTS,
            in_shardings=(None, jax.P("d")),
            mesh="d=4",
        )
        for policy in (OFFLOAD, SAVE)
    )
    assert offloaded.summary is not None
    assert saved.summary is not None
    on_device = STACK_BYTES / 4
    assert offloaded.summary.host_bytes_per_device == on_device
    assert offloaded.summary.host_transfer_bytes == 2 * on_device
    freed = saved.summary.peak_bytes_per_device - offloaded.summary.peak_bytes_per_device
    in_flight = on_device / LAYERS
    assert freed == on_device - in_flight


def test_the_link_to_the_host_is_used_beside_the_ops_of_a_loop() -> None:
    summary = planned(OFFLOAD, cluster="v5e:2x2").summary
    assert summary is not None
    assert 0 <= summary.host_exposed_seconds < summary.host_transfer_seconds
    on_device = summary.compute_seconds + summary.communication_seconds
    assert summary.step_seconds == pytest.approx(on_device + summary.host_exposed_seconds)


def test_what_is_on_the_host_is_not_computed_again() -> None:
    limit = int(planned(OFFLOAD, cluster="v5e:2x2").peak_bytes * 0.9)
    plan = planned(OFFLOAD, cluster="v5e:2x2", recompute="auto", memory_limit=limit)
    assert plan.summary is not None
    names = [each.name for each in plan.summary.recomputed]
    assert not any(name.startswith("annotate_device_placement") for name in names)
    assert plan.summary.host_bytes_per_device > 0
