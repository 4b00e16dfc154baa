"""Steps of one model that run in turns: Llama's prefill and decode, PPO's rollout and update.

From shapes alone, beside ``llama.train_step``, with the parameters named alike.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.programs.llama import Config, Parameters, Positions, positions, rms_norm, rotate

Cache = dict[str, jax.Array]
struct = jax.ShapeDtypeStruct


def cache_of(config: Config, sequences: int) -> Cache:
    """Shapes of keys and values, ``(layers, sequences, tokens, heads, features of a head)``."""
    head = config.features // config.heads
    shape = (config.layers, sequences, config.tokens, config.kv_heads, head)
    return {name: struct(shape, jnp.bfloat16) for name in ("keys", "values")}


def _layer(
    config: Config,
    p: Parameters,
    x: jax.Array,
    at: Positions,
    cache: Cache,
    number: int,
    first: Any,
) -> tuple[jax.Array, Cache]:
    """One layer of tokens from ``first`` on, whose keys and values go into the cache."""
    p = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
    sequences, tokens, _ = x.shape
    y = rms_norm(x, p["attention_norm"])
    heads = config.kv_heads
    query = rotate((y @ p["wq"]).reshape(sequences, tokens, config.heads, -1), at)
    made = {
        "keys": rotate((y @ p["wk"]).reshape(sequences, tokens, heads, -1), at),
        "values": (y @ p["wv"]).reshape(sequences, tokens, heads, -1),
    }
    cache = {
        name: jax.lax.dynamic_update_slice(cache[name], new[None], (number, 0, first, 0, 0))
        for name, new in made.items()
    }
    query = query.reshape(sequences, tokens, heads, config.heads // heads, -1)
    keys, values = cache["keys"][number], cache["values"][number]
    scores = jnp.einsum("bskgd,btkd->bkgst", query, keys, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5 + at.causal
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bkgst,btkd->bskgd", weights, values)
    x = x + mixed.reshape(sequences, tokens, -1) @ p["wo"]
    y = rms_norm(x, p["feed_norm"])
    return x + (jax.nn.silu(y @ p["w_gate"]) * (y @ p["w_up"])) @ p["w_down"], cache


def _tokens(
    config: Config, params: Parameters, cache: Cache, tokens: jax.Array, at: Positions, first: Any
) -> tuple[Cache, jax.Array]:
    """The cache behind these tokens, and the likeliest next one."""
    x = jnp.take(params["embedding"].astype(jnp.bfloat16), tokens, axis=0)
    for number, p in enumerate(params["layers"]):
        x, cache = _layer(config, p, x, at, cache, number, first)
    last = rms_norm(x[:, -1], params["norm"].astype(jnp.bfloat16))
    return cache, jnp.argmax(last @ params["head"].astype(jnp.bfloat16), axis=-1)


def prefill(config: Config, sequences: int, tokens: int) -> tuple[Any, tuple[Any, ...]]:
    """Reads the first ``tokens`` of each sequence; the shapes of its arguments."""

    def prefill(params: Parameters, cache: Cache, prompt: jax.Array) -> Any:
        at = positions(config)
        here = Positions(at.cosine[:tokens], at.sine[:tokens], at.causal[:tokens])
        return _tokens(config, params, cache, prompt, here, 0)

    return prefill, (cache_of(config, sequences), struct((sequences, tokens), jnp.int32))


def decode(config: Config, sequences: int) -> tuple[Any, tuple[Any, ...]]:
    """One token of each sequence; the shapes of its arguments."""

    def decode(params: Parameters, cache: Cache, token: jax.Array, number: jax.Array) -> Any:
        at = positions(config)
        here = Positions(*(jax.lax.dynamic_slice_in_dim(one, number, 1) for one in at))
        return _tokens(config, params, cache, token[:, None], here, number)

    return decode, (
        cache_of(config, sequences),
        struct((sequences,), jnp.int32),
        struct((), "int32"),
    )


def ppo(environments: int, steps: int, width: int) -> tuple[Any, Any, tuple[Any, ...], Any]:
    """Proximal policy optimisation on linear dynamics of 64 numbers and 8 actions.

    Schulman et al. 2017, "Proximal Policy Optimization Algorithms": the clipped objective, with
    advantages of one step.

    Returns:
        The rollout, which takes parameters, states of the environments and a key; the update, which
        takes parameters, the optimizer's state and a rollout; their other arguments.
    """
    seen, actions = 64, 8
    optimizer = optax.adam(3e-4)
    dynamics = np.eye(seen, dtype=np.float32) * 0.9

    def network(layers: Any, x: jax.Array) -> jax.Array:
        for layer in layers[:-1]:
            x = jnp.tanh(x @ layer)
        return x @ layers[-1]

    def log_of(params: Any, seen_: jax.Array, action: jax.Array) -> jax.Array:
        return -jnp.square(action - network(params["policy"], seen_)).sum(-1) / 2

    def rollout(params: Any, state: jax.Array, key: jax.Array) -> Any:
        def one(state: jax.Array, key: jax.Array) -> Any:
            mean = network(params["policy"], state)
            action = mean + jax.random.normal(key, mean.shape)
            after = jnp.tanh(state @ dynamics + jnp.pad(action, ((0, 0), (0, seen - actions))))
            reward = -jnp.square(after).mean(-1)
            return after, (state, action, reward, log_of(params, state, action))

        return jax.lax.scan(one, state, jax.random.split(key, steps))

    def update(params: Any, state: Any, batch: Any) -> Any:
        observed, action, reward, before = batch

        def loss(params: Any) -> jax.Array:
            value = network(params["value"], observed)[..., 0]
            gain = reward - jax.lax.stop_gradient(value)
            ratio = jnp.exp(log_of(params, observed, action) - before)
            clipped = jnp.clip(ratio, 0.8, 1.2)
            return (
                jnp.square(value - reward).mean() - jnp.minimum(ratio * gain, clipped * gain).mean()
            )

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    def layers(out: int) -> list[Any]:
        sizes = (seen, width, width, width, out)
        return [struct(pair, jnp.float32) for pair in pairwise(sizes)]

    params = {"policy": layers(actions), "value": layers(1)}
    start = struct((environments, seen), jnp.float32), jax.eval_shape(lambda: jax.random.key(0))
    made = jax.eval_shape(rollout, params, *start)[1]
    return rollout, update, (params, *start), (jax.eval_shape(optimizer.init, params), made)
