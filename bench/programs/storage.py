"""Programs whose memory `bench/truth/storage.py` compares: small to compile, large in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Case = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
"""A function, shapes of its arguments, and which of them are donated."""

BATCH, SEQUENCE, WIDTH, HEADS, VOCABULARY = 16, 1024, 1024, 8, 16384


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def train(
    loss: Callable[..., Any], params: Any, *batch: Any, optimizer: Any = None, donate: bool = True
) -> Case:
    """A training step: gradients, optimizer, new parameters and state."""
    optimizer = optimizer or optax.adam(1e-3)

    def step(params: Any, state: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state = jax.eval_shape(optimizer.init, params)
    return step, (params, state, *batch), (0, 1) if donate else ()


# Layers


def mlp_params(layers: int, width: int) -> Any:
    return [{"w": spec(width, width), "b": spec(width)} for _ in range(layers)]


def mlp(params: Any, x: Any, *, act: Any = jax.nn.relu, dtype: Any = jnp.float32) -> Any:
    x = x.astype(dtype)
    for layer in params:
        x = act(x @ layer["w"].astype(dtype) + layer["b"].astype(dtype))
    return x


def mlp_loss(params: Any, x: Any, y: Any, **more: Any) -> Any:
    return jnp.mean((mlp(params, x, **more).astype(jnp.float32) - y) ** 2)


def block_params(width: int = WIDTH, layers: int = 0) -> Any:
    lead = (layers,) if layers else ()
    return {
        "ln1": spec(*lead, width),
        "ln2": spec(*lead, width),
        "qkv": spec(*lead, width, 3, HEADS, width // HEADS),
        "out": spec(*lead, HEADS, width // HEADS, width),
        "up": spec(*lead, width, 4 * width),
        "down": spec(*lead, 4 * width, width),
    }


def norm(x: Any, scale: Any) -> Any:
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)


def block(params: Any, x: Any) -> Any:
    """Pre-norm attention and MLP; x of (batch, sequence, width)."""
    dtype = x.dtype
    h = norm(x, params["ln1"])
    q, k, v = jnp.einsum("bsd,dthe->tbhse", h, params["qkv"].astype(dtype))
    scores = jnp.einsum("bhse,bhte->bhst", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(dtype)
    h = jnp.einsum("bhst,bhte->bhse", weights, v)
    x = x + jnp.einsum("bhse,hed->bsd", h, params["out"].astype(dtype))
    h = jax.nn.gelu(norm(x, params["ln2"]) @ params["up"].astype(dtype))
    return x + h @ params["down"].astype(dtype)


def llama_params(layers: int = 0) -> Any:
    lead = (layers,) if layers else ()
    square = {name: spec(*lead, WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    wide = {name: spec(*lead, WIDTH, 3 * WIDTH) for name in ("gate", "up")}
    norms = {name: spec(*lead, WIDTH) for name in ("ln1", "ln2")}
    return {**square, **wide, **norms, "down": spec(*lead, 3 * WIDTH, WIDTH)}


def rotate(x: Any) -> Any:
    """Rotary position embedding of (batch, sequence, heads, channels)."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 10000 ** (jnp.arange(half) / half)
    cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def llama_block(params: Any, x: Any) -> Any:
    """Rotary attention and a gated MLP."""
    batch, sequence, width = x.shape
    heads = (batch, sequence, HEADS, width // HEADS)
    h = norm(x, params["ln1"])
    q, k, v = ((h @ params[name].astype(x.dtype)).reshape(heads) for name in ("q", "k", "v"))
    scores = jnp.einsum("bshe,bthe->bhst", rotate(q), rotate(k)) / heads[-1] ** 0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jnp.where(mask, scores.astype(jnp.float32), -1e9)
    weights = jax.nn.softmax(scores, -1).astype(x.dtype)
    h = jnp.einsum("bhst,bthe->bshe", weights, v).reshape(x.shape)
    x = x + h @ params["out"].astype(x.dtype)
    h = norm(x, params["ln2"])
    gate = jax.nn.silu(h @ params["gate"].astype(x.dtype))
    return x + (gate * (h @ params["up"].astype(x.dtype))) @ params["down"].astype(x.dtype)


def model_params(layers: int, stacked: bool, block: Any = block_params) -> Any:
    blocks = block(layers=layers) if stacked else [block() for _ in range(layers)]
    tables = {"embed": spec(VOCABULARY, WIDTH), "head": spec(WIDTH, VOCABULARY)}
    return {**tables, "blocks": blocks, "ln": spec(WIDTH)}


def model_loss(
    params: Any,
    tokens: Any,
    *,
    stacked: bool,
    remat: bool = False,
    dtype: Any = jnp.bfloat16,
    block: Any = block,
) -> Any:
    x = params["embed"].astype(dtype)[tokens]
    apply = jax.checkpoint(block) if remat else block
    if stacked:
        x, _ = jax.lax.scan(lambda x, layer: (apply(layer, x), None), x, params["blocks"])
    else:
        for layer in params["blocks"]:
            x = apply(layer, x)
    logits = norm(x, params["ln"]) @ params["head"].astype(dtype)
    logits = logits[:, :-1].astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def model_train(
    layers: int,
    *,
    stacked: bool,
    remat: bool = False,
    dtype: Any = jnp.bfloat16,
    block: Any = block,
    **more: Any,
) -> Case:
    loss = functools.partial(model_loss, stacked=stacked, remat=remat, dtype=dtype, block=block)
    tokens = spec(BATCH, SEQUENCE, dtype=jnp.int32)
    params = model_params(layers, stacked, llama_params if block is llama_block else block_params)
    return train(loss, params, tokens, **more)


def conv(x: Any, w: Any, stride: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def conv_params(depth: int = 4, width: int = 128) -> Any:
    blocks = [
        {"c1": spec(3, 3, width, width), "c2": spec(3, 3, width, width), "s": spec(width)}
        for _ in range(depth)
    ]
    return {"stem": spec(3, 3, 128, width), "blocks": blocks, "head": spec(width, 1024)}


def convnet(params: Any, x: Any) -> Any:
    x = jax.nn.relu(conv(x, params["stem"], 2))
    for layer in params["blocks"]:
        h = jax.nn.relu(conv(x, layer["c1"]))
        h = conv(h, layer["c2"])
        mean, variance = h.mean((0, 1, 2)), h.var((0, 1, 2))
        h = (h - mean) * jax.lax.rsqrt(variance + 1e-5) * layer["s"]
        x = jax.nn.relu(x + h)
    return x.mean((1, 2)) @ params["head"]


def conv_loss(params: Any, x: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(convnet(params, x), y).mean()


def bottleneck_params(width: int, wide: int, inner: int) -> Any:
    """Parameters of a block from ``width`` to ``wide`` features: 3 convolutions, 1 beside them."""
    shapes = {
        "narrow": (1, 1, width, inner),
        "middle": (3, 3, inner, inner),
        "widen": (1, 1, inner, wide),
        "beside": (1, 1, width, wide),
    }
    return {
        name: {"w": spec(*shape), "gain": spec(shape[-1]), "shift": spec(shape[-1])}
        for name, shape in shapes.items()
    }


def resnet_params(stages: int = 4) -> Any:
    """Parameters of ResNet-50's stem and head, and of the first block of each of its stages."""
    blocks = [
        bottleneck_params(64 if stage == 0 else 128 << stage, 256 << stage, 64 << stage)
        for stage in range(stages)
    ]
    return {
        "stem": {"w": spec(7, 7, 3, 64), "gain": spec(64), "shift": spec(64)},
        "blocks": blocks,
        "head": spec(128 << stages, 1000),
    }


def resnet_loss(params: Any, x: Any, y: Any) -> Any:
    def normed(x: Any, p: Any, stride: int = 1) -> Any:
        x = conv(x, p["w"].astype(x.dtype), stride)
        wide = x.astype(jnp.float32)
        mean, variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
        scale = jax.lax.rsqrt(variance + 1e-5) * p["gain"]
        return ((wide - mean) * scale + p["shift"]).astype(x.dtype)

    x = jax.nn.relu(normed(x, params["stem"], 2))
    x = jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    )
    for number, p in enumerate(params["blocks"]):
        stride = 1 if number == 0 else 2
        h = jax.nn.relu(normed(x, p["narrow"], stride))
        h = normed(jax.nn.relu(normed(h, p["middle"])), p["widen"])
        x = jax.nn.relu(normed(x, p["beside"], stride) + h)
    logits = x.mean((1, 2)).astype(jnp.float32) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def decode(params: Any, cache: Any, x: Any, position: Any) -> Any:
    """One token through all layers with a cache of keys and values."""

    def layer(x: Any, both: Any) -> Any:
        params, (keys, values) = both
        h = norm(x, params["ln1"])
        q, k, v = jnp.einsum("bd,dthe->tbhe", h, params["qkv"].astype(x.dtype))
        keys = jax.lax.dynamic_update_slice(keys, k[:, :, None], (0, 0, position, 0))
        values = jax.lax.dynamic_update_slice(values, v[:, :, None], (0, 0, position, 0))
        scores = jax.nn.softmax(jnp.einsum("bhe,bhse->bhs", q, keys), -1)
        h = jnp.einsum("bhs,bhse->bhe", scores, values)
        x = x + jnp.einsum("bhe,hed->bd", h, params["out"].astype(x.dtype))
        h = jax.nn.gelu(norm(x, params["ln2"]) @ params["up"].astype(x.dtype))
        return x + h @ params["down"].astype(x.dtype), (keys, values)

    return jax.lax.scan(layer, x, (params, cache))


def _mlp(dtype: Any = jnp.float32, layers: int = 6, width: int = 2048, **more: Any) -> Case:
    act = more.pop("act", jax.nn.relu)
    loss = functools.partial(mlp_loss, act=act, dtype=dtype)
    x = spec(32768, width)
    return train(loss, mlp_params(layers, width), x, x, **more)


def _mlp_scan() -> Case:
    width, layers = 2048, 8
    params = {"w": spec(layers, width, width), "b": spec(layers, width)}

    def loss(params: Any, x: Any, y: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            return jnp.tanh(x @ p["w"] + p["b"]), None

        return jnp.mean((jax.lax.scan(layer, x, params)[0] - y) ** 2)

    return train(loss, params, spec(16384, width), spec(16384, width))


def feed_forward(*, remat: bool, layers: int = 4, tokens: int = 131072) -> Case:
    """Blocks of a transformer without their attention: cheap to compile, sizes of a 7B model."""
    width = 4096
    layer = {"norm": spec(width), "w_up": spec(width, 4 * width), "w_down": spec(4 * width, width)}

    def apply(p: Any, x: Any) -> Any:
        h = jax.nn.gelu(norm(x, p["norm"]) @ p["w_up"].astype(x.dtype))
        return x + h @ p["w_down"].astype(x.dtype)

    def loss(params: Any, x: Any, y: Any) -> Any:
        x = x.astype(jnp.bfloat16)
        for p in params:
            x = (jax.checkpoint(apply) if remat else apply)(p, x)
        return jnp.mean((x.astype(jnp.float32) - y) ** 2)

    return train(loss, [layer] * layers, spec(tokens, width), spec(tokens, width))


def _decode() -> Case:
    cache = tuple(spec(8, 32, HEADS, 4096, WIDTH // HEADS, dtype=jnp.bfloat16) for _ in range(2))
    x = spec(32, WIDTH, dtype=jnp.bfloat16)
    return decode, (block_params(layers=8), cache, x, spec(dtype=jnp.int32)), (1,)


def _clip() -> Any:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def _block_forward(dtype: Any) -> Case:
    x = spec(BATCH, SEQUENCE, WIDTH, dtype=dtype)
    return (
        (lambda p, x: [x := block(layer, x) for layer in p][-1]),
        (
            [block_params() for _ in range(2)],
            x,
        ),
        (),
    )


def _images() -> tuple[Any, Any]:
    return spec(64, 128, 128, 128), spec(64, dtype=jnp.int32)


CASES: dict[str, Callable[[], Case]] = {
    "mlp forward": lambda: (mlp, (mlp_params(6, 2048), spec(32768, 2048)), ()),
    "mlp sgd": lambda: _mlp(optimizer=optax.sgd(0.1)),
    "mlp adam": _mlp,
    "mlp adam, nothing donated": lambda: _mlp(donate=False),
    "mlp adam, bf16": lambda: _mlp(dtype=jnp.bfloat16),
    "mlp adam, gelu": lambda: _mlp(act=jax.nn.gelu),
    "mlp adam, wide": lambda: _mlp(layers=4, width=8192),
    "mlp adam, scan": _mlp_scan,
    "feed-forward adam": lambda: feed_forward(remat=False),
    "feed-forward adam, remat": lambda: feed_forward(remat=True),
    "block forward, bf16": lambda: _block_forward(jnp.bfloat16),
    "block forward, f32": lambda: _block_forward(jnp.float32),
    "transformer adam": lambda: model_train(4, stacked=False),
    "transformer adam, f32": lambda: model_train(3, stacked=False, dtype=jnp.float32),
    "transformer adam, remat": lambda: model_train(4, stacked=False, remat=True),
    "transformer adam, scan": lambda: model_train(8, stacked=True),
    "transformer adam, scan, remat": lambda: model_train(8, stacked=True, remat=True),
    "transformer adamw, clipped, scan, remat": lambda: model_train(
        8, stacked=True, remat=True, optimizer=_clip()
    ),
    "transformer adamw, clipped": lambda: model_train(3, stacked=False, optimizer=_clip()),
    "llama adam": lambda: model_train(3, stacked=False, block=llama_block),
    "llama adam, scan": lambda: model_train(8, stacked=True, block=llama_block),
    "llama adam, remat": lambda: model_train(3, stacked=False, remat=True, block=llama_block),
    "llama adam, scan, remat": lambda: model_train(8, stacked=True, remat=True, block=llama_block),
    "convnet forward": lambda: (convnet, (conv_params(), _images()[0]), ()),
    "convnet momentum": lambda: train(
        conv_loss, conv_params(), *_images(), optimizer=optax.sgd(0.1, momentum=0.9)
    ),
    "resnet momentum, 4 blocks": lambda: train(
        resnet_loss,
        resnet_params(),
        spec(2048, 224, 224, 3, dtype=jnp.bfloat16),
        spec(2048, dtype=jnp.int32),
        optimizer=optax.sgd(0.1, momentum=0.9),
    ),
    "decode, cache donated": _decode,
}
