"""After jax.checkpoint is undone, as much is computed as without it, and the same comes out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import autoshard
from autoshard.errors import AutoshardWarning
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.ir.compile import compile_module
from autoshard.rewrites.checkpoints.undo import Undone, undo_checkpoints

LAYERS, ROWS, WIDTH = 3, 4, 8
policies = jax.checkpoint_policies
OFFLOAD = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=["b"],
    names_which_can_be_offloaded=["a"],
    offload_src="device",
    offload_dst="pinned_host",
)
WEIGHTS = np.random.default_rng(0).integers(-1, 2, (LAYERS, 2, WIDTH, WIDTH)).astype(np.float32)
X = np.random.default_rng(1).integers(-2, 3, (ROWS, WIDTH)).astype(np.float32)


def layer(x: Any, w: Any) -> Any:
    """Exact on small integers."""
    h = checkpoint_name(x @ w[0], "a")
    h = jnp.where(h > 0, h, -2 * h)
    h = h - h.max(axis=-1, keepdims=True)
    return jnp.abs(checkpoint_name(h @ w[1], "b")) % 8 + x


def nested(x: Any, w: Any) -> Any:
    inner = jax.checkpoint(lambda x, w: jnp.abs(x @ w))
    return inner(inner(x, w[0]), w[1]) % 8 + x


def with_loop(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.abs(x @ w) % 8, None), x, w)[0] + x


def gradient(layer: Callable[..., Any], scans: bool, **scan: bool) -> Callable[..., Any]:
    def loss(weights: Any, x: Any) -> Any:
        if scans:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights, **scan)
        else:
            for w in weights:
                x = layer(x, w)
        return (x * x).sum()

    return jax.value_and_grad(loss)


def undone(fn: Callable[..., Any]) -> tuple[Undone, str, str]:
    """What was undone, the module before and after; both give the same."""
    text = jax.jit(fn).lower(WEIGHTS, X).as_text(debug_info=True).encode()
    module = parse_bytes(text, new_context())
    expected = compile_module(module).run(WEIGHTS, X)
    found = undo_checkpoints(module)
    results = compile_module(module).run(WEIGHTS, X)
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, value)
    return found, text.decode(), print_module(module).decode()


def matmuls(text: str) -> int:
    return len(re.findall(r"stablehlo\.dot_general", text))


@pytest.mark.parametrize("scans", [False, True])
@pytest.mark.parametrize("policy", [None, policies.dots_saveable, OFFLOAD])
def test_as_much_is_computed_as_without_checkpoint(policy: Any, scans: bool) -> None:
    checkpointed = gradient(jax.checkpoint(layer, policy=policy), scans)
    found, _, after = undone(checkpointed)
    _, _, without = undone(gradient(layer, scans))
    assert found.joined if not scans else found.read
    assert matmuls(after) == matmuls(without)
    assert after.count("stablehlo.maximum") == without.count("stablehlo.maximum")
    assert "optimization_barrier" not in after


def test_nested_checkpoints_are_undone_at_all_depths() -> None:
    found, before, after = undone(gradient(jax.checkpoint(nested), scans=False))
    assert found.joined
    assert matmuls(before) - matmuls(after) == 4 * LAYERS


def test_a_scan_from_the_last_layer_to_the_first_is_undone() -> None:
    fn = gradient(jax.checkpoint(layer), scans=True, reverse=True)
    assert undone(fn)[0].read


def test_a_program_without_checkpoint_stays_as_it_is() -> None:
    found, before, after = undone(gradient(layer, scans=True))
    assert found == Undone(0, 0, 0)
    assert before.count("func.call") == after.count("func.call") > 0


def test_a_loop_within_a_checkpoint_is_said_to_stay() -> None:
    with pytest.warns(AutoshardWarning, match=r"test_undo\.py:\d+.*a loop of this jax.checkpoint"):
        undone(gradient(jax.checkpoint(with_loop), scans=False))


def test_what_a_policy_sends_to_the_host_stays_on_the_device() -> None:
    weights = jax.ShapeDtypeStruct((LAYERS, 2, 256, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((512, 256), jnp.float32)
    fn = gradient(jax.checkpoint(layer, policy=OFFLOAD, prevent_cse=False), scans=True)
    kept, replaced = (
        autoshard.plan(fn, weights, x, cluster="v5e:2x2", policy=policy).summary
        for policy in ("keep", "replace")
    )
    assert kept is not None
    assert replaced is not None
    assert kept.host_transfer_bytes > 0
    assert replaced.host_transfer_bytes == 0
    assert replaced.step_seconds < kept.step_seconds


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(autoshard.PlanError, match="policy 'undo' is not known"):
        autoshard.plan(layer, X, WEIGHTS[0], cluster="cpu:8", policy="undo")  # type: ignore[arg-type]
