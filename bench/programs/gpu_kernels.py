"""Small programs of one device whose kernels differ in kind: what runs on a GPU beside the model.

Shapes are those of published models on one of eight devices: rows that are no power of two, widths
that no vector of 16 bytes divides, windows, patches, channels one by one, experts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.programs.storage import spec

Program = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and the shapes of its arguments."""

BF16 = jnp.bfloat16


def half(*shape: int) -> jax.ShapeDtypeStruct:
    return spec(*shape, dtype=BF16)


def whole(*shape: int) -> jax.ShapeDtypeStruct:
    return spec(*shape, dtype=jnp.int32)


def gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Gradient of the sum of the function's squares by its first arguments."""

    def loss(*arrays: Any) -> Any:
        return jnp.sum(jnp.square(function(*arrays).astype(jnp.float32)))

    return jax.grad(loss, tuple(range(count)))


def attention(queries: Any, keys: Any, values: Any, *, masked: bool = False) -> Any:
    """Scores in the arrays' type, softmax in float32."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys).astype(jnp.float32)
    if masked:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    weights = jax.nn.softmax(scores, -1).astype(values.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values)


def kernel_attention(causal: bool, queries: Any, keys: Any, values: Any) -> Any:
    return jax.nn.dot_product_attention(
        queries, keys, values, is_causal=causal, implementation="cudnn"
    )


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype)


def layer_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, -1, keepdims=True)
    variance = jnp.mean((wide - mean) ** 2, -1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-6)).astype(x.dtype) * scale


def cross_entropy(x: Any, weight: Any, labels: Any) -> Any:
    logits = (x @ weight).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def convolution(stride: int, groups: int, x: Any, weight: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(
        x,
        weight,
        (stride,) * (x.ndim - 2),
        "SAME",
        dimension_numbers=dims,
        feature_group_count=groups,
    )


def embedding(table: Any, ids: Any) -> Any:
    return jnp.take(table.astype(BF16), ids, axis=0)


def along(scores: Any, places: Any) -> Any:
    """Scores by relative position, as DeBERTa takes them."""
    return jnp.take_along_axis(scores, jnp.broadcast_to(places % 512, scores.shape), axis=-1)


def adam(parameter: Any, mean: Any, square: Any, x: Any, dy: Any) -> Any:
    """The update of a weight by a product whose result lies transposed."""
    slope = jnp.einsum("tf,th->hf", x, dy).astype(jnp.float32).T
    mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope * slope
    return parameter - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), mean, square


def many(count: int, x: Any) -> Any:
    """Kernels that wait for each other and have next to nothing to do."""
    for _ in range(count):
        x = jax.lax.optimization_barrier(x * 1.001)
    return x


def experts(x: Any, weights: Any) -> Any:
    groups = weights.shape[0]
    sizes = np.full(groups, x.shape[0] // groups, np.int32)
    return jax.lax.ragged_dot(x, weights, jnp.asarray(sizes))


def best_experts(scores: Any) -> Any:
    return jax.lax.top_k(scores, 8)


def dropout(x: Any, seed: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.key(seed[0]), 0.9, x.shape)
    return jnp.where(kept, x / 0.9, 0).astype(x.dtype)


def _pallas() -> dict[str, Program]:
    from jax.experimental.pallas.ops.gpu import attention as kernels
    from jax.experimental.pallas.ops.gpu import softmax

    headed = (half(8, 2048, 16, 64),) * 3

    def mha(q: Any, k: Any, v: Any) -> Any:
        return kernels.mha(q, k, v, segment_ids=None, causal=True)

    return {
        "pallas attention": (mha, headed),
        "pallas attention, gradient": (gradient(mha, 3), headed),
        "pallas softmax": (softmax.softmax, (half(8192, 4096),)),
    }


def _products() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for width in (32000, 32008, 32004, 32002, 32001):
        operands = half(16384, 1024), half(1024, width)
        found[f"product into {width}"] = (jnp.matmul, operands)
        found[f"product over {width}"] = (jnp.matmul, (half(16384, width), half(width, 1024)))
        by_rows = (half(width, 1024), half(1024, 4096))
        found[f"product of {width} rows"] = (jnp.matmul, by_rows)
    for rows in (256, 1024, 4096):
        found[f"product {rows} x 4096 x 4096"] = (jnp.matmul, (half(rows, 4096), half(4096, 4096)))
    found["product in float32"] = (jnp.matmul, (spec(8192, 4096), spec(4096, 4096)))
    return found


def _attention() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for shape in ((256, 77, 8, 64), (64, 197, 12, 64), (4096, 49, 3, 32), (32, 512, 16, 64)):
        name = "attention " + "x".join(map(str, shape))
        found[name] = (attention, (half(*shape),) * 3)
        found[f"{name}, gradient"] = (gradient(attention, 3), (half(*shape),) * 3)
    for shape in ((8, 2048, 32, 128), (32, 512, 16, 64), (2, 8192, 32, 128)):
        name = "cudnn attention " + "x".join(map(str, shape))
        causal = partial(kernel_attention, True)
        found[name] = (causal, (half(*shape),) * 3)
        found[f"{name}, gradient"] = (gradient(causal, 3), (half(*shape),) * 3)
    found["cudnn attention, whole, gradient"] = (
        gradient(partial(kernel_attention, False), 3),
        (half(8, 2048, 32, 128),) * 3,
    )
    grouped = half(8, 2048, 32, 128), half(8, 2048, 8, 128), half(8, 2048, 8, 128)
    found["cudnn attention, grouped, gradient"] = (
        gradient(partial(kernel_attention, True), 3),
        grouped,
    )
    return found


def _rows() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for width in (49, 77, 128, 197, 512, 1024, 2048, 8192):
        rows = half(2**26 // width, width)
        found[f"softmax of {width}"] = (softmax, (rows,))
    for width in (77, 2048):
        rows = half(2**26 // width, width)
        found[f"softmax of {width}, gradient"] = (gradient(softmax, 1), (rows,))
    for width in (96, 384, 768, 1024, 4096):
        rows = half(2**25 // width, width), half(width)
        found[f"layer norm of {width}"] = (layer_norm, rows)
        found[f"layer norm of {width}, gradient"] = (gradient(layer_norm, 2), rows)
    for words in (32000, 50257, 31360, 32025):
        found[f"loss over {words}"] = (
            jax.grad(cross_entropy, (0, 1)),
            (half(8192, 1024), half(1024, words), whole(8192)),
        )
    return found


def _moves() -> dict[str, Program]:
    places = half(8, 12, 512, 512), whole(1, 1, 512, 512)
    weight = (spec(4096, 4096),) * 3
    found: dict[str, Program] = {
        "transpose in float32": (lambda x: x.T * 2, (spec(8192, 8192),)),
        "transpose": (lambda x: x.T * 2, (half(8192, 8192),)),
        "heads": (lambda x: jnp.swapaxes(x, 1, 2) * 2, (half(16, 2048, 16, 128),)),
        "adam": (adam, (*weight, half(1024, 4096), half(1024, 4096))),
        "along": (along, places),
        "along, gradient": (gradient(along, 1), places),
        "top 8 of 128": (best_experts, (spec(16384, 128),)),
        "sort": (lambda x: jnp.sort(x), (whole(2**20),)),
        "cumulated sum": (lambda x: jnp.cumsum(x, 0), (spec(16384, 128),)),
        "dropout": (dropout, (half(16384, 4096), whole(1))),
        "1000 kernels": (partial(many, 1000), (spec(2**18),)),
        "1000 tiny kernels": (partial(many, 1000), (spec(256),)),
    }
    for width in (256, 1024):
        tables = spec(50257, width), whole(16384)
        found[f"embedding of {width}"] = (embedding, tables)
        found[f"embedding of {width}, gradient"] = (gradient(embedding, 1), tables)
    for size in (14, 17, 20, 23, 26, 28):
        found[f"sum of 2^{size}"] = (jnp.add, (spec(2**size), spec(2**size)))
    for function in (jax.nn.gelu, jnp.exp, jnp.tanh, jax.lax.erf):
        found[f"{getattr(function, '__name__', 'erf')} of bfloat16"] = (function, (half(2**27),))
    return found


def _images() -> dict[str, Program]:
    found: dict[str, Program] = {}
    one_by_one = ((7, 56, 96), (7, 28, 192), (7, 14, 384), (7, 7, 768), (3, 56, 144), (5, 28, 240))
    for window, size, channels in one_by_one:
        case = partial(convolution, 1, channels)
        shapes = half(64, size, size, channels), half(window, window, 1, channels)
        name = f"depthwise {window}x{window} of {size}x{size}x{channels}"
        found[name] = (case, shapes)
        found[f"{name}, gradient"] = (gradient(case, 2), shapes)
    others = {
        "grouped 3x3": (1, 32, half(64, 28, 28, 256), half(3, 3, 8, 256)),
        "3x3": (1, 1, half(128, 28, 28, 128), half(3, 3, 128, 128)),
        "1x1": (1, 1, half(128, 28, 28, 512), half(1, 1, 512, 128)),
        "stem": (2, 1, half(128, 224, 224, 3), half(7, 7, 3, 64)),
        "patches of 4": (4, 1, half(64, 224, 224, 3), half(4, 4, 3, 96)),
        "patches of 16": (16, 1, half(64, 224, 224, 3), half(16, 16, 3, 1024)),
        "patches of 32": (32, 1, half(256, 224, 224, 3), half(32, 32, 3, 768)),
        "sounds": (5, 1, half(16, 80000, 1), half(10, 1, 512)),
        "longer sounds": (2, 1, half(16, 16000, 512), half(3, 512, 512)),
    }
    for name, (stride, groups, x, weight) in others.items():
        case = partial(convolution, stride, groups)
        found[f"convolution, {name}"] = (case, (x, weight))
        found[f"convolution, {name}, gradient"] = (gradient(case, 2), (x, weight))
    return found


def programs() -> dict[str, Program]:
    """All of them by name; those of Pallas need a JAX that has them."""
    mixture = half(32768, 2048), half(32, 2048, 768)
    return {
        **_products(),
        **_attention(),
        **_rows(),
        **_moves(),
        **_images(),
        "experts": (experts, mixture),
        "experts, gradient": (gradient(experts, 2), mixture),
        **_pallas(),
    }
