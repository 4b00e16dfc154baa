"""A train step of experts without a capacity: its plan beside what the compiler makes of it.

    python bench/truth/experts_without_capacity.py [--clusters NAME ...]

Layers of 64 experts, six for a token, whose rows are sorted and multiplied by
``jax.lax.ragged_dot``. The step is planned and compiled twice: with autoshard's loop over parts of
the rows on each device, and with what JAX lowers the op to there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import optax
from rich.console import Console
from rich.table import Table

import autoshard
from autoshard.kernels import ragged_dot
from bench.common.corpus import machine

CLUSTERS = ("h100:8", "v5p:2x2x2")
LAYERS, EXPERTS, FEATURES, HIDDEN, WORDS = 4, 64, 2048, 1408, 32000
CHOSEN, BATCH, TOKENS = 6, 64, 2048


def layer(x: Any, p: Any) -> Any:
    """A gated feed-forward layer of experts."""
    batch, tokens, features = x.shape
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
    rows = ((wide * scale).astype(x.dtype) * p["norm"]).reshape(batch * tokens, features)
    shares = jax.nn.softmax((rows @ p["router"]).astype(jnp.float32))
    weights, chosen = jax.lax.top_k(shares, CHOSEN)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=EXPERTS)
    sent = rows[order // CHOSEN]
    gate = jax.nn.silu(jax.lax.ragged_dot(sent, p["gate"], sizes))
    made = jax.lax.ragged_dot(gate * jax.lax.ragged_dot(sent, p["up"], sizes), p["down"], sizes)
    made = made * weights.reshape(-1)[order][:, None].astype(made.dtype)
    return x + jnp.zeros_like(rows).at[order // CHOSEN].add(made).reshape(x.shape)


def loss(params: Any, ids: Any) -> Any:
    """Cross entropy of the next token."""
    body = jax.checkpoint(lambda x, p: (layer(x, p), None))
    x, _ = jax.lax.scan(body, params["embedding"][ids], params["layers"])
    logits = (x @ params["head"]).astype(jnp.float32)[:, :-1]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]))


def train_step() -> tuple[Any, Sequence[Any]]:
    """The step with AdamW, and its arguments' shapes."""

    def of(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    params = {
        "embedding": of(WORDS, FEATURES),
        "head": of(FEATURES, WORDS),
        "layers": {
            "norm": of(LAYERS, FEATURES),
            "router": of(LAYERS, FEATURES, EXPERTS),
            "up": of(LAYERS, EXPERTS, FEATURES, HIDDEN),
            "gate": of(LAYERS, EXPERTS, FEATURES, HIDDEN),
            "down": of(LAYERS, EXPERTS, HIDDEN, FEATURES),
        },
    }
    optimizer = optax.adamw(1e-4)

    def step(params: Any, state: Any, ids: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, ids)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    ids = jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32)
    return step, (params, jax.eval_shape(optimizer.init, params), ids)


def main() -> None:
    """Print a row for each cluster and form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", nargs="*", default=CLUSTERS)
    options = parser.parse_args()
    heads = ("cluster", "ragged_dot", "mesh", "step planned s", "compiled s", "planned GiB",
             "compiled GiB")  # fmt: skip
    table = Table(*heads)
    few = ragged_dot.FEW_ROWS
    for cluster in options.clusters:
        for form, most in (("by parts", few), ("JAX's", sys.maxsize)):
            ragged_dot.FEW_ROWS = most
            step, args = train_step()
            plan = autoshard.plan(step, *args, cluster=cluster, donate_argnums=(0, 1))
            found = plan.verify()
            seconds = found.estimate.step_seconds if found.estimate else float("nan")
            peak = (found.program.peak_bytes or 0) / 2**30
            row = (plan.step_seconds, seconds, plan.peak_bytes / 2**30, peak)
            table.add_row(cluster, form, str(plan.mesh), *(f"{each:.3f}" for each in row))
    Console(width=140).print(table)
    print(machine())


if __name__ == "__main__":
    main()
