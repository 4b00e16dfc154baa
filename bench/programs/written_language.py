"""Steps of language models as their users write them, in plain JAX: ``written.py`` has the rest.

Capped and windowed attention, selective state spaces, experts by one-hot dispatch and by sorting,
LoRA, Muon, accumulated gradients, attention over blocks of a long context, and two decode steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.programs.storage import Case, spec, train

HALF = jnp.bfloat16


def _cross_entropy(logits: Any, labels: Any) -> Any:
    logits = logits.astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def _norm(x: Any, scale: Any) -> Any:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    return (y * (1 + scale)).astype(x.dtype)


def _rotated(x: Any, places: Any) -> Any:
    half = x.shape[-1] // 2
    angle = places[:, None] / 1e4 ** (jnp.arange(half) / half)
    sin, cos = (f(angle)[:, None].astype(x.dtype) for f in (jnp.sin, jnp.cos))
    one, other = x[..., :half], x[..., half:]
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def _stacked(layers: int, shapes: dict[str, tuple[int, ...]], dtype: Any) -> Any:
    return {name: spec(layers, *shape, dtype=dtype) for name, shape in shapes.items()}


# Attention


def capped(tiny: bool = False) -> Case:
    """Windowed and global attention in turn, 12 heads with 4 keys, capped scores and logits.

    Parameters are bfloat16, their float32 originals are part of the optimizer's state.
    """
    width, heads, keys, dim, pairs = (32, 6, 2, 8, 1) if tiny else (1536, 12, 4, 128, 4)
    tokens, batch, words, window = (16, 8, 97, 4) if tiny else (2048, 40, 50257, 512)
    layer = {
        "q": (width, keys, heads // keys, dim),
        "k": (width, keys, dim),
        "v": (width, keys, dim),
        "o": (keys, heads // keys, dim, width),
        "gate": (width, 4 * width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
        "norms": (4, width),
    }
    stacks = {name: _stacked(pairs, layer, HALF) for name in ("near", "far")}
    params = {"embed": spec(words, width, dtype=HALF), "norm": spec(width, dtype=HALF), **stacks}

    def cap(x: Any, most: float) -> Any:
        return most * jnp.tanh(x / most)

    def block(x: Any, p: Any, seen: Any) -> Any:
        y = _norm(x, p["norms"][0])
        q = jnp.einsum("btw,wkgd->btkgd", y, p["q"])
        k, v = (jnp.einsum("btw,wkd->btkd", y, p[name]) for name in ("k", "v"))
        places = jnp.arange(tokens)
        q = _rotated(q.reshape(*q.shape[:2], heads, dim), places).reshape(q.shape)
        k = _rotated(k, places)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(jnp.float32) / math.sqrt(dim)
        weights = jax.nn.softmax(jnp.where(seen, cap(scores, 50.0), -1e9)).astype(x.dtype)
        y = jnp.einsum("bkgts,bskd->btkgd", weights, v)
        x = x + _norm(jnp.einsum("btkgd,kgdw->btw", y, p["o"]), p["norms"][1])
        y = _norm(x, p["norms"][2])
        y = (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
        return x + _norm(y, p["norms"][3])

    def loss(params: Any, ids: Any) -> Any:
        apart = jnp.arange(tokens)[:, None] - jnp.arange(tokens)
        x = params["embed"][ids] * jnp.asarray(math.sqrt(width), HALF)

        @jax.checkpoint
        def pair(x: Any, p: tuple[Any, Any]) -> Any:
            x = block(x, p[0], (apart >= 0) & (apart < window))
            return block(x, p[1], apart >= 0), None

        x, _ = jax.lax.scan(pair, x, (params["near"], params["far"]))
        logits = _norm(x, params["norm"]) @ params["embed"].T
        return _cross_entropy(cap(logits.astype(jnp.float32), 30.0)[:, :-1], ids[:, 1:])

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))

    def step(params: Any, originals: Any, state: Any, ids: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, ids)
        gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
        updates, state = optimizer.update(gradients, state, originals)
        originals = optax.apply_updates(originals, updates)
        return jax.tree.map(lambda p: p.astype(HALF), originals), originals, state, value

    originals = jax.tree.map(lambda p: spec(*p.shape), params)
    state = jax.eval_shape(optimizer.init, originals)
    ids = spec(batch, tokens, dtype=jnp.int32)
    return step, (params, originals, state, ids), (0, 1, 2)


def blockwise(tiny: bool = False) -> Case:
    """Attention over blocks of keys in a scan, of a context longer than its batch can cut."""
    width, heads, layers, block = (32, 4, 2, 8) if tiny else (2048, 16, 3, 1024)
    tokens, batch, words = (32, 2, 97) if tiny else (32768, 4, 50257)
    dim = width // heads
    layer = {"qkv": (width, 3, heads, dim), "o": (heads, dim, width), "norms": (2, width)}
    layer |= {"up": (width, 4 * width), "down": (4 * width, width)}
    one = {name: spec(*shape) for name, shape in layer.items()}
    params = {"embed": spec(words, width), "layers": [one] * layers, "head": spec(width, words)}

    def attend(q: Any, k: Any, v: Any) -> Any:
        parts = [jnp.moveaxis(a.reshape(batch, -1, block, heads, dim), 1, 0) for a in (k, v)]
        starts = jnp.arange(tokens // block) * block
        rows = jnp.arange(tokens)

        def turn(carry: Any, part: Any) -> Any:
            total, most, found = carry
            k, v, start = part
            scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / math.sqrt(dim)
            seen = rows[:, None] >= start + jnp.arange(block)
            scores = jnp.where(seen, scores, -1e9)
            now = jnp.maximum(most, jnp.max(scores, axis=-1))
            weights = jnp.exp(scores - now[..., None])
            keep = jnp.exp(most - now)
            total = total * keep + jnp.sum(weights, axis=-1)
            made = jnp.einsum("bhts,bshd->bhtd", weights.astype(v.dtype), v)
            return (total, now, found * keep[..., None] + made.astype(jnp.float32)), None

        rest = (batch, heads, tokens)
        start = (jnp.zeros(rest), jnp.full(rest, -1e9), jnp.zeros((*rest, dim)))
        (total, _, found), _ = jax.lax.scan(jax.checkpoint(turn), start, (*parts, starts))
        return jnp.moveaxis(found / total[..., None], 1, 2).astype(q.dtype)

    @jax.checkpoint
    def run(x: Any, p: Any) -> Any:
        p = jax.tree.map(lambda w: w.astype(x.dtype), p)
        q, k, v = jnp.moveaxis(
            jnp.einsum("btw,wchd->btchd", _norm(x, p["norms"][0]), p["qkv"]), 2, 0
        )
        places = jnp.arange(tokens)
        x = x + jnp.einsum(
            "bthd,hdw->btw", attend(_rotated(q, places), _rotated(k, places), v), p["o"]
        )
        return x + jax.nn.gelu(_norm(x, p["norms"][1]) @ p["up"]) @ p["down"]

    def loss(params: Any, ids: Any) -> Any:
        x = params["embed"].astype(HALF)[ids]
        for layer in params["layers"]:
            x = run(x, layer)
        entropy = jax.checkpoint(lambda x, w, ids: _cross_entropy(x @ w.astype(HALF), ids))
        return entropy(x, params["head"], jnp.roll(ids, -1, axis=1))

    return train(loss, params, spec(batch, tokens, dtype=jnp.int32), optimizer=optax.lion(1e-4))


# Without attention


def state_space(tiny: bool = False) -> Case:
    """Mamba: a selective state space by an associative scan over tokens, layers in a scan."""
    width, inner, states, rank = (16, 32, 4, 4) if tiny else (1024, 2048, 16, 64)
    layers, tokens, batch, words = (2, 16, 8, 97) if tiny else (6, 1024, 32, 50280)
    layer = {
        "in": (width, 2 * inner),
        "conv": (4, inner),
        "bias": (inner,),
        "to_step": (inner, rank),
        "step": (rank, inner),
        "step_bias": (inner,),
        "to_b": (inner, states),
        "to_c": (inner, states),
        "log_a": (inner, states),
        "d": (inner,),
        "out": (inner, width),
        "norm": (width,),
    }
    stack = _stacked(layers, layer, jnp.float32)
    params = {"embed": spec(words, width), "norm": spec(width), "layers": stack}

    @jax.checkpoint
    def run(x: Any, p: Any) -> Any:
        w = jax.tree.map(lambda a: a.astype(HALF), p)
        y, gate = jnp.split(_norm(x, p["norm"]) @ w["in"], 2, axis=-1)
        padded = jnp.pad(y, ((0, 0), (3, 0), (0, 0)))
        y = sum(padded[:, i : i + tokens] * w["conv"][i] for i in range(4)) + w["bias"]
        y = jax.nn.silu(y)
        step = jax.nn.softplus((y @ w["to_step"] @ w["step"]).astype(jnp.float32) + p["step_bias"])
        b, c = ((y @ w[name]).astype(jnp.float32) for name in ("to_b", "to_c"))
        decay = jnp.exp(step[..., None] * -jnp.exp(p["log_a"]))
        added = (step * y.astype(jnp.float32))[..., None] * b[:, :, None]

        def join(one: Any, other: Any) -> Any:
            return one[0] * other[0], one[1] * other[0] + other[1]

        _, h = jax.lax.associative_scan(join, (decay, added), axis=1)
        out = jnp.einsum("btis,bts->bti", h, c) + y.astype(jnp.float32) * p["d"]
        return x + (out.astype(HALF) * jax.nn.silu(gate)) @ w["out"], None

    def loss(params: Any, ids: Any) -> Any:
        x, _ = jax.lax.scan(run, params["embed"].astype(HALF)[ids], params["layers"])
        logits = _norm(x, params["norm"]) @ params["embed"].astype(HALF).T
        return _cross_entropy(logits[:, :-1], ids[:, 1:])

    return train(loss, params, spec(batch, tokens, dtype=jnp.int32), optimizer=optax.adamw(1e-3))


# Experts


def _experts(tiny: bool, feed: Callable[..., Any]) -> Case:
    """Layers of experts alone, behind a norm, on tokens whose embedding is looked up."""
    width, hidden, experts, layers = (16, 32, 4, 1) if tiny else (2048, 5632, 16, 2)
    tokens, batch, words = (8, 16, 97) if tiny else (1024, 64, 32000)
    layer = {"norm": spec(width), "router": spec(width, experts)}
    layer |= {"up": spec(experts, width, hidden), "down": spec(experts, hidden, width)}
    params = {"embed": spec(words, width), "layers": [layer] * layers, "head": spec(width, words)}

    def loss(params: Any, ids: Any) -> Any:
        x, balance = params["embed"].astype(HALF)[ids], 0.0
        for p in params["layers"]:
            y = _norm(x, p["norm"])
            chances = jax.nn.softmax((y @ p["router"].astype(HALF)).astype(jnp.float32))
            weights, chosen = jax.lax.top_k(chances, 2)
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
            load = jnp.mean(jax.nn.one_hot(chosen[..., 0], experts), axis=(0, 1))
            balance += experts * jnp.sum(load * jnp.mean(chances, axis=(0, 1)))
            x = x + feed(p, y, weights, chosen, experts)
        return (
            _cross_entropy((x @ params["head"].astype(HALF))[:, :-1], ids[:, 1:]) + 0.01 * balance
        )

    return train(loss, params, spec(batch, tokens, dtype=jnp.int32), optimizer=optax.adamw(1e-3))


def dispatched(tiny: bool = False) -> Case:
    """Experts by one-hot products, two for a token, with a capacity for each row."""

    def feed(p: Any, y: Any, weights: Any, chosen: Any, experts: int) -> Any:
        room = math.ceil(2 * y.shape[1] / experts * 1.25)
        taken = jax.nn.one_hot(chosen, experts, dtype=jnp.int32)
        b, t, k, e = taken.shape
        order = jnp.cumsum(taken.reshape(b, t * k, e), axis=1).reshape(taken.shape) - 1
        place = jax.nn.one_hot(jnp.where(taken > 0, order, -1), room, dtype=HALF)
        sent = jnp.sum(place, axis=2)
        back = jnp.einsum("btk,btkec->btec", weights.astype(HALF), place)
        x = jnp.einsum("btec,btw->ebcw", sent, y)
        x = jax.nn.silu(jnp.einsum("ebcw,ewh->ebch", x, p["up"].astype(HALF)))
        x = jnp.einsum("ebch,ehw->ebcw", x, p["down"].astype(HALF))
        return jnp.einsum("btec,ebcw->btw", back, x)

    return _experts(tiny, feed)


def sorted_experts(tiny: bool = False) -> Case:
    """Experts by sorting tokens and one ragged product, two for a token, without capacity."""

    def feed(p: Any, y: Any, weights: Any, chosen: Any, experts: int) -> Any:
        flat = y.reshape(-1, y.shape[-1])
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=experts)
        x = flat[order // 2]
        x = jax.nn.silu(jax.lax.ragged_dot(x, p["up"].astype(HALF), sizes.astype(jnp.int32)))
        x = jax.lax.ragged_dot(x, p["down"].astype(HALF), sizes.astype(jnp.int32))
        x = x * weights.reshape(-1)[order][:, None].astype(HALF)
        return jnp.zeros_like(flat).at[order // 2].add(x).reshape(y.shape)

    return _experts(tiny, feed)


# What trains


def _gpt(width: int, heads: int, layers: int, words: int, dtype: Any = jnp.float32) -> Any:
    layer = {"qkv": (width, 3 * width), "o": (width, width), "norms": (2, width)}
    layer |= {"up": (width, 4 * width), "down": (4 * width, width)}
    stack = _stacked(layers, layer, dtype)
    return {"embed": spec(words, width, dtype=dtype), "norm": spec(width, dtype=dtype)} | {
        "layers": stack
    }


def _gpt_layer(heads: int, x: Any, p: Any) -> Any:
    p = jax.tree.map(lambda w: w.astype(x.dtype), p)
    batch, tokens, width = x.shape
    qkv = (_norm(x, p["norms"][0]) @ p["qkv"]).reshape(batch, tokens, 3, heads, -1)
    places = jnp.arange(tokens)
    q, k = (_rotated(qkv[:, :, i], places) for i in (0, 1))
    y = jax.nn.dot_product_attention(q, k, qkv[:, :, 2], is_causal=True)
    x = x + y.reshape(batch, tokens, width) @ p["o"]
    return x + jnp.square(jax.nn.relu(_norm(x, p["norms"][1]) @ p["up"])) @ p["down"], None


def _gpt_loss(layer: Any, params: Any, ids: Any) -> Any:
    x, _ = jax.lax.scan(layer, params["embed"].astype(HALF)[ids[:, :-1]], params["layers"])
    logits = _norm(x, params["norm"].astype(HALF)) @ params["embed"].astype(HALF).T
    return _cross_entropy(logits, ids[:, 1:])


def muon(tiny: bool = False) -> Case:
    """A GPT whose matrices Muon updates: five products of Newton and Schulz for each of a stack."""
    width, heads, layers, words = (32, 4, 2, 97) if tiny else (1280, 20, 8, 50304)
    batch, tokens = (8, 17) if tiny else (96, 1025)
    params = _gpt(width, heads, layers, words)
    layer = jax.checkpoint(functools.partial(_gpt_layer, heads))

    def orthogonal(g: Any) -> Any:
        x = g.astype(HALF)
        x = x.mT if g.shape[-2] > g.shape[-1] else x
        x = x / (jnp.linalg.norm(x.astype(jnp.float32), axis=(-2, -1), keepdims=True) + 1e-7)
        x = x.astype(HALF)
        for _ in range(5):
            square = x @ x.mT
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
        return (x.mT if g.shape[-2] > g.shape[-1] else x).astype(g.dtype)

    adam = optax.adamw(3e-4)

    def is_matrix(path: Any, _: Any) -> bool:
        return getattr(path[-1], "key", "") in ("qkv", "o", "up", "down")

    def step(params: Any, moments: Any, state: Any, ids: Any) -> Any:
        value, gradients = jax.value_and_grad(functools.partial(_gpt_loss, layer))(params, ids)
        moments = jax.tree.map(lambda m, g: 0.95 * m + g, moments, gradients)
        updates, state = adam.update(gradients, state, params)

        def chosen(path: Any, p: Any, m: Any, u: Any) -> Any:
            return p - 0.02 * orthogonal(m) if is_matrix(path, p) else p + u

        params = jax.tree_util.tree_map_with_path(chosen, params, moments, updates)
        return params, moments, state, value

    state = jax.eval_shape(adam.init, params)
    ids = spec(batch, tokens, dtype=jnp.int32)
    return step, (params, params, state, ids), (0, 1, 2)


def lora(tiny: bool = False) -> Case:
    """LoRA on a frozen model in bfloat16: gradients for factors of rank 16 alone."""
    width, hidden, heads, layers = (32, 64, 4, 2) if tiny else (4096, 11008, 32, 8)
    rank, words, batch, tokens = (4, 97, 8, 17) if tiny else (16, 32000, 24, 2049)
    names = {"q": width, "k": width, "v": width, "o": width, "gate": hidden, "up": hidden}
    shapes = {name: (width, size) for name, size in names.items()} | {"down": (hidden, width)}
    base = {
        "embed": spec(words, width, dtype=HALF),
        "head": spec(width, words, dtype=HALF),
        "layers": _stacked(layers, {**shapes, "norms": (2, width)}, HALF),
    }
    adapters = {
        name: {"a": spec(layers, rows, rank), "b": spec(layers, rank, columns)}
        for name, (rows, columns) in shapes.items()
    }

    @jax.checkpoint
    def run(x: Any, pair: Any) -> Any:
        p, added = pair
        batch, tokens, _ = x.shape

        def times(x: Any, name: str) -> Any:
            a, b = (added[name][k].astype(x.dtype) for k in ("a", "b"))
            return x @ p[name] + 2.0 * (x @ a @ b)

        y = _norm(x, p["norms"][0])
        q, k, v = (times(y, name).reshape(batch, tokens, heads, -1) for name in "qkv")
        places = jnp.arange(tokens)
        q, k = _rotated(q, places), _rotated(k, places)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + times(y.reshape(x.shape), "o")
        y = _norm(x, p["norms"][1])
        return x + times(jax.nn.silu(times(y, "gate")) * times(y, "up"), "down"), None

    def loss(adapters: Any, base: Any, ids: Any) -> Any:
        x, _ = jax.lax.scan(run, base["embed"][ids[:, :-1]], (base["layers"], adapters))
        return _cross_entropy(x @ base["head"], ids[:, 1:])

    return train(loss, adapters, base, spec(batch, tokens, dtype=jnp.int32))


def accumulated(tiny: bool = False) -> Case:
    """Gradients that the user adds up in a scan over 7 parts of the batch, products kept."""
    width, heads, layers, words = (32, 4, 2, 97) if tiny else (1600, 25, 6, 50257)
    batch, tokens, parts = (14, 17, 7) if tiny else (224, 1025, 7)
    params = _gpt(width, heads, layers, words)
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    layer = jax.checkpoint(functools.partial(_gpt_layer, heads), policy=policy)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(6e-4))

    def step(params: Any, state: Any, ids: Any) -> Any:
        def part(total: Any, ids: Any) -> Any:
            value, gradients = jax.value_and_grad(functools.partial(_gpt_loss, layer))(params, ids)
            return jax.tree.map(jnp.add, total, gradients), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        gradients, values = jax.lax.scan(part, zeros, ids.reshape(parts, -1, tokens))
        gradients = jax.tree.map(lambda g: g / parts, gradients)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, jnp.mean(values)

    state = jax.eval_shape(optimizer.init, params)
    return step, (params, state, spec(batch, tokens, dtype=jnp.int32)), (0, 1)


# Decode steps


def _cached(config: tuple[int, ...], x: Any, layer: Any, start: Any) -> Any:
    """One layer over new tokens, whose keys and values go into a cache at ``start``."""
    heads, keys, dim = config
    p, (cached_k, cached_v) = layer
    batch, tokens, _ = x.shape
    y = _norm(x, p["norm_1"])
    q = (y @ p["wq"]).reshape(batch, tokens, heads, dim)
    k, v = ((y @ p[n]).reshape(batch, tokens, keys, dim) for n in ("wk", "wv"))
    places = start + jnp.arange(tokens)
    q, k = _rotated(q, places), _rotated(k, places)
    cached_k = jax.lax.dynamic_update_slice(cached_k, k, (0, start, 0, 0))
    cached_v = jax.lax.dynamic_update_slice(cached_v, v, (0, start, 0, 0))
    q = q.reshape(batch, tokens, keys, heads // keys, dim)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, cached_k).astype(jnp.float32) / math.sqrt(dim)
    seen = places[:, None] >= jnp.arange(cached_k.shape[1])
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(x.dtype)
    y = jnp.einsum("bkgts,bskd->btkgd", weights, cached_v).reshape(batch, tokens, -1)
    x = x + y @ p["wo"]
    y = _norm(x, p["norm_2"])
    return x + (jax.nn.silu(y @ p["w_gate"]) * (y @ p["w_up"])) @ p["w_down"], (cached_k, cached_v)


def _server(tiny: bool) -> tuple[Any, tuple[int, ...], int, int]:
    width, hidden, heads, keys, dim = (32, 64, 4, 2, 8) if tiny else (3584, 9472, 28, 4, 128)
    layers, words = (2, 97) if tiny else (12, 152064)
    layer = {
        "wq": (width, heads * dim),
        "wk": (width, keys * dim),
        "wv": (width, keys * dim),
        "wo": (heads * dim, width),
        "w_gate": (width, hidden),
        "w_up": (width, hidden),
        "w_down": (hidden, width),
        "norm_1": (width,),
        "norm_2": (width,),
    }
    params = {"embed": spec(words, width, dtype=HALF), "layers": _stacked(layers, layer, HALF)}
    return params | {"head": spec(width, words, dtype=HALF)}, (heads, keys, dim), layers, words


def speculated(tiny: bool = False) -> Case:
    """Five drafted tokens verified in one step: a cache written in place, the longest match."""
    params, config, layers, _ = _server(tiny)
    batch, length, drafted = (8, 32, 5) if tiny else (64, 4096, 5)
    cache = spec(layers, batch, length, *config[1:], dtype=HALF)

    def step(params: Any, cache: Any, drafts: Any, start: Any) -> Any:
        def run(x: Any, layer: Any) -> Any:
            return _cached(config, x, layer, start)

        x, cache = jax.lax.scan(run, params["embed"][drafts], (params["layers"], cache))
        best = jnp.argmax((x @ params["head"]).astype(jnp.float32), axis=-1)
        right = jnp.cumprod(best[:, :-1] == drafts[:, 1:], axis=1)
        count = jnp.sum(right, axis=1)
        return jnp.take_along_axis(best, count[:, None], axis=1), count, cache

    ids, start = spec(batch, drafted, dtype=jnp.int32), spec(dtype=jnp.int32)
    return step, (params, (cache, cache), ids, start), (1,)


def beams(tiny: bool = False) -> Case:
    """A step of beam search: the best of all continuations, caches moved to their beams."""
    params, config, layers, words = _server(tiny)
    batch, width, length = (4, 3, 16) if tiny else (23, 4, 2048)
    cache = spec(layers, batch * width, length, *config[1:], dtype=HALF)

    def step(params: Any, cache: Any, scores: Any, last: Any, start: Any) -> Any:
        def run(x: Any, layer: Any) -> Any:
            return _cached(config, x, layer, start)

        x = params["embed"][last.reshape(-1, 1)]
        x, cache = jax.lax.scan(run, x, (params["layers"], cache))
        chances = jax.nn.log_softmax((x[:, 0] @ params["head"]).astype(jnp.float32))
        total = scores[..., None] + chances.reshape(batch, width, words)
        scores, best = jax.lax.top_k(total.reshape(batch, -1), width)
        beam, token = best // words, best % words
        rows = (jnp.arange(batch)[:, None] * width + beam).reshape(-1)
        cache = jax.tree.map(lambda c: jnp.take(c, rows, axis=1), cache)
        return cache, scores, token, beam

    scores, last = spec(batch, width), spec(batch, width, dtype=jnp.int32)
    return step, (params, (cache, cache), scores, last, spec(dtype=jnp.int32)), (1, 2, 3)


LANGUAGE: dict[str, Callable[..., Case]] = {
    "capped attention": capped,
    "blockwise attention": blockwise,
    "state space": state_space,
    "experts, dispatched": dispatched,
    "experts, sorted": sorted_experts,
    "muon": muon,
    "lora": lora,
    "accumulated": accumulated,
    "speculated decode": speculated,
    "beam search": beams,
}
"""By name; each takes ``tiny``."""
