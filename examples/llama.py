"""A Llama language model in which only matmuls are annotated.

The fourth case of MindSpore's guide to sharding propagation (``LlamaForCausalLM``): its layers
configure their matmuls, and the model around them configures nothing. The slice of the tokens, the
comparison with the padding and the product of the masks get ``(dp, 1)``.

    python examples/llama.py
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import autoshard

MESH = "dp=2,tp=4"
LAYOUT = autoshard.Layout((2, 4), ("dp", "tp"))
PADDING = 0
PINS = (None, PartitionSpec("dp"), PartitionSpec("dp"))
"""Parameters are left to propagation; tokens and masks come in cut by dp, as data does."""

_TOKENS = LAYOUT("dp", "None", "None")
columns = autoshard.shard(jnp.matmul, in_strategy=(_TOKENS, LAYOUT("None", "tp")))
rows = autoshard.shard(jnp.matmul, in_strategy=(LAYOUT("dp", "None", "tp"), LAYOUT("tp", "None")))
_HEADS = LAYOUT("dp", "None", "tp", "None")
bmm_qk = autoshard.shard(partial(jnp.einsum, "bshk,bthk->bhst"), in_strategy=(_HEADS, _HEADS))
bmm_qkv = autoshard.shard(
    partial(jnp.einsum, "bhst,bthk->bshk"),
    in_strategy=(LAYOUT("dp", "tp", "None", "None"), _HEADS),
)


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    vocabulary: int = 1024
    features: int = 32
    hidden: int = 64
    heads: int = 8
    kv_heads: int = 4
    layers: int = 2


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """``x`` over the root of its mean square, times ``gain``."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * gain


def rotate(x: jax.Array) -> jax.Array:
    """Rotary position embedding of ``(batch, tokens, heads, features)``."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
    cosine, sine = (jnp.asarray(f(angle), x.dtype)[:, None, :] for f in (np.cos, np.sin))
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate((left * cosine - right * sine, right * cosine + left * sine), axis=-1)


def attention(p: dict[str, jax.Array], config: Config, x: jax.Array) -> jax.Array:
    """Causal attention in which groups of heads share a key and a value."""
    batch, tokens, _ = x.shape
    query = rotate(columns(x, p["wq"]).reshape(batch, tokens, config.heads, -1))
    key = rotate(columns(x, p["wk"]).reshape(batch, tokens, config.kv_heads, -1))
    value = columns(x, p["wv"]).reshape(batch, tokens, config.kv_heads, -1)
    key, value = (jnp.repeat(y, config.heads // config.kv_heads, axis=2) for y in (key, value))
    scores = bmm_qk(query, key) * query.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return rows(bmm_qkv(weights, value).reshape(batch, tokens, -1), p["wo"])


def feed_forward(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """SwiGLU."""
    return rows(jax.nn.silu(columns(x, p["w1"])) * columns(x, p["w3"]), p["w2"])


def causal_lm_loss(
    p: dict[str, Any], input_ids: jax.Array, label_mask: jax.Array, *, config: Config
) -> jax.Array:
    """Mean cross-entropy of the next token, over what neither is padding nor masked.

    Args:
        p: Parameters, see ``parameters``.
        input_ids: ``(batch, tokens + 1)``.
        label_mask: ``(batch, tokens)``, 1 where a token counts.
        config: Sizes.
    """
    tokens = input_ids[:, :-1]
    counts = jnp.not_equal(tokens, PADDING).astype(jnp.float32) * label_mask
    x = jnp.take(p["embedding"], tokens, axis=0)
    for layer in p["layers"]:
        x = x + attention(layer, config, rms_norm(x, layer["attention_norm"]))
        x = x + feed_forward(layer, rms_norm(x, layer["feed_norm"]))
    logits = columns(rms_norm(x, p["norm"]), p["head"])
    labels = jax.nn.one_hot(input_ids[:, 1:], config.vocabulary, dtype=logits.dtype)
    losses = -jnp.sum(labels * jax.nn.log_softmax(logits, axis=-1), axis=-1)
    return jnp.sum(losses * counts) / jnp.sum(counts)


def parameters(config: Config) -> dict[str, Any]:
    """Random parameters."""
    size, hidden = config.features, config.hidden
    kv_size = size // config.heads * config.kv_heads
    shapes = {
        "wq": (size, size),
        "wk": (size, kv_size),
        "wv": (size, kv_size),
        "wo": (size, size),
        "w1": (size, hidden),
        "w3": (size, hidden),
        "w2": (hidden, size),
    }
    random = np.random.default_rng(0)

    def draw(shape: tuple[int, ...]) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape) / np.sqrt(shape[0]), jnp.float32)

    def layer() -> dict[str, jax.Array]:
        norms = {name: jnp.ones(size) for name in ("attention_norm", "feed_norm")}
        return norms | {name: draw(shape) for name, shape in shapes.items()}

    return {
        "embedding": draw((config.vocabulary, size)),
        "layers": [layer() for _ in range(config.layers)],
        "norm": jnp.ones(size),
        "head": draw((size, config.vocabulary)),
    }


def arguments(config: Config) -> tuple[Any, ...]:
    """Arguments of ``causal_lm_loss``: four texts of 16 tokens."""
    random = np.random.default_rng(1)
    ids = random.integers(0, config.vocabulary, (4, 17)).astype(np.int32)
    mask = random.integers(0, 2, (4, 16)).astype(np.float32)
    return parameters(config), jnp.asarray(ids), jnp.asarray(mask)


if __name__ == "__main__":
    from show import show

    small = Config()
    show(partial(causal_lm_loss, config=small), partial(arguments, small), MESH, PINS)
