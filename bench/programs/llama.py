"""Llama-2 train steps: forward, backward and AdamW, from shapes alone.

    python bench/programs/llama.py 70B [--layers 80] [--scan] [--fused] [-o FILE]

Written in plain JAX, so that the program is what the model is and nothing else. Sizes are those of
Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models", and of the published
configurations. Matmuls run in bfloat16; norms, softmax and loss in float32.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


@dataclass(frozen=True)
class Config:
    """Sizes of a model and of one step."""

    features: int
    hidden: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int = 32_000
    batch: int = 64
    tokens: int = 4096
    parameter_dtype: str = "float32"
    """``float32`` or ``bfloat16``; the optimizer's state has it as well."""
    scan: bool = False
    """One ``lax.scan`` over stacked layers instead of every layer on its own."""
    fused: bool = False
    """One matrix for query, key and value, and one for gate and up: fewer and larger ops."""
    remat: bool = False
    """Keep only the inputs of the layers for the backward pass."""


LLAMA2 = {
    "7B": Config(features=4096, hidden=11008, heads=32, kv_heads=32, layers=32),
    "13B": Config(features=5120, hidden=13824, heads=40, kv_heads=40, layers=40),
    "70B": Config(features=8192, hidden=28672, heads=64, kv_heads=8, layers=80),
}

Parameters = dict[str, Any]


def parameters(config: Config) -> Parameters:
    """Shapes of the parameters; layers are a list, or stacked in front with ``scan``."""
    size, hidden = config.features, config.hidden
    kv = size // config.heads * config.kv_heads
    layer = {"attention_norm": (size,), "wo": (size, size), "feed_norm": (size,)}
    if config.fused:
        layer |= {"wqkv": (size, size + 2 * kv), "w_gate_up": (size, 2, hidden)}
    else:
        layer |= {"wq": (size, size), "wk": (size, kv), "wv": (size, kv)}
        layer |= {"w_gate": (size, hidden), "w_up": (size, hidden)}
    layer["w_down"] = (hidden, size)

    def struct(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(config.parameter_dtype))

    layers: Any
    if config.scan:
        layers = {name: struct((config.layers, *shape)) for name, shape in layer.items()}
    else:
        layers = [{n: struct(shape) for n, shape in layer.items()} for _ in range(config.layers)]
    return {
        "embedding": struct((config.vocabulary, size)),
        "layers": layers,
        "norm": struct((size,)),
        "head": struct((size, config.vocabulary)),
    }


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """``x`` over the root of its mean square, times ``gain``."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-5)
    return (wide * scale).astype(x.dtype) * gain.astype(x.dtype)


class Positions(NamedTuple):
    """What every layer needs to know of positions; made once a step."""

    cosine: jax.Array
    sine: jax.Array
    """``(tokens, 1, features of a head / 2)``."""
    causal: jax.Array
    """``(tokens, tokens)``: 0 where a query may look, else very low."""


def positions(config: Config) -> Positions:
    """Angles of the rotary embedding and the causal mask."""
    half = config.features // config.heads // 2
    frequency = 10_000.0 ** (-np.arange(half, dtype=np.float32) / half)
    at = jnp.arange(config.tokens, dtype=jnp.float32)
    angle = at[:, None, None] * frequency
    cosine, sine = (f(angle).astype(jnp.bfloat16) for f in (jnp.cos, jnp.sin))
    return Positions(cosine, sine, jnp.where(at[:, None] >= at, 0.0, -1e30))


def rotate(x: jax.Array, at: Positions) -> jax.Array:
    """Rotary position embedding of ``(batch, tokens, heads, features)``."""
    left, right = jnp.split(x, 2, axis=-1)
    turned = left * at.cosine - right * at.sine, right * at.cosine + left * at.sine
    return jnp.concatenate(turned, axis=-1)


def attention(config: Config, p: Parameters, x: jax.Array, at: Positions) -> jax.Array:
    """Causal attention in which groups of heads share a key and a value."""
    batch, tokens, _ = x.shape
    groups = config.heads // config.kv_heads
    if config.fused:
        kv = config.features // groups
        ends = (config.features, config.features + kv)
        query, key, value = jnp.split(x @ p["wqkv"], ends, axis=-1)
    else:
        query, key, value = x @ p["wq"], x @ p["wk"], x @ p["wv"]
    query = rotate(query.reshape(batch, tokens, config.heads, -1), at)
    key = rotate(key.reshape(batch, tokens, config.kv_heads, -1), at)
    value = value.reshape(batch, tokens, config.kv_heads, -1)
    query = query.reshape(batch, tokens, config.kv_heads, groups, -1)
    scores = jnp.einsum("bskgd,btkd->bkgst", query, key, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5 + at.causal
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bkgst,btkd->bskgd", weights, value)
    return mixed.reshape(batch, tokens, -1) @ p["wo"]


def layer(config: Config, p: Parameters, x: jax.Array, at: Positions) -> jax.Array:
    """One transformer layer."""
    p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
    x = x + attention(config, p, rms_norm(x, p["attention_norm"]), at)
    y = rms_norm(x, p["feed_norm"])
    if config.fused:
        gate, up = jnp.unstack(jnp.einsum("bsf,fgh->bsgh", y, p["w_gate_up"]), axis=2)
    else:
        gate, up = y @ p["w_gate"], y @ p["w_up"]
    return x + (jax.nn.silu(gate) * up) @ p["w_down"]


def loss(config: Config, p: Parameters, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross-entropy of the targets."""
    x = jnp.take(p["embedding"].astype(jnp.bfloat16), tokens, axis=0)
    at = positions(config)

    def body(x: jax.Array, weights: Parameters) -> tuple[jax.Array, None]:
        return layer(config, weights, x, at), None

    step = jax.checkpoint(body) if config.remat else body
    if config.scan:
        x, _ = jax.lax.scan(step, x, p["layers"])
    else:
        for weights in p["layers"]:
            x, _ = step(x, weights)
    x = rms_norm(x, p["norm"].astype(jnp.bfloat16))
    logits = (x @ p["head"].astype(jnp.bfloat16)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


def train_step(config: Config) -> tuple[Any, tuple[Any, ...]]:
    """The step, and the shapes of its arguments: parameters, optimizer state, tokens, targets."""
    optimizer = optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)

    def step(p: Any, state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(lambda p: loss(config, p, tokens, targets))(p)
        updates, state = optimizer.update(gradients, state, p)
        return optax.apply_updates(p, updates), state, value

    shapes = parameters(config)
    batch = jax.ShapeDtypeStruct((config.batch, config.tokens), jnp.int32)
    return step, (shapes, jax.eval_shape(optimizer.init, shapes), batch, batch)


ROLES = ("params", "opt_state", "batch", "batch")
"""Roles of the arguments of ``train_step``."""


def main() -> None:
    from lowered import Command, lower  # beside this file, which is what Python sees of a script

    command = Command.read(__doc__, LLAMA2)
    config = dataclasses.replace(LLAMA2[command.model], **command.changes)
    step, arguments = train_step(config)
    command.finish(lower(step, ROLES, *arguments), str(config))


if __name__ == "__main__":
    main()
