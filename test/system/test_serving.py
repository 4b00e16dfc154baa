"""Prefill and decode steps with a cache of keys and values, alone, in a loop, and together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.programs import llama, serving

CONFIG = llama.Config(
    features=64, hidden=128, heads=8, kv_heads=2, layers=2, vocabulary=128, tokens=32
)
"""Two heads of keys and values, for eight devices."""
SEQUENCES, PROMPT = 16, 8
P = jax.sharding.PartitionSpec


def made(tree: Any) -> Any:
    """Arrays of these types: weights as a model starts with them, an empty cache."""

    def make(number: int, leaf: Any) -> Any:
        if leaf.ndim > 2:
            return jnp.zeros(leaf.shape, leaf.dtype)
        values = np.random.default_rng(number).normal(size=leaf.shape) / leaf.shape[0] ** 0.5
        return jnp.asarray((values if leaf.ndim > 1 else np.ones(leaf.shape)).astype(leaf.dtype))

    leaves, tree = jax.tree.flatten(tree)
    return jax.tree.unflatten(tree, [make(n, leaf) for n, leaf in enumerate(leaves)])


PARAMS = made(llama.parameters(CONFIG))
PREFILL, (CACHE, _) = serving.prefill(CONFIG, SEQUENCES, PROMPT)
DECODE, _ = serving.decode(CONFIG, SEQUENCES)
TOKENS = jnp.asarray(
    np.random.default_rng(7).integers(0, CONFIG.vocabulary, (SEQUENCES, PROMPT)), jnp.int32
)


def assert_alike(found: Any, expected: Any) -> None:
    """Within the rounding of bfloat16."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = (np.asarray(each, np.float32) for each in (one, other))
        np.testing.assert_allclose(one, other, atol=0.05)


@pytest.mark.parametrize("mesh", [None, "model=8"])
def test_a_cache_with_fewer_heads_than_devices_is_updated_in_place(mesh: str | None) -> None:
    cache = made(CACHE)
    step = autoshard.jit(DECODE, cluster="cpu:8", mesh=mesh, donate_argnums=1)
    expected = jax.jit(DECODE)(PARAMS, cache, TOKENS[:, 0], jnp.int32(0))[0]
    plan = step.plan(PARAMS, cache, TOKENS[:, 0], jnp.int32(0))
    given = [value for value in plan.arguments if value.name.startswith("cache")]
    kept = plan.results[: len(given)]
    assert [value.sharding for value in given] == [value.sharding for value in kept]
    placed = plan.place(PARAMS, cache, TOKENS[:, 0], jnp.int32(0))
    bytes_ = sum(value.local_bytes for value in given)
    compiled = step.lower(*placed).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= bytes_
    found, _ = step(*placed)
    assert_alike(found, expected)


def mixture_step(params: Any, cache: Any, x: Any, at: Any) -> Any:
    """A token of each sequence: attention with one head of keys and values, then eight experts."""
    keys, values = cache
    rows = x.shape[0]
    size = keys.shape[-1]
    query = (x @ params["query"]).reshape(rows, -1, size)
    key, value = jnp.split(x @ params["key_value"], 2, axis=1)
    keys = jax.lax.dynamic_update_slice(keys, key[:, None], (0, at, 0))
    values = jax.lax.dynamic_update_slice(values, value[:, None], (0, at, 0))
    seen = jnp.arange(keys.shape[1]) <= at
    scores = jnp.where(seen, jnp.einsum("bhk,btk->bht", query, keys), -jnp.inf)
    mixed = jnp.einsum("bht,btk->bhk", jax.nn.softmax(scores), values)
    x = x + mixed.reshape(rows, -1) @ params["out"]
    gates = jax.nn.softmax(x @ params["router"])
    hidden = jax.nn.silu(jnp.einsum("bd,edf->ebf", x, params["up"]))
    return x + jnp.einsum("ebf,efd,be->bd", hidden, params["down"], gates), (keys, values)


def mixture_types(rows: int, tokens: int, width: int, hidden: int) -> Any:
    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    size = width // 8
    params = {
        "query": array(width, width),
        "key_value": array(width, 2 * size),
        "out": array(width, width),
        "router": array(width, 8),
        "up": array(8, width, hidden),
        "down": array(8, hidden, width),
    }
    cache = array(rows, tokens, size), array(rows, tokens, size)
    return params, cache, array(rows, width), jax.ShapeDtypeStruct((), jnp.int32)


def test_attention_shares_the_batch_over_the_devices_that_share_the_experts() -> None:
    types = mixture_types(256, 4096, 1024, 4096)
    plan = autoshard.plan(mixture_step, *types, cluster="v5p:2x2x2", donate_argnums=1)
    found = {value.name: value.sharding for value in plan.arguments}
    assert found["cache[0]"].tile == (8, 1, 1)
    assert found["params['up']"].tile == found["params['down']"].tile == (8, 1, 1)
    assert plan.results[1].sharding == found["cache[0]"]


def test_experts_and_a_shared_batch_compute_what_one_device_does() -> None:
    params, cache, x, _ = mixture_types(16, 32, 64, 128)
    params = made(params)
    params |= {name: jnp.ones(params[name].shape) / 64 for name in ("up", "down")}
    x, at = jnp.asarray(np.random.default_rng(5).normal(size=x.shape), jnp.float32), jnp.int32(0)
    pins = {"cache": P("d"), "up": P("d"), "down": P("d")}
    shardings = {name: pins.get(name) for name in params}, (pins["cache"],) * 2, None, None
    step = autoshard.jit(
        mixture_step, cluster="cpu:8", mesh="d=8", in_shardings=shardings, donate_argnums=1
    )
    expected = jax.jit(mixture_step)(params, made(cache), x, at)
    found = step(params, made(cache), x, at)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def sampled(params: Any, cache: Any, token: Any, count: Any) -> Any:
    def go_on(state: Any) -> Any:
        return state[0] < count

    def one(state: Any) -> Any:
        number, cache, token = state
        cache, likeliest = DECODE(params, cache, token, number)
        # Not the likeliest itself: of two that are equal but for rounding either may be it.
        return number + 1, cache, (token + 1 + 0 * likeliest) % CONFIG.vocabulary

    return jax.lax.while_loop(go_on, one, (jnp.int32(0), cache, token))


def test_a_loop_of_decode_steps_counts_the_trips_that_are_told() -> None:
    arguments = (PARAMS, made(CACHE), TOKENS[:, 0], jnp.int32(4))
    plans = [
        autoshard.plan(sampled, *arguments, cluster="v5p:2x2x2", trip_count=trips)
        for trips in (100, 200)
    ]
    assert plans[1].step_seconds / plans[0].step_seconds == pytest.approx(2, rel=0.02)
    found = autoshard.jit(sampled, cluster="cpu:8", trip_count=4)(*arguments)
    assert_alike(found[1], jax.jit(sampled)(*arguments)[1])


def test_a_prefill_and_decode_steps_share_parameters_and_cache() -> None:
    cache, number = made(CACHE), jnp.int32(PROMPT)
    together = autoshard.plan_together(
        [(PREFILL, PARAMS, cache, TOKENS), (DECODE, PARAMS, cache, TOKENS[:, 0], number)],
        share=("params", "cache"),
        weights=(1, 100),
        cluster="cpu:8",
        each=[{"donate_argnums": 1}] * 2,
    )
    read = autoshard.jit(PREFILL, plan=together.plans[0], donate_argnums=1)
    say = autoshard.jit(DECODE, plan=together.plans[1], donate_argnums=1)
    expected, token = jax.jit(PREFILL)(PARAMS, cache, TOKENS)
    expected, _ = jax.jit(DECODE)(PARAMS, expected, token, number)
    params, cache, prompt = together.plans[0].place(PARAMS, cache, TOKENS)
    cache, _ = read(params, cache, prompt)
    if together.moves[1] is not None:
        parts = {"params": params, "cache": cache}
        moved = together.move(1)(*(parts[name] for name in together.moved[1]))
        parts |= dict(zip(together.moved[1], moved, strict=True))
        params, cache = parts["params"], parts["cache"]
    found, _ = say(params, cache, token, number)
    assert_alike(found, expected)
