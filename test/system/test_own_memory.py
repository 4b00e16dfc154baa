"""What a plan needs is enough memory for it: no slower plan is taken, and none is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import autoshard

LAYERS, HEAD, TOKENS, VOCABULARY = 2, 64, 512, 32000


def train_step(width: int, batch: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A decoder with a tied embedding and Adam, and its arguments' types."""

    def normed(x: Any, scale: Any) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def block(x: Any, layer: Any) -> Any:
        h = normed(x, layer["norm"])
        heads = (*x.shape[:2], width // HEAD, HEAD)
        q, k, v = ((h @ layer[name]).reshape(heads) for name in "qkv")
        scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 8.0, -1)
        mixed = jnp.einsum("bhts,bshd->bthd", scores, v).reshape(x.shape)
        x = x + mixed @ layer["o"]
        return x + jax.nn.gelu(normed(x, layer["norm2"]) @ layer["up"]) @ layer["down"]

    def loss(parameters: Any, tokens: Any) -> Any:
        x = parameters["embedding"][tokens]
        for layer in parameters["layers"]:
            x = block(x, layer)
        logits = x @ parameters["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    optimizer = optax.adam(1e-3)

    def step(parameters: Any, state: Any, tokens: Any) -> Any:
        gradients = jax.grad(loss)(parameters, tokens)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    def of(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, "float32")

    layer = {
        **{name: of(width, width) for name in "qkvo"},
        **{name: of(width) for name in ("norm", "norm2")},
        "up": of(width, 4 * width),
        "down": of(4 * width, width),
    }
    parameters = {"embedding": of(VOCABULARY, width), "layers": [layer] * LAYERS}
    tokens = jax.ShapeDtypeStruct((batch, TOKENS), "int32")
    return step, (parameters, jax.eval_shape(optimizer.init, parameters), tokens)


@pytest.mark.parametrize(("width", "batch"), [(1024, 64), (4096, 16), (4096, 64)])
def test_a_plan_fits_into_what_it_needs(width: int, batch: int):
    step, arguments = train_step(width, batch)

    def planned(limit: str) -> autoshard.Plan:
        return autoshard.plan(
            step, *arguments, cluster="v5e:4x4", memory_limit=limit, batch_argnums=2
        )

    free = planned("1000TiB")
    within = planned(str(int(free.peak_bytes * 1.0005)))
    assert within.step_seconds <= free.step_seconds * 1.001
