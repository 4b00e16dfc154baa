"""Train a byte-level transformer in a pipeline of 2 and of 4 stages, on 8 virtual devices.

Plain JAX: one table embeds bytes and predicts them, gradients are clipped by their global norm,
Adam updates. Nothing in the model says what is where; the losses are compared step by step with
the step that is not split. With ``--scan`` the layers are one ``jax.lax.scan`` over stacked
weights, whose blocks are computed again for their gradients. With ``--chunks 2`` each stage has two
parts of the model, and the schedule is interleaved.

    python examples/pipeline.py --steps 20
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import autoshard
from byte_transformer import BYTES, standard_library

FEATURES, HEADS, LAYERS, TOKENS, BATCH = 64, 4, 8, 32, 16
CLUSTER = "cpu:8"
TOLERANCE = 1e-6
"""Largest allowed difference of two losses, relative."""

Batch = tuple[jax.Array, jax.Array]
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


def parameters(layers: int = LAYERS, *, stacked: bool = False) -> Any:
    """The same at every call; ``stacked``: the blocks in dim 0 of one."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(0, shape[0] ** -0.5, shape), jnp.float32)

    layer_weights = [
        {
            "mix": normal(FEATURES, 3 * FEATURES),
            "merge": normal(FEATURES, FEATURES),
            "widen": normal(FEATURES, 4 * FEATURES),
            "narrow": normal(4 * FEATURES, FEATURES),
        }
        for _ in range(layers)
    ]
    table = jnp.asarray(random.normal(0, 0.1, (BYTES, FEATURES)), jnp.float32)
    params = {"table": table, "position": normal(TOKENS, FEATURES), "blocks": layer_weights}
    if stacked:
        params["blocks"] = jax.tree.map(lambda *own: jnp.stack(own), *layer_weights)
    return params


def norm(x: jax.Array) -> jax.Array:
    """Without weights."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def block(weights: Any, x: jax.Array) -> jax.Array:
    """Causal attention and a feed-forward network."""
    split = (*x.shape[:2], HEADS, FEATURES // HEADS)
    query, key, value = (
        part.reshape(split) for part in jnp.split(norm(x) @ weights["mix"], 3, axis=-1)
    )
    scores = jnp.einsum("bshk,bthk->bhst", query, key) / np.sqrt(split[-1])
    causal = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
    shares = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhst,bthk->bshk", shares, value).reshape(x.shape)
    x = x + mixed @ weights["merge"]
    return x + jax.nn.gelu(norm(x) @ weights["widen"]) @ weights["narrow"]


def blocks(weights: Any, x: jax.Array) -> jax.Array:
    """All of them, one behind the other; a scan where their weights are stacked."""
    if isinstance(weights, list):
        for own in weights:
            x = block(own, x)
        return x
    again = jax.checkpoint(block)
    return jax.lax.scan(lambda x, own: (again(own, x), None), x, weights)[0]


def train_step(params: Any, state: Any, batch: Batch) -> tuple[jax.Array, Any, Any]:
    """``(parameters, optimizer state, (bytes, next bytes)) -> (loss, parameters, state)``."""

    def loss_of(params: Any) -> jax.Array:
        x = params["table"][batch[0]] + params["position"]
        x = blocks(params["blocks"], x)
        logits = norm(x) @ params["table"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return loss, optax.apply_updates(params, updates), state


def batches(steps: int) -> Iterator[Batch]:
    """Texts that start anywhere in Python's standard library; the same at every call."""
    text, random = standard_library(), np.random.default_rng(0)
    for _ in range(steps):
        starts = random.integers(0, len(text) - TOKENS, BATCH)
        texts = text[starts[:, None] + np.arange(TOKENS + 1)].astype(np.int32)
        yield jnp.asarray(texts[:, :-1]), jnp.asarray(texts[:, 1:])


def losses_of(
    step: Any, data: Sequence[Batch], layers: int = LAYERS, *, stacked: bool = False
) -> np.ndarray:
    """The loss of each step, float64 of shape ``(steps,)``."""
    params = parameters(layers, stacked=stacked)
    state = OPTIMIZER.init(params)
    losses: list[float] = []
    for batch in data:
        loss, params, state = step(params, state, batch)
        losses.append(float(loss))
    return np.array(losses)


def main() -> int:
    """Train with 2 and 4 stages.

    Returns:
        1 if a loss differs by more than ``TOLERANCE`` from that of the unsplit step.
    """
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=20, help="training steps (20)")
    options.add_argument("--layers", type=int, default=LAYERS, help="blocks of the model")
    options.add_argument("--scan", action="store_true", help="the blocks are one scan")
    options.add_argument("--chunks", type=int, default=1, help="parts of the model a stage (1)")
    given = options.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    data = list(batches(given.steps))
    expected = losses_of(jax.jit(train_step), data, given.layers, stacked=given.scan)
    worst = 0.0
    for stages in (2, 4):
        pipeline = autoshard.Pipeline(stages=stages, micro_batches=8, chunks=given.chunks)
        step = autoshard.jit(train_step, cluster=CLUSTER, pipeline=pipeline, donate_argnums=(0, 1))
        params = parameters(given.layers, stacked=given.scan)
        plan = step.plan(params, OPTIMIZER.init(params), data[0])
        assert plan.pipeline is not None
        print(plan.pipeline.gantt())
        losses = losses_of(step, data, given.layers, stacked=given.scan)
        difference = float(np.max(np.abs(losses - expected) / expected))
        print(
            f"{stages} stages: loss {losses[0]:.4f} -> {losses[-1]:.4f}, at most"
            f" {difference:.1e} from the unsplit step, relative\n"
        )
        worst = max(worst, difference)
    return int(not worst <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
