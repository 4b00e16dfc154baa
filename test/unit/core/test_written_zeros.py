"""Zeros that compiled programs write or multiply, and results that they copy, in plans."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autoshard
from autoshard.cluster import Cluster

TRIPS = 8
X = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
BYTES = 4.0 * 4096 * 256
GPU, TPU = "h100:1", "v5p:1x1x1"


def planned(
    function: Callable[..., Any], *shapes: Any, cluster: str = GPU, without: str = "", **more: Any
) -> Any:
    """A plan of one device, without a rule of the compiler."""
    name = f"xla-gpu-0.10.2:without={without}" if without else None
    return autoshard.plan(function, *shapes, cluster=cluster, compiler=name, **more)


def passes(seconds: float, size: float, cluster: str = GPU) -> float:
    """How often ``size`` bytes are read or written in ``seconds``."""
    chip = Cluster.parse(cluster).chip
    return seconds * chip.memory_bandwidth.value * chip.memory_efficiency.value / size


def stacked(x: Any) -> Any:
    """A loop that stacks what it makes."""
    return lax.scan(lambda c, _: (c * 2, jnp.sin(c)), x, None, length=TRIPS)


def test_a_stack_that_a_loop_fills_is_written_once_before_on_gpus() -> None:
    rule = "buffers.filled_stacks"
    more = planned(stacked, X).compute_seconds - planned(stacked, X, without=rule).compute_seconds
    assert passes(more, TRIPS * BYTES) == pytest.approx(1)


def test_stacks_of_several_loops_are_there_from_the_first_on() -> None:
    def loops(x: Any) -> Any:
        for _ in range(3):
            _, kept = stacked(x)
            x = x + jnp.max(kept, 0)
        return x

    whole = planned(loops, X).peak_bytes
    one_at_a_time = planned(loops, X, without="buffers.filled_stacks").peak_bytes
    assert whole - one_at_a_time == pytest.approx(2 * TRIPS * BYTES, rel=0.1)


@pytest.mark.parametrize("cluster", [GPU, TPU])
def test_what_is_stacked_over_an_argument_that_the_loop_reads_is_copied(cluster: str) -> None:
    def step(cache: Any, x: Any) -> Any:
        return lax.scan(lambda c, k: (c + jnp.sum(k), k.at[0].set(c)), x, cache)

    shapes = (jax.ShapeDtypeStruct((TRIPS, *X.shape), jnp.float32), jnp.zeros(256))
    kept = planned(lambda *a: step(*a)[::-1], *shapes, cluster=cluster)
    replaced = planned(lambda *a: step(*a)[::-1], *shapes, cluster=cluster, donate_argnums=0)
    more = replaced.compute_seconds - kept.compute_seconds
    assert passes(more, TRIPS * BYTES, cluster) == pytest.approx(2)


@pytest.mark.parametrize("cluster", [GPU, TPU])
def test_a_sum_over_indices_writes_the_zeros_that_it_begins_with(cluster: str) -> None:
    def summed(begin: Any, i: Any, x: Any) -> Any:
        return begin.at[i].add(x)

    few = (jax.ShapeDtypeStruct((8,), jnp.int32), jax.ShapeDtypeStruct((8, 256), jnp.float32))
    there = planned(summed, X, *few, cluster=cluster, donate_argnums=0)
    zeros = planned(lambda i, x: summed(jnp.zeros(X.shape), i, x), *few, cluster=cluster)
    more = zeros.compute_seconds - there.compute_seconds
    assert passes(more, BYTES, cluster) == pytest.approx(1, abs=0.01)


def test_zeros_of_several_sums_are_there_from_the_first_on() -> None:
    def sums(i: Any, x: Any) -> Any:
        made = x
        for _ in range(3):
            made = jnp.zeros(X.shape).at[i].add(made)[:8]
        return made

    few = (jax.ShapeDtypeStruct((8,), jnp.int32), jax.ShapeDtypeStruct((8, 256), jnp.float32))
    assert planned(sums, *few).peak_bytes == pytest.approx(3 * BYTES, rel=0.01)
    one_at_a_time = planned(sums, *few, without="buffers.filled_stacks")
    assert one_at_a_time.peak_bytes == pytest.approx(2 * BYTES, rel=0.01)


def test_zeros_that_an_update_reads_are_there_beside_those_that_a_sum_writes_over() -> None:
    """Adagrad does so: it takes a step of zero where all gradients were."""

    def update(weights: Any, summed: Any, i: Any, x: Any, least: float) -> Any:
        gradient = jnp.zeros(X.shape).at[i].add(x)
        summed = summed + gradient * gradient
        return weights - jnp.where(summed > least, lax.rsqrt(summed), least) * gradient, summed

    few = (jax.ShapeDtypeStruct((8,), jnp.int32), jax.ShapeDtypeStruct((8, 256), jnp.float32))
    of_zero, of_one = (
        planned(
            functools.partial(update, least=least), X, X, *few, donate_argnums=(0, 1)
        ).peak_bytes
        for least in (0.0, 1.0)
    )
    assert of_zero - of_one == pytest.approx(BYTES, rel=0.01)


def pooled_gradient(x: Any, gradient: Any) -> Any:
    """Gradient of maxima over pairs of rows."""
    pool = functools.partial(
        lax.reduce_window,
        init_value=-jnp.inf,
        computation=lax.max,
        window_dimensions=(2, 1),
        window_strides=(2, 1),
        padding="VALID",
    )
    return jax.vjp(pool, x)[1](gradient)[0]


@pytest.mark.parametrize("cluster", [GPU, TPU])
def test_zeros_of_relus_are_there_where_maxima_of_these_have_a_gradient(cluster: str) -> None:
    half = jax.ShapeDtypeStruct((2048, 256), jnp.float32)

    def step(x: Any, gradient: Any, least: float) -> Any:
        kept = jnp.sort(jnp.maximum(x, least), 0)
        made = jnp.sort(pooled_gradient(kept, gradient), 0)
        return jnp.where(x > 0, made, least)

    of_zero, of_one = (
        planned(functools.partial(step, least=least), X, half, cluster=cluster).peak_bytes
        for least in (0.0, 1.0)
    )
    assert of_zero - of_one == pytest.approx(BYTES if cluster == GPU else 0, abs=0.01 * BYTES)


def test_the_kernel_of_positions_of_maxima_computes_what_it_reads_on_gpus() -> None:
    half = jax.ShapeDtypeStruct((2048, 256), jnp.float32)

    def step(x: Any, gradient: Any) -> Any:
        return pooled_gradient(jnp.exp(x), gradient)

    row = "fusion.window_operands"
    stored = planned(step, X, half, without=row).peak_bytes - planned(step, X, half).peak_bytes
    assert stored == pytest.approx(BYTES, rel=0.01)


def test_a_sum_over_edges_computes_what_it_adds_up() -> None:
    """Rows of the nodes, and their product with the weights, are in no memory."""

    def messages(x: Any, senders: Any, receivers: Any, weights: Any) -> Any:
        return jnp.zeros_like(x).at[receivers].add(x[senders] * weights[:, None])

    edges = 8 * X.shape[0]
    ends = jax.ShapeDtypeStruct((edges,), jnp.int32)
    shapes = (X, ends, ends, jax.ShapeDtypeStruct((edges,), jnp.float32))
    fused = planned(messages, *shapes)
    stored = planned(messages, *shapes, without="fusion.scattered_updates")
    assert stored.peak_bytes - fused.peak_bytes == pytest.approx(8 * BYTES, rel=0.01)


IMAGE = jax.ShapeDtypeStruct((32, 64, 64, 128), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((4, 4, 128, 128), jnp.float32)


def convolved(kernel: Callable[[Any], Any] = lambda w: w, **given: Any) -> Any:
    """A plan of a convolution of ``IMAGE``."""

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, kernel(w), dimension_numbers=("NHWC", "HWIO", "NHWC"), **given
        )

    rule = "fusion.multiplied_zeros"
    plans = [planned(function, IMAGE, KERNEL, without=name) for name in ("", rule)]
    return plans[0].compute_seconds / plans[1].compute_seconds


def test_zeros_of_a_dilated_image_are_multiplied_if_the_kernel_is_not_reversed() -> None:
    given = {"window_strides": (1, 1), "padding": ((2, 2), (2, 2)), "lhs_dilation": (2, 2)}
    assert convolved(**given) == pytest.approx(4, rel=0.1)
    assert convolved(lambda w: lax.rev(w, (0, 1)), **given) == 1


def test_zeros_of_a_dilated_kernel_are_multiplied_if_padding_differs_at_the_ends() -> None:
    given = {"window_strides": (1, 1), "rhs_dilation": (3, 3)}
    causal = convolved(padding=((9, 0), (9, 0)), **given)
    assert causal == pytest.approx(100 / 16, rel=0.1)
    assert convolved(padding=((5, 5), (5, 5)), **given) == 1


def test_gradients_of_weights_of_strided_convolutions_multiply_no_zeros() -> None:
    def loss(w: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(y * y)

    kernel = jax.ShapeDtypeStruct((3, 3, 128, 128), jnp.float32)
    found = [
        planned(jax.grad(loss), kernel, IMAGE, without=rule).compute_seconds
        for rule in ("", "fusion.multiplied_zeros")
    ]
    assert found[0] == found[1]
