"""Parts of a Llama-7B train step at its sizes, cheap to compile, for ``bench/truth/fidelity.py``.

Every part has its loss, its backward pass and Adam, so that parameters, optimizer state and
gradients are there as in the whole step; ``remat`` keeps only what enters the part.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.programs.llama import LLAMA2, Config, Parameters, attention, positions, rms_norm
from bench.programs.storage import Case, spec, train

BATCH, TOKENS = 64, 2048
CONFIG = dataclasses.replace(LLAMA2["7B"], tokens=TOKENS)

Part = Callable[[Parameters, Any], Any]


def feed(p: Parameters, x: Any) -> Any:
    """The gated feed-forward layer."""
    p = jax.tree.map(lambda w: w.astype(x.dtype), p)
    y = rms_norm(x, p["feed_norm"])
    return x + (jax.nn.silu(y @ p["w_gate"]) * (y @ p["w_up"])) @ p["w_down"]


def attend(config: Config, p: Parameters, x: Any) -> Any:
    """The attention layer."""
    p = jax.tree.map(lambda w: w.astype(x.dtype), p)
    return x + attention(config, p, rms_norm(x, p["attention_norm"]), positions(config))


def _square(part: Part, layers: int, remat: bool, params: Any, x: Any, y: Any) -> Any:
    step = jax.checkpoint(part) if remat else part
    x = x.astype(jnp.bfloat16)
    for layer in range(layers):
        x = step(params[layer], x)
    return jnp.mean((x.astype(jnp.float32) - y) ** 2)


def _head(remat: bool, params: Any, x: Any, targets: Any) -> Any:
    def loss(params: Any, x: Any, targets: Any) -> Any:
        x = rms_norm(x.astype(jnp.bfloat16), params["norm"])
        logits = (x @ params["head"].astype(x.dtype)).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets)

    return jnp.mean((jax.checkpoint(loss) if remat else loss)(params, x, targets))


def feed_forward(remat: bool, layers: int = 1) -> Case:
    """``layers`` gated feed-forward layers."""
    size, hidden = CONFIG.features, CONFIG.hidden
    layer = {"feed_norm": spec(size), "w_gate": spec(size, hidden), "w_up": spec(size, hidden)}
    layer["w_down"] = spec(hidden, size)
    x = spec(BATCH, TOKENS, size)
    loss = functools.partial(_square, feed, layers, remat)
    return train(loss, [layer] * layers, x, x)


def attention_layer(remat: bool) -> Case:
    """One attention layer."""
    size = CONFIG.features
    layer = {name: spec(size, size) for name in ("wq", "wk", "wv", "wo")}
    layer["attention_norm"] = spec(size)
    x = spec(BATCH, TOKENS, size)
    part = functools.partial(attend, CONFIG)
    return train(functools.partial(_square, part, 1, remat), [layer], x, x)


def output(remat: bool) -> Case:
    """The last norm, the logits and their loss."""
    size = CONFIG.features
    params = {"norm": spec(size), "head": spec(size, CONFIG.vocabulary)}
    x, targets = spec(BATCH, TOKENS, size), spec(BATCH, TOKENS, dtype=jnp.int32)
    return train(functools.partial(_head, remat), params, x, targets)


PARTS: dict[str, Callable[[bool], Case]] = {
    "feed-forward": feed_forward,
    "feed-forward, 2 layers": functools.partial(feed_forward, layers=2),
    "attention": attention_layer,
    "output": output,
}
