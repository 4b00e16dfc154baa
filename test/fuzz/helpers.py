"""Functions that instructions call where one expression of JAX is not enough."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def select(index, *cases):
    return lax.select_n(jnp.abs(index.astype(jnp.int32)) % len(cases), *cases)


def clamp(x, low, high):
    return lax.clamp(jnp.minimum(low, high), x, jnp.maximum(low, high))


def lowest(dtype):
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def highest(dtype):
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def largest_with_index(x, index, axes):
    def larger(a, b):
        takes_a = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(takes_a, a[0], b[0]), jnp.where(takes_a, a[1], b[1])

    start = (jnp.array(lowest(x.dtype), x.dtype), jnp.array(2**30, index.dtype))
    return tuple(lax.reduce((x, index), start, larger, axes))


def window(x, function, sizes, strides, padding, base_dilation, window_dilation):
    start = {"add": 0, "max": lowest(x.dtype), "min": highest(x.dtype)}[function]
    combine = getattr(lax, function)
    start = np.array(start, x.dtype)
    y = lax.reduce_window(
        x, start, combine, sizes, strides, padding, base_dilation, window_dilation
    )
    return jnp.clip(y, -64, 64) if function != "add" else y


def pool_gradient(x, cotangent, function, sizes, strides, padding):
    start = {"max": lowest(x.dtype), "add": 0}[function]
    y, pull = jax.vjp(
        lambda x: lax.reduce_window(
            x, np.array(start, x.dtype), getattr(lax, function), sizes, strides, padding
        ),
        x,
    )
    weights = (jnp.arange(y.size) % 5 - 2).reshape(y.shape).astype(y.dtype)
    return pull(weights * cotangent)[0]


def convolution_gradients(x, w, **options):
    y, pull = jax.vjp(lambda x, w: lax.conv_general_dilated(x, w, **options), x, w)
    weights = (jnp.arange(y.size) % 5 - 2).reshape(y.shape).astype(y.dtype)
    return pull(weights)


def set_rows(x, rows, axis, step, offset):
    """Rows at places that differ, in no order."""
    places = (jnp.arange(rows.shape[axis]) * step + offset) % x.shape[axis]
    return x.at[(slice(None),) * axis + (places,)].set(rows)


def layer_norm(x, weight):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1) * weight


def batch_norm(x, axes):
    return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + 1)


def attention(q, k, v, is_causal):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / 8
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v)


def cross_entropy(logits, labels):
    scores = jax.nn.log_softmax(jnp.clip(logits, -3, 3), -1)
    return -jnp.take_along_axis(scores, labels[..., None], -1, mode="clip")[..., 0]


def cholesky(x):
    symmetric = x @ jnp.swapaxes(x, -1, -2) + 90 * jnp.eye(x.shape[-1], dtype=x.dtype)
    return jnp.linalg.cholesky(symmetric)


def solve_triangle(a, b):
    triangle = jnp.tril(a, -1) + 4 * jnp.eye(a.shape[-1], dtype=a.dtype)
    return lax.linalg.triangular_solve(triangle, b, left_side=True, lower=True)


def drop_out(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2, jnp.zeros_like(x))


def random_rows(key, count, shape):
    rows = jax.random.split(key, count)
    return jax.vmap(lambda key: jax.random.randint(key, shape, -3, 4))(rows)


def twice_on_host(x):
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: np.asarray(x) * 2, result, x, vmap_method="sequential")


def own_product(x, w):
    """A product whose gradients are not its own."""

    @jax.custom_vjp
    def product(x, w):
        return x * w

    product.defvjp(lambda x, w: (x * w, (x, w)), lambda xw, g: (g * xw[1] + 1, g * xw[0]))
    return product(x, w)


def own_twice(x):
    """Twice ``x``, with a tangent that is not its own."""

    @jax.custom_jvp
    def twice(x):
        return x * 2

    twice.defjvp(lambda primals, tangents: (twice(*primals), tangents[0] * 3))
    return twice(x)


def twice_called(body, *operands):
    """One function of its own in the module, called from two places."""
    called = jax.jit(body)
    first = called(*operands)
    second = called(*operands[:-1], lax.optimization_barrier(operands[-1]))
    return tuple(
        jnp.where(jnp.ones(a.shape, bool), a, b) for a, b in zip(first, second, strict=True)
    )


def scan(body, carried, sequences, constants, length, reverse, unroll, remat):
    def step(carried, sequences):
        results = body(*carried, *sequences, *constants)
        return tuple(results[: len(carried)]), tuple(results[len(carried) :])

    step = jax.checkpoint(step) if remat else step
    options = dict(length=length, reverse=reverse, unroll=unroll)
    carried, stacked = lax.scan(step, carried, sequences, **options)
    return (*carried, *stacked)


def repeat(body, carried, constants, count):
    return lax.fori_loop(0, count, lambda _, it: tuple(body(*it, *constants)), carried)


def repeat_while(body, limit, carried, constants):
    count = jnp.abs(limit.astype(jnp.int32)) % 4
    start = (jnp.int32(0), carried)
    return lax.while_loop(
        lambda it: (it[0] < count) & (jnp.sum(it[1][0].astype(jnp.float32)) < 1e6),
        lambda it: (it[0] + 1, tuple(body(*it[1], *constants))),
        start,
    )[1]


def branch(index, bodies, *operands):
    number = jnp.abs(index.astype(jnp.int32)) % len(bodies)
    if len(bodies) == 2:
        return lax.cond(number == 1, *bodies, *operands)
    return lax.switch(number, bodies, *operands)


def inner_gradient(body, *operands):
    def total(*operands):
        return sum(jnp.sum(it) for it in body(*operands))

    return jax.grad(total, argnums=tuple(range(len(operands))))(*operands)


def weighted_sum(outputs):
    """A loss to which different entries count differently, so that their places matter."""
    floats = [it for it in outputs if jnp.issubdtype(it.dtype, jnp.floating)]
    return sum(jnp.sum(it * _weights(it)) for it in floats)


def _weights(x):
    return (jnp.arange(x.size) % 3 - 1).reshape(x.shape).astype(x.dtype)


def gradient_of(program, floats):
    """The loss of a program and its gradients for the arguments with these numbers."""

    def gradient(*arguments):
        loss = lambda *arguments: weighted_sum(program(*arguments))  # noqa: E731
        return jax.value_and_grad(loss, argnums=floats)(*arguments)

    return gradient


def train_step_of(program, trained, data):
    """A step of gradient descent with momentum.

    ``trained`` and ``data`` are the numbers of the program's arguments that are parameters, and of
    those that come with the batch.
    """

    def loss(parameters, batch):
        given = dict(zip((*trained, *data), (*parameters, *batch), strict=True))
        return weighted_sum(program(*[given[number] for number in sorted(given)]))

    def train_step(state, *batch):
        value, gradients = jax.value_and_grad(loss)(state["parameters"], batch)
        momenta = [0.5 * m + g for m, g in zip(state["momenta"], gradients, strict=True)]
        parameters = [p - 2.0**-8 * m for p, m in zip(state["parameters"], momenta, strict=True)]
        return {"parameters": parameters, "momenta": momenta, "count": state["count"] + 1}, value

    return train_step
