"""A Llama of flax's nnx as people train it: attention, norm and loss are Pallas kernels, layers
are scanned and recomputed. Planned, every kernel is cut, and it computes what one device computes.

The kernels run in interpret mode; the text is Python's own.
"""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from equivalence import assert_equal, shardy
from flax import nnx
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu import splash_attention as splash

import autoshard
from norm_kernel import pallas_norm, plain_norm

LAYERS, BATCH, LENGTH, HEADS, GROUPS, WIDTH = 2, 8, 128, 4, 2, 128
FEATURES, HIDDEN, WORDS = 128, 256, 256
LAYOUT = autoshard.Layout((8,), ("dp",))


@jax.custom_vjp
def norm(x: Any, scale: Any) -> Any:
    return pallas_norm(x, scale)


norm.defvjp(
    lambda x, scale: (pallas_norm(x, scale), (x, scale)),
    lambda kept, g: jax.vjp(plain_norm, *kept)[1](g),
)


def _loss_kernel(x: Any, head: Any, labels: Any, loss: Any) -> None:
    logits = x[...] @ head[...]
    words = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    picked = jnp.where(words == labels[...], logits, 0.0).sum(-1, keepdims=True)
    most = logits.max(-1, keepdims=True)
    loss[...] = most + jnp.log(jnp.exp(logits - most).sum(-1, keepdims=True)) - picked


def _gradient_kernel(x: Any, head: Any, labels: Any, g: Any, gradient: Any) -> None:
    logits = x[...] @ head[...]
    words = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    shares = jnp.exp(logits - logits.max(-1, keepdims=True))
    shares = shares / shares.sum(-1, keepdims=True)
    gradient[...] = (shares - jnp.where(words == labels[...], 1.0, 0.0)) * g[...]


def _on_sequences(kernel: Any, made: int, *operands: Any) -> Any:
    """A kernel for each sequence; the matrix of words is whole in all of them."""

    def spec(*shape: int) -> Any:
        if len(shape) == 2:
            return pl.BlockSpec(shape, lambda b: (0, 0))
        return pl.BlockSpec((None, *shape[1:]), lambda b: (b, 0, 0))

    shape = (*operands[0].shape[:2], made)
    return pl.pallas_call(
        kernel,
        grid=shape[:1],
        in_specs=[spec(*operand.shape) for operand in operands],
        out_specs=spec(*shape),
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
        interpret=True,
    )(*operands)


@jax.custom_vjp
def fused_loss(x: Any, head: Any, labels: Any) -> Any:
    """Cross entropy of each token, (batch, length, 1), without logits in memory."""
    return _on_sequences(_loss_kernel, 1, x, head, labels)


def _fused_loss_backward(kept: Any, g: Any) -> Any:
    x, head, labels = kept
    logits = _on_sequences(_gradient_kernel, head.shape[1], x, head, labels, g)
    return logits @ head.T, jnp.einsum("blf,blw->fw", x, logits), None


fused_loss.defvjp(lambda *given: (fused_loss(*given), given), _fused_loss_backward)


class Layer(nnx.Module):
    """Attention and a gated feed-forward layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        def linear(n: int, m: int) -> nnx.Linear:
            return nnx.Linear(n, m, use_bias=False, rngs=rngs)

        self.scales = nnx.Param(jnp.ones((2, FEATURES)))
        self.q, self.o = linear(FEATURES, HEADS * WIDTH), linear(HEADS * WIDTH, FEATURES)
        self.k, self.v = linear(FEATURES, GROUPS * WIDTH), linear(FEATURES, GROUPS * WIDTH)
        self.gate, self.up = linear(FEATURES, HIDDEN), linear(FEATURES, HIDDEN)
        self.down = linear(HIDDEN, FEATURES)

    def __call__(self, x: Any) -> Any:
        y = norm(x, self.scales[...][0])
        q, k, v = (
            it(y).reshape(*x.shape[:2], -1, WIDTH).swapaxes(1, 2) for it in (self.q, self.k, self.v)
        )
        mask = splash.MultiHeadMask([splash.CausalMask((LENGTH, LENGTH))] * HEADS)
        attend = jax.vmap(splash.make_splash_mha_single_device(mask, interpret=True))
        marked = autoshard.shard(attend, out_strategy=(LAYOUT("dp", "None", "None", "None"),))
        made = marked(q / WIDTH**0.5, k, v).swapaxes(1, 2).reshape(*x.shape[:2], -1)
        x = x + self.o(made)
        y = norm(x, self.scales[...][1])
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))


class Llama(nnx.Module):
    """Scanned layers between an embedding and a head."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(WORDS, FEATURES, rngs=rngs)
        self.head = nnx.Param(0.05 * jax.random.normal(rngs.params(), (FEATURES, WORDS)))
        self.layers = nnx.vmap(Layer)(rngs.split(LAYERS))

    def loss(self, ids: Any, *, is_recomputed: bool) -> Any:
        """Mean over tokens."""
        graph, state = nnx.split(self.layers)

        def layer(x: Any, state: Any) -> tuple[Any, None]:
            return nnx.merge(graph, state)(x), None

        layer = jax.checkpoint(layer) if is_recomputed else layer
        x, _ = jax.lax.scan(layer, self.embedding(ids[:, :-1]), state)
        return fused_loss(x, self.head[...], ids[:, 1:, None]).mean()


def training_step(is_recomputed: bool) -> Any:
    """One step of AdamW: loss, state, optimizer state."""
    graph, state = nnx.split(Llama(nnx.Rngs(0)))
    optimizer = optax.adamw(1e-2, eps=1e-4)  # not near zero: it divides by roots of sums

    def step(state: Any, moments: Any, ids: Any) -> Any:
        def loss(state: Any) -> Any:
            return nnx.merge(graph, state).loss(ids, is_recomputed=is_recomputed)

        value, gradients = jax.value_and_grad(loss)(state)
        updates, moments = optimizer.update(gradients, moments, state)
        return value, optax.apply_updates(state, updates), moments

    text = np.frombuffer(inspect.getsource(inspect).encode(), np.uint8)
    ids = text[: BATCH * (LENGTH + 1)].reshape(BATCH, -1).astype(np.int32)
    return step, (state, optimizer.init(state), ids)


@pytest.mark.parametrize(
    ("options", "use_shardy", "is_recomputed"),
    [
        ({"cluster": "cpu:8"}, True, True),
        ({"cluster": "cpu:8"}, False, False),
        ({"mesh": "dp=8", "mode": "semi_auto"}, True, True),
    ],
    ids=["auto-shardy-recomputed", "auto-gspmd-kept", "semi_auto-shardy-recomputed"],
)
@pytest.mark.filterwarnings("ignore::autoshard.PlanMismatchWarning")
def test_a_llama_of_kernels_equals_the_unsharded_one(
    options: dict[str, Any], use_shardy: bool, is_recomputed: bool
) -> None:
    step, given = training_step(is_recomputed)
    expected = jax.device_get(jax.jit(step)(*given))
    with shardy(use_shardy):
        planned = autoshard.jit(step, **options)
        assert_equal(jax.device_get(planned(*given)), expected, 2e-5)
    (axis,) = (axis.name for axis in planned.plan(*given).mesh.axes)
    strategies: dict[str, list[str]] = {}
    for op in planned.plan(*given).ops:
        strategies.setdefault(op.name, []).append(op.strategy or "")
    kernels = {"splash_mha_fwd_residuals", "_norm_kernel", "_loss_kernel", "_gradient_kernel"}
    assert kernels <= strategies.keys()
    cut = {name: [f"-> [{{{axis}}}" in it for it in strategies[name]] for name in kernels}
    if "cluster" in options:
        assert all(map(all, cut.values()))
    else:  # one of them is marked, and what is recomputed of it is not
        assert any(cut["splash_mha_fwd_residuals"])
