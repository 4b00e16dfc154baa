"""Small models of every kind that autoshard must keep exact, with only their main ops marked.

A model is written once for two arithmetics. With ``REALS`` it is an ordinary float32 model. With
``INTEGERS`` every number in it, forward, backward and in the optimizer, is an integer or a dyadic
fraction that float32 holds exactly, so the order of a sum cannot change a bit and a sharded run
must equal the unsharded one bit for bit.

The mesh of all models is ``dp=2, tp=4``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

import autoshard

Array = Any
Tree = Any

LAYOUT = autoshard.Layout((2, 4), ("dp", "tp"))


class Shard(Protocol):
    """``autoshard.shard``, or ``unmarked`` for the reference."""

    def __call__(
        self, fn: Callable[..., Any], *, in_strategy: Any = None, out_strategy: Any = None
    ) -> Callable[..., Any]: ...


def unmarked(
    fn: Callable[..., Any], *, in_strategy: Any = None, out_strategy: Any = None
) -> Callable[..., Any]:
    """``autoshard.shard`` without its effect."""
    del in_strategy, out_strategy
    return fn


def _wrap(x: Array) -> Array:
    """``x`` rounded to an integer, modulo 4: in [-2, 2], not linear, and exact."""
    x = jnp.round(x)
    return x - 4 * jnp.round(x / 4)


@jax.custom_vjp
def wrapped(x: Array) -> Array:
    """An activation that keeps values and gradients small integers.

    The backward rule wraps the cotangent as well. It is not the derivative, and need not be: what
    counts is that it is a program, the same for the sharded and the unsharded run.
    """
    return _wrap(x)


wrapped.defvjp(lambda x: (_wrap(x), None), lambda _, cotangent: (_wrap(cotangent),))


@dataclass(frozen=True)
class Arithmetic:
    """The numbers that a model computes with."""

    name: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
    """Parameters and inputs, float32."""
    activation: Callable[[Array], Array]
    attention_weights: Callable[[Array], Array]
    """From scores ``(..., queries, keys)`` to weights of the same shape."""
    optimizer: optax.GradientTransformation
    tolerance: float
    """Allowed difference, relative to the tensor's largest absolute entry; 0 is bit for bit."""


INTEGERS = Arithmetic(
    name="integers",
    draw=lambda random, shape: random.integers(-1, 2, shape).astype(np.float32),
    activation=wrapped,
    attention_weights=wrapped,
    optimizer=optax.sgd(0.5, momentum=0.5),
    tolerance=0.0,
)

REALS = Arithmetic(
    name="reals",
    draw=lambda random, shape: (
        random.standard_normal(shape) / np.sqrt(shape[-2] if len(shape) > 1 else 1)
    ).astype(np.float32),
    activation=jnp.tanh,
    attention_weights=lambda scores: jax.nn.softmax(scores, axis=-1),
    optimizer=optax.adamw(1e-2),
    tolerance=1e-5,
)


@dataclass(frozen=True, eq=False)
class Model:
    """A model: its parameters, a batch, and its output before the loss."""

    name: str
    parameters: dict[str, tuple[int, ...]]
    """Shape of each parameter."""
    inputs: tuple[int, ...]
    """Shape of the batch; dim 0 is the batch."""
    apply: Callable[[Shard, Arithmetic, Tree, Array], Array]
    vocabulary: int = 0
    """If not 0, the batch holds int32 ids below it."""

    def init(self, arithmetic: Arithmetic, random: np.random.Generator) -> Tree:
        return {n: arithmetic.draw(random, shape) for n, shape in self.parameters.items()}

    def batch(self, arithmetic: Arithmetic, random: np.random.Generator) -> np.ndarray:
        if self.vocabulary:
            return random.integers(0, self.vocabulary, self.inputs).astype(np.int32)
        return arithmetic.draw(random, self.inputs)

    def forward(self, shard: Shard, arithmetic: Arithmetic) -> Callable[[Tree, Array], Array]:
        """``(parameters, batch) -> outputs``."""
        return partial(self.apply, shard, arithmetic)

    def step(self, shard: Shard, arithmetic: Arithmetic) -> Callable[[Tree, Tree, Array], Tree]:
        """``(parameters, optimizer state, batch) -> (loss, gradients, parameters, state)``.

        The loss pulls every output towards 1.
        """
        apply = self.forward(shard, arithmetic)

        def loss_of(parameters: Tree, batch: Array) -> Array:
            outputs = apply(parameters, batch)
            return jnp.sum(jnp.square(outputs - 1)) / 2

        def train_step(parameters: Tree, state: Tree, batch: Array) -> Tree:
            loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
            updates, state = arithmetic.optimizer.update(gradients, state, parameters)
            return loss, gradients, optax.apply_updates(parameters, updates), state

        return train_step


def mlp(shard: Shard, arithmetic: Arithmetic, p: Tree, x: Array) -> Array:
    """Two layers, cut as in Megatron: columns, then rows. The biases are left to propagation."""
    columns = shard(jnp.matmul, in_strategy=(LAYOUT("dp", "None"), LAYOUT("None", "tp")))
    rows = shard(jnp.matmul, in_strategy=(LAYOUT("dp", "tp"), LAYOUT("tp", "None")))
    hidden = arithmetic.activation(columns(x, p["w1"]) + p["b1"])
    return arithmetic.activation(rows(hidden, p["w2"]) + p["b2"])


def convnet(shard: Shard, arithmetic: Arithmetic, p: Tree, x: Array) -> Array:
    """Two convolutions with channels cut, a max pool (select-and-scatter backward), a matmul."""

    def convolve(x: Array, kernel: Array) -> Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    images = LAYOUT("dp", "None", "None", "None")
    first = shard(convolve, in_strategy=(images, LAYOUT("None", "None", "None", "tp")))
    second = shard(
        convolve,
        in_strategy=(LAYOUT("dp", "None", "None", "tp"), LAYOUT("None", "None", "tp", "None")),
    )
    classify = shard(jnp.matmul, in_strategy=(LAYOUT("dp", "None"), LAYOUT("None", "tp")))
    x = arithmetic.activation(first(x, p["k1"]) + p["b1"])
    x = arithmetic.activation(second(x, p["k2"]) + p["b2"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return arithmetic.activation(classify(x.reshape(x.shape[0], -1), p["w"]))


def attention_layer(shard: Shard, arithmetic: Arithmetic, p: Tree, x: Array) -> Array:
    """One residual attention layer of shape ``(batch, tokens, features)``, heads cut by tp."""
    tokens = LAYOUT("dp", "None", "None")
    project = shard(
        partial(jnp.einsum, "bsd,dhk->bshk"), in_strategy=(tokens, LAYOUT("None", "tp", "None"))
    )
    merge = shard(
        partial(jnp.einsum, "bshk,hkd->bsd"),
        in_strategy=(LAYOUT("dp", "None", "tp", "None"), LAYOUT("tp", "None", "None")),
    )
    query, key, value = (project(x, p[name]) for name in ("wq", "wk", "wv"))
    scores = jnp.einsum("bshk,bthk->bhst", query, key) / 4
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jnp.where(causal, scores, -1024.0)
    mixed = jnp.einsum("bhst,bthk->bshk", arithmetic.attention_weights(scores), value)
    return arithmetic.activation(x + merge(arithmetic.activation(mixed), p["wo"]))


def attention_unrolled(shard: Shard, arithmetic: Arithmetic, p: Tree, x: Array) -> Array:
    """Three attention layers, one after the other."""
    for layer in range(3):
        x = attention_layer(shard, arithmetic, jax.tree.map(lambda w, i=layer: w[i], p), x)
    return x


def attention_scanned(shard: Shard, arithmetic: Arithmetic, p: Tree, x: Array) -> Array:
    """The same three layers as one ``lax.scan``."""
    return jax.lax.scan(lambda x, w: (attention_layer(shard, arithmetic, w, x), None), x, p)[0]


def embedding(shard: Shard, arithmetic: Arithmetic, p: Tree, ids: Array) -> Array:
    """A lookup in a table whose rows are cut, then a matmul with that table transposed."""
    rows = LAYOUT("tp", "None")
    look_up = shard(partial(jnp.take, axis=0), in_strategy=(rows, LAYOUT("dp", "None")))
    unembed = shard(
        partial(jnp.einsum, "vd,bsd->bsv"), in_strategy=(rows, LAYOUT("dp", "None", "None"))
    )
    x = arithmetic.activation(look_up(p["table"], ids) + p["position"])
    return arithmetic.activation(unembed(p["table"], x))


def mixture_of_experts(shard: Shard, arithmetic: Arithmetic, p: Tree, x: Array) -> Array:
    """Top-1 routing with a capacity, tokens sent to experts and back by einsum."""
    tokens, experts = x.shape[0], p["w1"].shape[0]
    capacity = 2 * tokens // experts
    by_expert = LAYOUT("tp", "None", "None")
    apply_expert = shard(partial(jnp.einsum, "ecd,edf->ecf"), in_strategy=(by_expert, by_expert))
    route = shard(jnp.matmul, in_strategy=(LAYOUT("dp", "None"), LAYOUT("None", "None")))

    logits = arithmetic.activation(route(x, p["router"]))
    chosen = jax.nn.one_hot(jnp.argmax(logits, axis=-1), experts, dtype=x.dtype)
    place = (jnp.cumsum(chosen, axis=0) * chosen).astype(jnp.int32) - 1
    dispatch = chosen[..., None] * jax.nn.one_hot(place, capacity, dtype=x.dtype)
    sent = jnp.einsum("td,tec->ecd", x, dispatch)
    hidden = arithmetic.activation(apply_expert(sent, p["w1"]))
    answered = arithmetic.activation(apply_expert(hidden, p["w2"]))
    gate = jnp.sum(logits * chosen, axis=-1)
    return arithmetic.activation(jnp.einsum("ecd,tec->td", answered, dispatch) * gate[:, None])


def recurrent(shard: Shard, arithmetic: Arithmetic, p: Tree, x: Array) -> Array:
    """An RNN over dim 1 by ``lax.scan``; its state is cut in both dims."""
    read = shard(jnp.matmul, in_strategy=(LAYOUT("dp", "None"), LAYOUT("None", "tp")))
    remember = shard(jnp.matmul, in_strategy=(LAYOUT("dp", "tp"), LAYOUT("tp", "None")))

    def advance(state: Array, x: Array) -> tuple[Array, Array]:
        state = arithmetic.activation(read(x, p["u"]) + remember(state, p["w"]) + p["b"])
        return state, state

    start = jnp.zeros((x.shape[0], p["w"].shape[0]), x.dtype)
    return jnp.swapaxes(jax.lax.scan(advance, start, jnp.swapaxes(x, 0, 1))[1], 0, 1)


_ATTENTION = {"wq": (3, 32, 4, 8), "wk": (3, 32, 4, 8), "wv": (3, 32, 4, 8), "wo": (3, 4, 8, 32)}

MODELS = (
    Model("mlp", {"w1": (16, 64), "b1": (64,), "w2": (64, 32), "b2": (32,)}, (32, 16), mlp),
    Model(
        "convnet",
        {"k1": (3, 3, 4, 8), "b1": (8,), "k2": (3, 3, 8, 8), "b2": (8,), "w": (128, 16)},
        (8, 8, 8, 4),
        convnet,
    ),
    Model("attention_unrolled", _ATTENTION, (4, 16, 32), attention_unrolled),
    Model("attention_scanned", _ATTENTION, (4, 16, 32), attention_scanned),
    Model("embedding", {"table": (64, 32), "position": (16, 32)}, (8, 16), embedding, 64),
    Model(
        "mixture_of_experts",
        {"router": (16, 8), "w1": (8, 16, 32), "w2": (8, 32, 16)},
        (64, 16),
        mixture_of_experts,
    ),
    Model("recurrent", {"u": (16, 32), "w": (32, 32), "b": (32,)}, (16, 8, 16), recurrent),
)
