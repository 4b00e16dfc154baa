"""Steps as their users write them, in families that no other program here has: networks.

Each is a whole step on one device, lowered from shapes alone: U-Net, Mixer, VAE, WaveNet, a graph
attention network, a recommender, a Fourier operator and an LSTM that translates. ``tiny`` is the
same program at sizes that run on a CPU. Language models are in ``written_language.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.programs.storage import Case, spec, train
from bench.programs.written_language import LANGUAGE


def _key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def _cross_entropy(logits: Any, labels: Any) -> Any:
    logits = logits.astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


# Images


def unet(tiny: bool = False) -> Case:
    """A denoising U-Net of flax linen with attention at low resolution, and a moving average."""
    from flax import linen as nn

    width, batch, side = (32, 8, 16) if tiny else (192, 320, 64)
    half = jnp.bfloat16

    class Block(nn.Module):
        features: int

        @nn.compact
        def __call__(self, x: Any, time: Any) -> Any:
            y = nn.swish(nn.GroupNorm(32, dtype=half)(x))
            y = nn.Conv(self.features, (3, 3), dtype=half)(y)
            y = y + nn.Dense(self.features, dtype=half)(nn.swish(time))[:, None, None]
            y = nn.swish(nn.GroupNorm(32, dtype=half)(y))
            y = nn.Conv(self.features, (3, 3), dtype=half)(y)
            if x.shape[-1] != self.features:
                x = nn.Conv(self.features, (1, 1), dtype=half)(x)
            return x + y

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            b, h, w, c = x.shape
            y = nn.GroupNorm(32, dtype=half)(x).reshape(b, h * w, c)
            y = nn.MultiHeadDotProductAttention(c // 32 if tiny else c // 64, dtype=half)(y, y)
            return x + y.reshape(x.shape)

    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x: Any, t: Any) -> Any:
            rate = jnp.exp(-jnp.arange(width // 2) / (width // 2) * math.log(1e4))
            angle = t[:, None].astype(jnp.float32) * rate
            time = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
            time = nn.Dense(4 * width)(nn.swish(nn.Dense(4 * width)(time)))
            x = nn.Conv(width, (3, 3), dtype=half)(x)
            kept = [x]
            levels = (1, 2, 3)
            for level, times in enumerate(levels):
                for _ in range(2):
                    x = Block(times * width)(x, time)
                    x = Attention()(x) if level else x
                    kept.append(x)
                if level < len(levels) - 1:
                    x = nn.Conv(times * width, (3, 3), strides=(2, 2), dtype=half)(x)
                    kept.append(x)
            x = Block(x.shape[-1])(Attention()(Block(x.shape[-1])(x, time)), time)
            for level, times in reversed(list(enumerate(levels))):
                for _ in range(3):
                    x = Block(times * width)(jnp.concatenate([x, kept.pop()], axis=-1), time)
                    x = Attention()(x) if level else x
                if level:
                    b, h, w, c = x.shape
                    x = jax.image.resize(x, (b, 2 * h, 2 * w, c), "nearest")
                    x = nn.Conv(c, (3, 3), dtype=half)(x)
            return nn.Conv(3, (3, 3))(nn.swish(nn.GroupNorm(32)(x)))

    model = UNet()
    images, times = spec(batch, side, side, 3), spec(batch, dtype=jnp.int32)
    params = jax.eval_shape(model.init, _key(), images, times)["params"]
    optimizer = optax.adamw(1e-4)

    def step(params: Any, average: Any, state: Any, key: Any, images: Any) -> Any:
        time_key, noise_key = jax.random.split(key)
        t = jax.random.randint(time_key, (batch,), 0, 1000)
        noise = jax.random.normal(noise_key, images.shape)
        kept = jnp.cos(t / 1000 * jnp.pi / 2)[:, None, None, None]
        noisy = kept * images + jnp.sqrt(1 - kept**2) * noise

        def loss(params: Any) -> Any:
            return jnp.mean(jnp.square(model.apply({"params": params}, noisy, t) - noise))

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda a, p: 0.9999 * a + 0.0001 * p, average, params)
        return params, average, state, value

    state = jax.eval_shape(optimizer.init, params)
    return step, (params, params, state, _key(), images), (0, 1, 2)


def mixer(tiny: bool = False) -> Case:
    """MLP-Mixer L/16 of flax nnx, 8 of 24 layers: tokens and channels mixed in turn."""
    from flax import nnx

    width, layers, side, batch = (64, 2, 32, 8) if tiny else (1024, 8, 224, 768)
    tokens = (side // 16) ** 2

    class Layer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            half = {"dtype": jnp.bfloat16, "rngs": rngs}
            self.norms = nnx.List([nnx.LayerNorm(width, **half) for _ in range(2)])
            self.tokens_in = nnx.Linear(tokens, width // 2, **half)
            self.tokens_out = nnx.Linear(width // 2, tokens, **half)
            self.channels_in = nnx.Linear(width, 4 * width, **half)
            self.channels_out = nnx.Linear(4 * width, width, **half)

        def __call__(self, x: Any) -> Any:
            y = jnp.swapaxes(self.norms[0](x), 1, 2)
            x = x + jnp.swapaxes(self.tokens_out(nnx.gelu(self.tokens_in(y))), 1, 2)
            return x + self.channels_out(nnx.gelu(self.channels_in(self.norms[1](x))))

    class Mixer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.stem = nnx.Conv(3, width, (16, 16), strides=16, dtype=jnp.bfloat16, rngs=rngs)
            self.layers = nnx.List([Layer(rngs) for _ in range(layers)])
            self.norm = nnx.LayerNorm(width, rngs=rngs)
            self.head = nnx.Linear(width, 1000, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = self.stem(x)
            x = x.reshape(x.shape[0], -1, x.shape[-1])
            for layer in self.layers:
                x = layer(x)
            return self.head(jnp.mean(self.norm(x), axis=1))

    graph, params = nnx.split(nnx.eval_shape(lambda: Mixer(nnx.Rngs(0))), nnx.Param)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return _cross_entropy(nnx.merge(graph, params)(images), labels)

    images, labels = spec(batch, side, side, 3), spec(batch, dtype=jnp.int32)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return train(loss, params, images, labels, optimizer=optimizer)


def vae(tiny: bool = False) -> Case:
    """A variational autoencoder of convolutions and transposed ones, in float32."""
    from flax import linen as nn

    widths, side, batch = ((8, 16, 16), 16, 8) if tiny else ((128, 256, 512), 128, 496)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, key: Any) -> Any:
            image = x
            for width in widths:
                x = nn.leaky_relu(nn.Conv(width, (4, 4), strides=(2, 2))(x))
                x = x + nn.Conv(width, (1, 1))(nn.relu(nn.Conv(width, (3, 3))(x)))
            shape = x.shape
            x = x.reshape(shape[0], -1)
            mean, spread = nn.Dense(256)(x), nn.Dense(256)(x)
            z = mean + jnp.exp(0.5 * spread) * jax.random.normal(key, mean.shape)
            x = nn.Dense(math.prod(shape[1:]))(z).reshape(shape)
            for width in (*widths[-2::-1], 3):
                x = x + nn.Conv(x.shape[-1], (1, 1))(nn.relu(nn.Conv(x.shape[-1], (3, 3))(x)))
                x = nn.leaky_relu(nn.ConvTranspose(width, (4, 4), strides=(2, 2))(x))
            divergence = -0.5 * jnp.sum(1 + spread - mean**2 - jnp.exp(spread), axis=-1)
            return jnp.mean(jnp.sum((x - image) ** 2, axis=(1, 2, 3)) + divergence)

    model, images = Model(), spec(batch, side, side, 3)
    params = jax.eval_shape(model.init, _key(), images, _key())

    def loss(params: Any, key: Any, images: Any) -> Any:
        return model.apply(params, images, key)

    return train(loss, params, _key(), images)


# Sequences


def wavenet(tiny: bool = False) -> Case:
    """WaveNet: gated causal convolutions of growing dilation over samples of sound."""
    width, skip, depth, samples, batch = (16, 16, 4, 64, 8) if tiny else (256, 512, 10, 8000, 56)
    weight = {
        "gate": spec(2, width, 2 * width),
        "bias": spec(2 * width),
        "out": spec(width, width),
        "skip": spec(width, skip),
    }
    params = {
        "embed": spec(256, width),
        "layers": [weight] * (2 * depth),
        "head": [spec(skip, skip), spec(skip, 256)],
    }

    def loss(params: Any, sound: Any) -> Any:
        x = params["embed"].astype(jnp.bfloat16)[sound]
        skipped = jnp.zeros((*sound.shape, skip), jnp.bfloat16)
        for index, layer in enumerate(params["layers"]):
            dilation = 2 ** (index % depth)
            y = jax.lax.conv_general_dilated(
                x,
                layer["gate"].astype(x.dtype),
                (1,),
                [(dilation, 0)],
                rhs_dilation=(dilation,),
                dimension_numbers=("NWC", "WIO", "NWC"),
            )
            content, gate = jnp.split(y + layer["bias"].astype(x.dtype), 2, axis=-1)
            y = jnp.tanh(content) * jax.nn.sigmoid(gate)
            skipped = skipped + y @ layer["skip"].astype(x.dtype)
            x = x + y @ layer["out"].astype(x.dtype)
        for head in params["head"]:
            skipped = jax.nn.relu(skipped) @ head.astype(x.dtype)
        return _cross_entropy(skipped[:, :-1], sound[:, 1:])

    return train(loss, params, spec(batch, samples, dtype=jnp.int32))


def translate(tiny: bool = False) -> Case:
    """LSTMs of flax linen that translate with teacher forcing: two layers, attention, Adam."""
    from flax import linen as nn

    width, words, length, batch = (32, 97, 8, 8) if tiny else (1024, 32003, 60, 1016)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, source: Any, target: Any) -> Any:
            x = nn.Embed(words, width)(source)
            forward = nn.RNN(nn.OptimizedLSTMCell(width))(x)
            backward = nn.RNN(nn.OptimizedLSTMCell(width), reverse=True, keep_order=True)(x)
            memory = nn.Dense(width)(jnp.concatenate([forward, backward], axis=-1))
            y = nn.Embed(words, width)(target)
            for _ in range(2):
                y = y + nn.RNN(nn.OptimizedLSTMCell(width))(y)
            weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", nn.Dense(width)(y), memory))
            context = jnp.einsum("bts,bsd->btd", weights, memory)
            y = jnp.tanh(nn.Dense(width)(jnp.concatenate([y, context], axis=-1)))
            return nn.Dense(words)(y)

    model, tokens = Model(), spec(batch, length, dtype=jnp.int32)
    params = jax.eval_shape(model.init, _key(), tokens, tokens)

    def loss(params: Any, source: Any, target: Any) -> Any:
        logits = model.apply(params, source, target[:, :-1])
        return _cross_entropy(logits, target[:, 1:])

    optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(1e-3))
    return train(loss, params, tokens, tokens, optimizer=optimizer)


# Graphs, tables, fields


def graph_attention(tiny: bool = False) -> Case:
    """A graph attention network: softmax over the edges of a node by segments, 12 heads."""
    nodes, edges, heads, dim = (40, 160, 3, 4) if tiny else (169344, 2332480, 12, 32)
    width, features, classes = heads * dim, 16 if tiny else 128, 5 if tiny else 40
    layer = {"w": spec(width, heads, dim), "to": spec(heads, dim), "of": spec(heads, dim)}
    params = {"in": spec(features, width), "layers": [layer] * 3, "out": spec(width, classes)}

    def loss(params: Any, x: Any, senders: Any, receivers: Any, labels: Any) -> Any:
        x = jax.nn.elu(x @ params["in"])
        for layer in params["layers"]:
            h = jnp.einsum("nf,fhd->nhd", x, layer["w"])
            to, of = jnp.sum(h * layer["to"], -1), jnp.sum(h * layer["of"], -1)
            scores = jax.nn.leaky_relu(to[receivers] + of[senders], 0.2)
            most = jax.ops.segment_max(scores, receivers, nodes)
            weights = jnp.exp(scores - jax.lax.stop_gradient(most)[receivers])
            total = jax.ops.segment_sum(weights, receivers, nodes)
            weights = weights / (total[receivers] + 1e-9)
            sent = jax.ops.segment_sum(h[senders] * weights[..., None], receivers, nodes)
            x = x + jax.nn.elu(sent.reshape(nodes, width))
        return _cross_entropy(x @ params["out"], labels)

    ends = spec(edges, dtype=jnp.int32)
    return train(loss, params, spec(nodes, features), ends, ends, spec(nodes, dtype=jnp.int32))


def recommender(tiny: bool = False) -> Case:
    """A recommender: tables of many sizes, dots of all pairs of features, Adagrad."""
    dim, batch = (8, 16) if tiny else (128, 65536)
    sizes = (64, 48, 40, 3) if tiny else (9_980_928, 4_000_000, 2_500_000, 285_000, 39_043, 1_543)
    sizes = (*sizes, *([16] if tiny else [7424, 20144, 633, 36, 105, 11, 976, 14, 108]))
    dense = (13, 16, dim) if tiny else (13, 512, 256, dim)
    count = len(sizes) + 1
    top = (dim + count * (count - 1) // 2, *((16,) if tiny else (1024, 1024, 512)), 1)

    def layers(widths: tuple[int, ...]) -> Any:
        pairs = itertools.pairwise(widths)
        return [{"w": spec(one, other), "b": spec(other)} for one, other in pairs]

    params = {
        "tables": {f"table_{i}": spec(rows, dim) for i, rows in enumerate(sizes)},
        "bottom": layers(dense),
        "top": layers(top),
    }

    def feed(layers: Any, x: Any, last: bool) -> Any:
        for index, layer in enumerate(layers):
            x = x @ layer["w"] + layer["b"]
            x = jax.nn.relu(x) if last or index < len(layers) - 1 else x
        return x

    def loss(params: Any, numbers: Any, categories: Any, clicked: Any) -> Any:
        x = feed(params["bottom"], numbers, True)
        rows = [params["tables"][f"table_{i}"][categories[:, i]] for i in range(len(sizes))]
        together = jnp.stack([x, *rows], axis=1)
        dots = jnp.einsum("bid,bjd->bij", together, together)
        pairs = dots[:, *jnp.tril_indices(count, -1)]
        logits = feed(params["top"], jnp.concatenate([x, pairs], axis=1), False)[:, 0]
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, clicked))

    categories = spec(batch, len(sizes), dtype=jnp.int32)
    batches = (spec(batch, 13), categories, spec(batch))
    return train(loss, params, *batches, optimizer=optax.adagrad(1e-2))


def fourier(tiny: bool = False) -> Case:
    """A Fourier neural operator: transforms of a field, complex weights on its low modes."""
    side, modes, width, batch = (16, 4, 8, 8) if tiny else (256, 32, 128, 120)
    layer = {
        "low": spec(width, width, modes, modes, dtype=jnp.complex64),
        "high": spec(width, width, modes, modes, dtype=jnp.complex64),
        "w": spec(width, width),
        "b": spec(width),
    }
    params = {"in": spec(3, width), "layers": [layer] * 4, "out": spec(width, 1)}

    def loss(params: Any, field: Any, after: Any) -> Any:
        x = field @ params["in"]
        for layer in params["layers"]:
            waves = jnp.fft.rfft2(x, axes=(1, 2))
            low = jnp.einsum("bxyi,ioxy->bxyo", waves[:, :modes, :modes], layer["low"])
            high = jnp.einsum("bxyi,ioxy->bxyo", waves[:, -modes:, :modes], layer["high"])
            out = jnp.zeros_like(waves).at[:, :modes, :modes].set(low)
            out = out.at[:, -modes:, :modes].set(high)
            x = jax.nn.gelu(jnp.fft.irfft2(out, axes=(1, 2)) + x @ layer["w"] + layer["b"])
        found = (x @ params["out"])[..., 0]
        return jnp.mean(jnp.square(found - after))

    return train(loss, params, spec(batch, side, side, 3), spec(batch, side, side))


WRITTEN: dict[str, Callable[..., Case]] = {
    "unet": unet,
    "mlp-mixer": mixer,
    "vae": vae,
    "wavenet": wavenet,
    "lstm translation": translate,
    "graph attention": graph_attention,
    "recommender": recommender,
    "fourier operator": fourier,
    **LANGUAGE,
}
"""By name; each takes ``tiny``."""
