"""Small networks whose train steps are cut as those of large ones are."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.generator import Generator
from fuzz.programs import Program

_IMAGES = "('NHWC', 'HWIO', 'NHWC')"


def convolutional_network(random: np.random.Generator) -> Program:
    """One to three convolutions with pools and norms between; few images, so that these are cut."""
    make = Generator(random, (8,), budget=16384, differentiated=True)
    batch = make.choice([1, 1, 1, 2, 4, 8])
    size = make.choice([8, 16, 16, 32])
    features = make.choice([2, 4, 8])
    x = make.argument((batch, size, size, features), low=-2, high=2)
    for number in range(make.integer(1, 3)):
        x = _convolution(make, x)
        x = _between(make, x)
        if number == 0 and make.chance(0.2):
            x = _upsampled(make, x)
    outputs = [x]
    if make.chance(0.5):
        outputs = [_head(make, x)]
    return make.finished(outputs, "network", make.choice(["gradient", "train_step"]))


def _emit(make: Generator, template: str, operands: list[str], **parameters: Any) -> str:
    return make.emit(template, operands, parameters, bound=100, exact=False)[0]


def _convolution(make: Generator, x: str) -> str:
    *_, features = make.kinds[x].shape
    window = make.choice([1, 2, 3, 3, 3, 5])
    groups = make.choice([1, 1, 1, features])
    made = features if groups > 1 else make.choice([features, 4, 8])
    w = make.argument((window, window, features // groups, made), low=-1, high=1)
    padding = make.choice(["SAME", "SAME", "VALID", ((1, 0), (0, 1)), ((2, 2), (1, 1))])
    strides = (make.choice([1, 1, 2]),) * 2
    dilation = (make.choice([1, 1, 1, 2]),) * 2
    if min(make.kinds[x].shape[1:3]) <= 2 * window:
        padding, dilation = "SAME", (1, 1)
    template = (
        "lax.conv_general_dilated({0}, {1}, {strides}, {padding}, rhs_dilation={dilation},"
        f" dimension_numbers={_IMAGES}, feature_group_count={{groups}})"
    )
    options = dict(strides=strides, padding=padding, dilation=dilation, groups=groups)
    return _emit(make, template, [x, w], **options)


def _between(make: Generator, x: str) -> str:
    choice = make.integer(0, 5)
    if choice == 0:
        bias = make.argument(make.kinds[x].shape[-1:])
        return _emit(make, "jax.nn.relu({0} + {1})", [x, bias])
    if choice == 1:
        return _emit(make, "batch_norm(jax.nn.relu({0}), (0, 1, 2))", [x])
    if choice == 2 and min(make.kinds[x].shape[1:3]) >= 4:
        options = dict(
            size=(1, 3, 3, 1), stride=(1, 2, 2, 1), padding=make.choice(["SAME", "VALID"])
        )
        template = "lax.reduce_window({0}, -jnp.inf, lax.max, {size}, {stride}, {padding})"
        return _emit(make, template, [x], **options)
    if choice == 3 and min(make.kinds[x].shape[1:3]) >= 4:
        template = "lax.reduce_window({0}, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID') / 4"
        return _emit(make, template, [x])
    return _emit(make, make.choice(["jnp.tanh({0} / 4)", "jax.nn.relu({0})"]), [x])


def _upsampled(make: Generator, x: str) -> str:
    return _emit(make, "jnp.repeat(jnp.repeat({0}, 2, axis=1), 2, axis=2)", [x])


def _head(make: Generator, x: str) -> str:
    classes = make.choice([2, 8, 10])
    w = make.argument((make.kinds[x].shape[-1], classes))
    y = _emit(make, "jnp.mean({0}, axis=(1, 2)) @ {1}", [x, w])
    labels = make.argument(make.kinds[y].shape[:1], "int32", 0, classes - 1)
    return _emit(make, "cross_entropy({0}, {1})", [y, labels])


def transformer(random: np.random.Generator) -> Program:
    """Embedding, one or two blocks (perhaps a scan over them), logits and cross entropy."""
    make = Generator(random, (8,), budget=16384, differentiated=True)
    batch, length = make.choice([2, 4, 8]), make.choice([8, 16])
    heads, width = make.choice([2, 4, 8]), make.choice([2, 4])
    model, words = heads * width, make.choice([16, 30, 64])
    table = make.argument((words, model), low=-2, high=2)
    tokens = make.argument((batch, length), "int32", 0, words - 1)
    x = _emit(make, "jnp.take({0}, {1}, axis=0)", [table, tokens])
    if make.chance(0.4):
        x = _scanned_blocks(make, x, heads, width)
    else:
        for _ in range(make.integer(1, 2)):
            x = _block(make, x, heads, width)
    logits = _emit(make, "{0} @ {1}.T", [x, table])
    labels = make.argument((batch, length), "int32", 0, words - 1)
    loss = _emit(make, "cross_entropy({0}, {1})", [logits, labels])
    return make.finished([loss], "network", make.choice(["gradient", "train_step"]))


def _weights(heads: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the norm's scale, of the projections in and out, and of the wide layer."""
    model = heads * width
    projections = (model, 3, heads, width), (heads, width, model)
    return (model,), *projections, (model, 2 * model), (2 * model, model)


def _block(make: Generator, x: str, heads: int, width: int) -> str:
    weights = [make.argument(shape, low=-1, high=1) for shape in _weights(heads, width)]
    return _block_of(make, x, weights)


def _block_of(make: Generator, x: str, weights: list[str]) -> str:
    scale, projection, out, up, down = weights
    y = _emit(make, "layer_norm({0}, {1})", [x, scale])
    qkv = _emit(make, "jnp.einsum('btm,mchd->cbthd', {0}, {1}) / 4", [y, projection])
    causal = make.chance(0.7)
    function = make.choice(["attention", "jax.nn.dot_product_attention"])
    template = f"{function}({{0}}[0], {{0}}[1], {{0}}[2], is_causal={{is_causal}})"
    mixed = _emit(make, template, [qkv], is_causal=causal)
    x = _emit(make, "{0} + jnp.einsum('bthd,hdm->btm', {1}, {2}) / 4", [x, mixed, out])
    hidden = _emit(make, "jax.nn.gelu(layer_norm({0}, {1}) @ {2} / 4)", [x, scale, up])
    return _emit(make, "{0} + {1} @ {2} / 4", [x, hidden, down])


def _scanned_blocks(make: Generator, x: str, heads: int, width: int) -> str:
    layers = make.choice([2, 4])
    shapes = [(layers, *shape) for shape in _weights(heads, width)]
    weights = [make.argument(shape, low=-1, high=1) for shape in shapes]
    kinds = [make.kinds[x], *(make.kinds[it] for it in weights)]
    inner = make.body([kinds[0], *(type(it)(it.shape[1:], it.dtype) for it in kinds[1:])])
    inner.budget = make.budget
    names = [argument.name for argument in inner.arguments]
    body = inner.finished([_block_of(inner, names[0], names[1:])])
    places = "".join(f"{{{number + 1}}}, " for number in range(len(weights)))
    template = f"scan({{body}}, ({{0}},), ({places}), (), {layers}, False, 1, {{remat}})[0]"
    return _emit(make, template, [x, *weights], body=body, remat=make.chance(0.4))
