"""A small version of every family of models in the corpus: one train step of each, as its kind does
it, with flax and optax.

What matters is what the families' programs are made of (grouped heads, rotations, sliding windows,
batch statistics, routing, recurrences by scan and by associative scan, message passing on graphs,
rollouts in loops), not their sizes. All take random numbers, dropout and noise among them, from a
key that is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

Array = Any
Tree = Any

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-2))
"""The large eps keeps gradients that are nothing but rounding from moving anything."""

BATCH, TOKENS, WIDTH, WORDS = 8, 16, 32, 64


@dataclass(frozen=True)
class Family:
    """One kind of program."""

    name: str
    modules: tuple[str, ...]
    """How the corpus's modules of this kind begin."""
    build: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    """A function of arrays, and arguments for it."""


def train_step(
    model: nn.Module, loss: Callable[[Callable[..., Any], Tree, Array], Array], *inputs: Array
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step of a model, and its arguments: variables, optimizer state, key, inputs.

    Args:
        model: Its parameters are trained; other variables (batch statistics) come back renewed.
        loss: From ``apply(*inputs) -> outputs``, which keeps renewed variables, inputs and a key.
        *inputs: Numpy arrays.
    """
    key = np.array([0, 3], np.uint32)
    keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
    variables = drawn(jax.eval_shape(model.init, keys, inputs[0]))
    others = {name: tree for name, tree in variables.items() if name != "params"}

    def step(parameters: Tree, state: Tree, others: Tree, key: Array, *inputs: Array) -> Tree:
        use, noise = jax.random.split(jax.random.wrap_key_data(key))

        def loss_of(parameters: Tree) -> tuple[Array, Tree]:
            renewed = others

            def apply(*arguments: Array) -> Array:
                nonlocal renewed
                outputs, renewed = model.apply(
                    {"params": parameters, **others},
                    *arguments,
                    rngs={"dropout": use},
                    mutable=tuple(others),
                )
                return outputs

            return loss(apply, inputs, noise), renewed

        (value, renewed), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
        updates, state = OPTIMIZER.update(gradients, state, parameters)
        return value, optax.apply_updates(parameters, updates), state, renewed

    parameters = variables["params"]
    return step, (
        parameters,
        start(parameters),
        others,
        key,
        *inputs,
    )


def drawn(shapes: Tree) -> Tree:
    """Values of these shapes, about as large as initializers make them; nothing is compiled."""
    random = np.random.default_rng(1)

    def draw(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
        values = random.standard_normal(leaf.shape).astype(leaf.dtype)
        if len(leaf.shape) < 2:
            # A bias near 1 would keep every ReLU open, and gradients that cancel would be rounding.
            centre = 0 if "bias" in jax.tree_util.keystr(path) else 1
            return (centre + 0.1 * values).astype(leaf.dtype)
        return (values / np.sqrt(np.prod(leaf.shape[:-1]))).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def start(parameters: Tree) -> Tree:
    """The optimizer's first state, which is zeros."""
    shapes = jax.eval_shape(OPTIMIZER.init, parameters)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def words(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, WORDS, shape).astype(np.int32)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def next_word(apply: Callable[..., Any], inputs: tuple[Array, ...], noise: Array) -> Array:
    """Cross-entropy of each word given those before it."""
    del noise
    (ids,) = inputs
    logits = apply(ids)[:, :-1]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]))


def next_words_of(model: nn.Module) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return train_step(model, next_word, words(BATCH, TOKENS))


# Transformers


def rotated(x: Array, positions: Array | None = None) -> Array:
    """Rotary embedding of ``(batch, tokens, heads, features)``."""
    half = x.shape[-1] // 2
    positions = jnp.arange(x.shape[1]) if positions is None else positions
    angles = positions[:, None] * 100.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    """Grouped heads, rotated, causal, within a window if there is one."""

    heads: int = 4
    groups: int = 2
    window: int = 0
    cap: float = 0.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size = WIDTH // self.heads
        query = rotated(nn.DenseGeneral((self.heads, size), use_bias=False, name="query")(x))
        key = rotated(nn.DenseGeneral((self.groups, size), use_bias=False, name="key")(x))
        value = nn.DenseGeneral((self.groups, size), use_bias=False, name="value")(x)
        query = query.reshape(*x.shape[:2], self.groups, self.heads // self.groups, size)
        scores = jnp.einsum("bsgrk,btgk->bgrst", query, key) / np.sqrt(size)
        if self.cap:
            scores = self.cap * jnp.tanh(scores / self.cap)
        distance = jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])
        seen = (distance >= 0) & (distance < (self.window or x.shape[1]))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bgrst,btgk->bsgrk", weights, value).reshape(*x.shape[:2], -1)
        return nn.Dense(WIDTH, use_bias=False, name="out")(mixed)


class Gated(nn.Module):
    """SwiGLU."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        gate, up = (nn.Dense(2 * WIDTH, use_bias=False)(x) for _ in range(2))
        return nn.Dense(WIDTH, use_bias=False)(nn.silu(gate) * up)


class DecoderLayer(nn.Module):
    """Llama, Qwen2; Gemma with a window, a cap and norms behind as well."""

    window: int = 0
    cap: float = 0.0
    norms_behind: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        def behind(y: Array) -> Array:
            return nn.RMSNorm()(y) if self.norms_behind else y

        x = x + behind(Attention(window=self.window, cap=self.cap)(nn.RMSNorm()(x)))
        return x + behind(Gated()(nn.RMSNorm()(x)))


class Decoder(nn.Module):
    """Layers one by one; the table of words serves both ends."""

    layers: tuple[nn.Module, ...]

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        table = nn.Embed(WORDS, WIDTH)
        x = table(ids) * np.sqrt(WIDTH)
        for layer in self.layers:
            x = layer(x)
        return table.attend(nn.RMSNorm()(x))


class ScannedDecoder(nn.Module):
    """Layers as one scan with recomputation, as MaxText has them."""

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        class Step(nn.Module):
            @nn.compact
            def __call__(self, x: Array, _: None) -> tuple[Array, None]:
                return nn.remat(DecoderLayer)()(x), None

        x = nn.Embed(WORDS, WIDTH)(ids)
        stack = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        x, _ = stack()(x, None)
        return nn.Dense(WORDS, use_bias=False)(nn.RMSNorm()(x))


class ParallelLayer(nn.Module):
    """GPT-J: attention and feed-forward of the same norm, added together; dropout as GPT-2."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = nn.LayerNorm()(x)
        fused = nn.Dense(3 * WIDTH)(y).reshape(*x.shape[:2], 3, 4, WIDTH // 4)
        query, key, value = (fused[:, :, part] for part in range(3))
        weights = jnp.einsum("bshk,bthk->bhst", rotated(query), rotated(key))
        seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = nn.Dropout(0.1, deterministic=False)(
            jax.nn.softmax(jnp.where(seen, weights, -1e9), axis=-1)
        )
        mixed = jnp.einsum("bhst,bthk->bshk", weights, value).reshape(x.shape)
        fed = nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(y)))
        return x + nn.Dense(WIDTH)(mixed) + nn.Dropout(0.1, deterministic=False)(fed)


class Encoder(nn.Module):
    """BERT: three embeddings, norms behind, padding masked, words through the table again."""

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        table = nn.Embed(WORDS, WIDTH)
        places = self.param("places", nn.initializers.normal(0.1), (TOKENS, WIDTH))
        x = table(ids) + places + nn.Embed(2, WIDTH)((ids > WORDS // 2).astype(jnp.int32))
        x = nn.Dropout(0.1, deterministic=False)(nn.LayerNorm()(x))
        mask = nn.make_attention_mask(ids > 0, ids > 0)
        for _ in range(2):
            x = nn.LayerNorm()(
                x
                + nn.MultiHeadDotProductAttention(4, use_bias=False, deterministic=True)(
                    x, mask=mask
                )
            )
            x = nn.LayerNorm()(x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(x))))
        return table.attend(nn.gelu(nn.Dense(WIDTH)(x)))


def masked_words(apply: Callable[..., Any], inputs: tuple[Array, ...], noise: Array) -> Array:
    """A tenth of the words is hidden; only those count."""
    (ids,) = inputs
    hidden = jax.random.bernoulli(noise, 0.3, ids.shape)
    losses = optax.softmax_cross_entropy_with_integer_labels(apply(jnp.where(hidden, 1, ids)), ids)
    return jnp.sum(losses * hidden) / jnp.maximum(jnp.sum(hidden), 1)


def one_more_token() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A decoder with a cache of keys and values: the next word, and the cache with it."""
    heads, size, length = 4, 8, 16
    parameters = {
        "table": numbers(WORDS, WIDTH),
        "qkv": numbers(3, WIDTH, heads, size) / 6,
        "out": numbers(heads, size, WIDTH) / 6,
    }
    cache = numbers(2, BATCH, length, heads, size)

    def step(p: Tree, cache: Array, ids: Array, place: Array) -> tuple[Array, Array]:
        x = p["table"][ids][:, None]
        query, key, value = (jnp.einsum("bsd,dhk->bshk", x, w) for w in p["qkv"])
        here = jnp.full((1,), place)
        new = jnp.stack([rotated(key, here), value])
        cache = jax.lax.dynamic_update_slice(cache, new, (0, 0, place, 0, 0))
        scores = jnp.einsum("bshk,bthk->bhst", rotated(query, here), cache[0])
        scores = jnp.where(jnp.arange(length) <= place, scores, -1e9)
        mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores, -1), cache[1])
        x = x + jnp.einsum("bshk,hkd->bsd", mixed, p["out"])
        return jnp.argmax(jnp.einsum("bsd,vd->bsv", x, p["table"]), -1), cache

    return step, (parameters, cache, words(BATCH), np.int32(5))


# Experts


class Experts(nn.Module):
    """Mixtral: the two best of four, with a capacity."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        experts, capacity = 4, TOKENS
        gates = jax.nn.softmax(nn.Dense(experts, use_bias=False)(x))
        weights, chosen = jax.lax.top_k(gates, 2)
        weights = weights / jnp.sum(weights, -1, keepdims=True)
        taken = jax.nn.one_hot(chosen, experts).reshape(x.shape[0], -1, experts)
        place = (jnp.cumsum(taken, axis=1) * taken).astype(jnp.int32) - 1
        sent = jax.nn.one_hot(place, capacity).reshape(*chosen.shape, experts, capacity)
        combine = jnp.einsum("bsk,bskec->bsec", weights, sent)
        inputs = jnp.einsum("bsd,bsec->ebcd", x, jnp.sum(sent, axis=2))
        shape = (experts, WIDTH, 2 * WIDTH)
        gate, up = (self.param(n, nn.initializers.lecun_normal(), shape) for n in ("w1", "w3"))
        down = self.param("w2", nn.initializers.lecun_normal(), (experts, 2 * WIDTH, WIDTH))
        hidden = nn.silu(jnp.einsum("ebcd,edf->ebcf", inputs, gate))
        hidden = hidden * jnp.einsum("ebcd,edf->ebcf", inputs, up)
        return jnp.einsum("ebcf,efd,bsec->bsd", hidden, down, combine)


class ExpertLayer(nn.Module):
    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x + Attention()(nn.RMSNorm()(x))
        return x + Experts()(nn.RMSNorm()(x))


# Recurrences


def convolved(module: nn.Module, x: Array) -> Array:
    """Depthwise and causal, over four tokens."""
    taps = module.param("taps", nn.initializers.normal(0.5), (4, x.shape[-1]))
    padded = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
    return sum(padded[:, tap : tap + x.shape[1]] * taps[tap] for tap in range(4))


class GatedRecurrence(nn.Module):
    """Griffin's block: a convolution, then a linear recurrence with gates, all tokens at once."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = nn.RMSNorm()(x)
        branch = nn.gelu(nn.Dense(WIDTH)(y))
        y = convolved(self, nn.Dense(WIDTH)(y))
        decay = self.param("decay", nn.initializers.normal(0.5), (WIDTH,))
        logs = -8 * nn.softplus(decay) * nn.sigmoid(nn.Dense(WIDTH)(y))
        driven = jnp.sqrt(1 - jnp.exp(2 * logs) + 1e-6) * nn.sigmoid(nn.Dense(WIDTH)(y)) * y

        def both(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
            return left[0] * right[0], left[1] * right[0] + right[1]

        _, y = jax.lax.associative_scan(both, (jnp.exp(logs), driven), axis=1)
        x = x + nn.Dense(WIDTH)(y * branch)
        return x + Gated()(nn.RMSNorm()(x))


class DeltaRule(nn.Module):
    """Qwen3.5's linear attention: a matrix of memory a head, corrected token by token."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        heads, size = 4, WIDTH // 4
        y = nn.silu(convolved(self, nn.Dense(3 * WIDTH, use_bias=False)(nn.RMSNorm()(x))))
        query, key, value = jnp.split(y.reshape(*x.shape[:2], 3 * heads, size), 3, axis=2)
        key = key / (jnp.linalg.norm(key, axis=-1, keepdims=True) + 1e-3)
        decay = nn.sigmoid(nn.Dense(heads)(x))
        rate = nn.sigmoid(nn.Dense(heads)(x))

        def advance(memory: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
            query, key, value, decay, rate = now
            memory = memory * decay[..., None, None]
            error = value - jnp.einsum("bhkv,bhk->bhv", memory, key)
            memory = memory + jnp.einsum("bhk,bhv,bh->bhkv", key, error, rate)
            return memory, jnp.einsum("bhkv,bhk->bhv", memory, query)

        start = jnp.zeros((x.shape[0], heads, size, size))
        by_token = tuple(jnp.moveaxis(a, 1, 0) for a in (query, key, value, decay, rate))
        _, mixed = jax.lax.scan(advance, start, by_token)
        mixed = nn.RMSNorm()(jnp.moveaxis(mixed, 0, 1)).reshape(x.shape)
        x = x + nn.Dense(WIDTH)(mixed * nn.silu(nn.Dense(WIDTH)(x)))
        return x + Gated()(nn.RMSNorm()(x))


# Images


class ResNet(nn.Module):
    """Strided convolutions, batch statistics, shortcuts, pooling."""

    @nn.compact
    def __call__(self, images: Array) -> Array:
        norm = partial(nn.BatchNorm, use_running_average=False)
        x = nn.relu(norm()(nn.Conv(8, (3, 3), strides=2, use_bias=False)(images)))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for features, stride in ((8, 1), (16, 2)):
            y = nn.relu(norm()(nn.Conv(features, (1, 1), use_bias=False)(x)))
            y = nn.relu(norm()(nn.Conv(features, (3, 3), strides=stride, use_bias=False)(y)))
            y = norm()(nn.Conv(2 * features, (1, 1), use_bias=False)(y))
            short = nn.Conv(2 * features, (1, 1), strides=stride, use_bias=False)(x)
            x = nn.relu(y + norm()(short))
        return nn.Dense(10)(jnp.mean(x, (1, 2)))


class VisionTransformer(nn.Module):
    """Patches, a token for the class, dropout of whole branches as in the larger ones."""

    @nn.compact
    def __call__(self, images: Array) -> Array:
        x = nn.Conv(WIDTH, (4, 4), strides=4)(images).reshape(images.shape[0], -1, WIDTH)
        token = self.param("token", nn.initializers.normal(0.1), (1, 1, WIDTH))
        x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, WIDTH)), x], axis=1)
        x = x + self.param("places", nn.initializers.normal(0.1), x.shape[1:])
        for _ in range(2):
            branch = nn.MultiHeadDotProductAttention(4, use_bias=False, deterministic=True)(
                nn.LayerNorm()(x)
            )
            x = x + nn.Dropout(0.1, broadcast_dims=(1, 2), deterministic=False)(branch)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return nn.Dense(10)(nn.LayerNorm()(x[:, 0]))


def image_class(apply: Callable[..., Any], inputs: tuple[Array, ...], noise: Array) -> Array:
    del noise
    images, labels = inputs
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(apply(images), labels))


def image_classes_of(model: nn.Module) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    labels = np.arange(BATCH, dtype=np.int32) % 10
    return train_step(model, image_class, numbers(BATCH, 16, 16, 3), labels)


class TwoStreams(nn.Module):
    """SD3: patches and words attend to each other; each stream has weights of its own, scaled and
    shifted by the time."""

    @nn.compact
    def __call__(self, latents: Array, text: Array | None = None, time: Array | None = None):
        text = numbers(BATCH, 4, WIDTH) if text is None else text
        time = numbers(BATCH) if time is None else time
        angles = time[:, None] * 100.0 ** (-jnp.arange(8) / 8)
        given = nn.Dense(WIDTH)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        streams = [nn.Dense(WIDTH)(latents), nn.Dense(WIDTH)(text)]
        for _ in range(2):
            changes = [
                jnp.split(nn.Dense(6 * WIDTH)(nn.silu(given))[:, None], 6, -1) for _ in streams
            ]

            def changed(x: Array, shift: Array, scale: Array) -> Array:
                return nn.LayerNorm(use_bias=False, use_scale=False)(x) * (1 + scale) + shift

            fused = [
                nn.DenseGeneral((3, 4, WIDTH // 4))(changed(x, *c[:2]))
                for x, c in zip(streams, changes, strict=True)
            ]
            query, key, value = jnp.moveaxis(jnp.concatenate(fused, axis=1), 2, 0)
            mixed = nn.dot_product_attention(query, key, value)
            mixed = mixed.reshape(*mixed.shape[:2], WIDTH)
            parts = jnp.split(mixed, [latents.shape[1]], axis=1)
            for index, (part, c) in enumerate(zip(parts, changes, strict=True)):
                x = streams[index] + c[2] * nn.Dense(WIDTH)(part)
                fed = nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(changed(x, *c[3:5]))))
                streams[index] = x + c[5] * fed
        return nn.Dense(latents.shape[-1])(streams[0])


def velocity(apply: Callable[..., Any], inputs: tuple[Array, ...], noise: Array) -> Array:
    """Rectified flow: from noise straight to the image."""
    latents, text = inputs
    at, drawn = jax.random.split(noise)
    time = jax.random.uniform(at, (latents.shape[0],))
    drawn = jax.random.normal(drawn, latents.shape)
    mixed = (1 - time[:, None, None]) * latents + time[:, None, None] * drawn
    return jnp.mean((apply(mixed, text, time) - (drawn - latents)) ** 2)


# Graphs


class GraphNetwork(nn.Module):
    """Messages along edges, summed at nodes, and a sum over the graph."""

    @nn.compact
    def __call__(self, nodes: Array, edges: Array | None = None) -> Array:
        edges = graph_edges() if edges is None else edges
        sender, receiver = edges[:, 0], edges[:, 1]
        x = nn.Dense(WIDTH)(nodes)
        messages = jnp.zeros((edges.shape[0], WIDTH))
        for _ in range(2):
            both = jnp.concatenate([messages, x[sender], x[receiver]], -1)
            messages = messages + nn.LayerNorm()(nn.Dense(WIDTH)(nn.relu(nn.Dense(WIDTH)(both))))
            heard = jax.ops.segment_sum(messages, receiver, num_segments=nodes.shape[0])
            said = jax.ops.segment_sum(messages, sender, num_segments=nodes.shape[0])
            x = x + nn.LayerNorm()(nn.Dense(WIDTH)(jnp.concatenate([x, heard, said], -1)))
        return nn.Dense(1)(x) + nn.Dense(1)(jnp.mean(x, 0))


def graph_edges() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 64, (256, 2)).astype(np.int32)


def node_values(apply: Callable[..., Any], inputs: tuple[Array, ...], noise: Array) -> Array:
    del noise
    nodes, edges = inputs
    return jnp.mean((apply(nodes, edges) - jnp.sum(nodes, -1, keepdims=True)) ** 2)


# Reinforcement learning


def rollouts_and_updates() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """PPO: environments run in a scan, advantages run back, then minibatches in shuffled order."""
    environments, length, features, actions = 32, 4, 8, 4

    class Policy(nn.Module):
        @nn.compact
        def __call__(self, seen: Array) -> tuple[Array, Array]:
            x = nn.tanh(nn.Dense(WIDTH)(seen))
            return nn.Dense(actions)(x), nn.Dense(1)(nn.tanh(nn.Dense(WIDTH)(seen)))[..., 0]

    policy = Policy()
    seen = numbers(environments, features)
    parameters = drawn(jax.eval_shape(policy.init, jax.random.key(1), seen))
    world = numbers(actions, features)

    def log_likelihood(mean: Array, action: Array) -> Array:
        return -0.5 * jnp.sum((action - mean) ** 2, -1)

    def loss(p: Tree, batch: tuple[Array, ...]) -> Array:
        seen, action, before, advantage, target = batch
        mean, value = policy.apply(p, seen)
        ratio = jnp.exp(log_likelihood(mean, action) - before)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        gain = jnp.minimum(ratio * advantage, clipped * advantage)
        return jnp.mean(0.5 * (value - target) ** 2) - jnp.mean(gain)

    def step(p: Tree, state: Tree, world: Array, seen: Array, key: Array) -> Tree:
        acting, order = jax.random.split(jax.random.wrap_key_data(key))

        def act(seen: Array, key: Array) -> tuple[Array, tuple[Array, ...]]:
            mean, value = policy.apply(p, seen)
            action = mean + jax.random.normal(key, mean.shape)
            after = 0.9 * seen + 0.1 * jnp.tanh(action @ world)
            reward = -jnp.mean(after**2, -1)
            return after, (seen, action, log_likelihood(mean, action), value, reward)

        last, trail = jax.lax.scan(act, seen, jax.random.split(acting, length))
        _, _, _, values, rewards = trail
        following = jnp.concatenate([values[1:], policy.apply(p, last)[1][None]])

        def back(ahead: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
            reward, value, after = now
            ahead = reward + 0.9 * after - value + 0.8 * ahead
            return ahead, ahead

        _, advantages = jax.lax.scan(
            back, jnp.zeros(environments), (rewards, values, following), reverse=True
        )
        batch = (*trail[:3], advantages, advantages + values)
        flat = jax.tree.map(lambda x: x.reshape(length * environments, *x.shape[2:]), batch)
        order = jax.random.permutation(order, length * environments).reshape(4, -1)

        def learn(carry: Tree, chosen: Array) -> tuple[Tree, Array]:
            p, state = carry
            value, gradients = jax.value_and_grad(loss)(p, jax.tree.map(lambda x: x[chosen], flat))
            updates, state = OPTIMIZER.update(gradients, state, p)
            return (optax.apply_updates(p, updates), state), value

        (p, state), losses = jax.lax.scan(learn, (p, state), order)
        return p, state, last, losses

    key = np.array([0, 3], np.uint32)
    return step, (parameters, start(parameters), world, seen, key)


FAMILIES = (
    Family("encoder", ("bert_",), lambda: train_step(Encoder(), masked_words, words(8, TOKENS))),
    Family(
        "decoder",
        ("llama2_7b_hf.", "llama2_7b_unrolled_", "qwen2_"),
        lambda: next_words_of(Decoder((DecoderLayer(), DecoderLayer()))),
    ),
    Family(
        "scanned_decoder",
        ("llama2_7b_scan_", "gpt3_175b_scan_"),
        lambda: next_words_of(ScannedDecoder()),
    ),
    Family(
        "windows_and_caps",
        ("gemma3_12b_gm.train",),
        lambda: next_words_of(Decoder((DecoderLayer(4, 5.0, True), DecoderLayer(0, 5.0, True)))),
    ),
    Family("decoding", ("gemma3_12b_gm.decode",), one_more_token),
    Family(
        "parallel_layers",
        ("gptj_", "gpt2_"),
        lambda: next_words_of(Decoder((ParallelLayer(), ParallelLayer()))),
    ),
    Family("experts", ("mixtral_",), lambda: next_words_of(Decoder((ExpertLayer(),)))),
    Family(
        "gated_recurrence",
        ("griffin_",),
        lambda: next_words_of(Decoder((GatedRecurrence(), DecoderLayer(4)))),
    ),
    Family(
        "delta_rule", ("qwen35_",), lambda: next_words_of(Decoder((DeltaRule(), DecoderLayer())))
    ),
    Family("residual_network", ("resnet50_",), lambda: image_classes_of(ResNet())),
    Family("vision_transformer", ("vit_",), lambda: image_classes_of(VisionTransformer())),
    Family(
        "diffusion",
        ("sd3_",),
        lambda: train_step(TwoStreams(), velocity, numbers(8, 16, 8), numbers(8, 4, WIDTH)),
    ),
    Family(
        "graph_network",
        ("gnn_",),
        lambda: train_step(GraphNetwork(), node_values, numbers(64, 8), graph_edges()),
    ),
    Family("reinforcement_learning", ("ppo_",), rollouts_and_updates),
)
