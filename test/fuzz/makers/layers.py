"""Parts of networks, and small linear algebra."""

from __future__ import annotations

from math import prod

from fuzz.generator import Generator, Unfit, maker


@maker(0.5)
def layer_norm(make: Generator) -> None:
    x = make.pick(dtypes=("float32",), rank=(2, 4), bound=8, nonempty=True)
    weight = make.argument(make.kinds[x].shape[-1:])
    make.emit("layer_norm({0}, {1})", [x, weight], bound=60, exact=False)


@maker(0.4)
def batch_norm(make: Generator) -> None:
    x = make.pick(dtypes=("float32",), rank=(2, 4), bound=8, nonempty=True)
    axes = tuple(range(make.kinds[x].rank - 1))
    make.emit("batch_norm({0}, {axes})", [x], dict(axes=axes), bound=60, exact=False)


@maker(0.5)
def softmax(make: Generator) -> None:
    x = make.pick(dtypes=("float32",), rank=(1, 4), nonempty=True)
    parameters = dict(axis=make.integer(0, make.kinds[x].rank - 1))
    function = make.choice(["jax.nn.softmax", "jax.nn.logsumexp", "jax.nn.log_softmax"])
    template = f"{function}(jnp.clip({{0}}, -3, 3), axis={{axis}})"
    make.emit(template, [x], parameters, bound=20, exact=False)


@maker(0.6)
def attention(make: Generator) -> None:
    batch, heads = make.choice([1, 2, 4, 8]), make.choice([1, 2, 4, 8])
    length, width = make.choice([4, 8, 16]), make.choice([2, 4, 8])
    shape = (batch, length, heads, width)
    if prod(shape) > make.budget:
        raise Unfit
    operands = [make.argument(shape) for _ in range(3)]
    parameters = dict(is_causal=make.chance(0.5))
    function = make.choice(["attention", "jax.nn.dot_product_attention"])
    template = f"{function}({{0}}, {{1}}, {{2}}, is_causal={{is_causal}})"
    make.emit(template, operands, parameters, bound=4, exact=False)


@maker(0.5)
def cross_entropy(make: Generator) -> None:
    logits = make.pick(dtypes=("float32",), rank=(1, 3), nonempty=True)
    kind = make.kinds[logits]
    labels = make.indices(kind.shape[:-1], 0, kind.shape[-1] - 1)
    make.emit("cross_entropy({0}, {1})", [logits, labels], bound=20, exact=False)


@maker(0.3)
def cholesky(make: Generator) -> None:
    size = make.choice([2, 4, 8])
    x = make.argument((*make.shape(make.integer(0, 1)), size, size))
    make.emit("cholesky({0})", [x], bound=30, exact=False)


@maker(0.3)
def triangular_solve(make: Generator) -> None:
    size = make.choice([2, 4])
    batch = make.shape(make.integer(0, 1))
    a = make.argument((*batch, size, size))
    b = make.argument((*batch, size, max(make.size(), 1)))
    make.emit("solve_triangle({0}, {1})", [a, b], bound=100, exact=False)


@maker(0.3, differentiable=False)
def mapped(make: Generator) -> None:
    x = make.pick(dtypes=("int32", "float32"), rank=(2, 3), nonempty=True)
    kind = make.kinds[x]
    parameters = dict(size=make.choice([None, 2]))
    template = "lax.map(lambda row: jnp.cumsum(row.reshape(-1))[-1:], {0}, batch_size={size})"
    make.emit(template, [x], parameters, bound=kind.bound * kind.size)
