"""A checkpoint that is undone and decided anew gives what the program's own one gives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import autoshard

LAYERS, ROWS, WIDTH, HIDDEN = 2, 64, 16, 64
policies = jax.checkpoint_policies
POLICIES = {
    "full": None,
    "dots": policies.dots_saveable,
    "offload": policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["out"],
        names_which_can_be_offloaded=["up"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def layer(x: Any, w: Any) -> Any:
    """Attention without weights and a feed-forward, exact on small integers."""
    scores = jnp.einsum("bqd,bkd->bqk", x, x)
    mixed = jnp.einsum("bqk,bkd->bqd", (scores > 0).astype(x.dtype), x)
    hidden = jnp.maximum(checkpoint_name(mixed @ w["up"], "up"), 0.0)
    return jnp.abs(checkpoint_name(hidden @ w["down"], "out")) % 8 + x


def step(policy: Any, scans: bool) -> Callable[..., Any]:
    body = jax.checkpoint(layer, policy=policy, prevent_cse=not scans)

    def loss(weights: Any, x: Any) -> Any:
        if scans:
            x, _ = jax.lax.scan(lambda x, w: (body(x, w), None), x, weights)
        else:
            for number in range(LAYERS):
                x = body(x, jax.tree.map(lambda w, n=number: w[n], weights))
        return (x * x).sum()

    return jax.value_and_grad(loss)


@functools.cache
def arguments() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    weights = {
        "up": draw.choice([-1, 0, 0, 0, 1], (LAYERS, WIDTH, HIDDEN)).astype(np.float32),
        "down": draw.choice([-1, 0, 0, 0, 1], (LAYERS, HIDDEN, WIDTH)).astype(np.float32),
    }
    return weights, draw.integers(-2, 3, (ROWS, 8, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("scans", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("name", POLICIES)
def test_replaced_kept_and_unsharded_steps_are_equal(name: str, scans: bool) -> None:
    fn = step(POLICIES[name], scans)
    expected = jax.jit(fn)(*arguments())
    for policy in ("keep", "replace"):
        result = autoshard.jit(fn, cluster="cpu:8", policy=policy, recompute="auto")(*arguments())
        jax.tree.map(np.testing.assert_array_equal, result, expected)


@pytest.mark.parametrize("scans", [False, True], ids=["unrolled", "scanned"])
def test_a_replaced_policy_computes_nothing_again_unless_memory_demands_it(scans: bool) -> None:
    plan = functools.partial(
        autoshard.plan,
        step(None, scans),
        *arguments(),
        cluster="cpu:8",
        compiler="xla-tpu-0.0.42",
        recompute="auto",
    )
    kept, loose = plan(policy="keep"), plan(policy="replace")
    assert loose.summary is not None
    assert loose.summary.recomputed == ()
    assert matmuls(loose) < matmuls(kept)
    limit = int(kept.peak_bytes + 0.5 * (loose.peak_bytes - kept.peak_bytes))
    assert plan(policy="replace", memory_limit=limit).peak_bytes <= limit


def matmuls(plan: autoshard.Plan) -> int:
    return sum(op.name == "dot_general" for op in plan.ops)
