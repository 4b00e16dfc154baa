"""Small collectives that do not wait for each other share their latency where they are joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster

P = jax.sharding.PartitionSpec
H100 = Cluster.parse("h100:8")
LAUNCH = H100.chip.launch_seconds.value
JOINED = 30 * 2**20
"""Bytes of one buffer."""
ALONE = "xla-gpu:without=collectives.joined_bytes"


def struct(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def updated(params: Any, x: Any) -> Any:
    """A step of gradient descent through layers of one matrix each."""

    def loss(params: Any) -> Any:
        y = x
        for weight in params:
            y = jnp.tanh(y @ weight)
        return jnp.sum(y)

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))


def sent(fn: Callable[..., Any], *args: Any, compiler: str | None = None, **options: Any) -> float:
    """Seconds of communication on 8 GPUs."""
    plan = autoshard.plan(fn, *args, cluster="h100:8", compiler=compiler, **options)
    return plan.communication_seconds


def both(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[float, float]:
    """With, and without joining."""
    return sent(fn, *args, **options), sent(fn, *args, compiler=ALONE, **options)


@pytest.mark.parametrize("count", [2, 6])
def test_gradients_take_a_part_of_the_latency_each(count: int) -> None:
    weights = [struct(256, 256)] * count
    options: dict[str, Any] = {"mode": "data_parallel", "donate_argnums": 0}
    joined, alone = both(updated, weights, struct(4096, 256), **options)
    # In a tree of 8 GPUs: up and down three levels. A kernel takes each out of the buffer.
    latency = 2 * 3 * H100.dims[0].latency.value
    saved = count * (1 - 1 / count) * latency - count * LAUNCH
    assert alone - joined == pytest.approx(saved, rel=1e-6)


@pytest.mark.parametrize("count", [2, 6])
def test_tpus_join_sums_whose_transfers_take_less_than_their_latency(count: int) -> None:
    weights = [struct(256, 256)] * count
    joined, alone = (
        autoshard.plan(
            updated,
            weights,
            struct(4096, 256),
            cluster="v5p:2x2x2",
            compiler=compiler,
            mode="data_parallel",
            donate_argnums=0,
        ).communication_seconds
        for compiler in ("xla-tpu", "xla-tpu:without=collectives.tuple_bytes")
    )
    dims = Cluster.parse("v5p:2x2x2").dims
    latency = 2 * sum(dim.latency.value for dim in dims)
    transfer = 2 * 256 * 256 * 4 * 7 / 8 / sum(dim.bandwidth.value for dim in dims)
    assert latency / 6 < transfer < latency / 2
    assert alone == pytest.approx(count * latency, rel=1e-6)
    assert joined == pytest.approx(count * max(transfer, latency / count), rel=1e-6)


def scaled(weights: Any) -> Any:
    """Each by its own mean of squares, a scalar."""
    return [w * jnp.sqrt(jnp.mean(w * w)) for w in weights]


@pytest.mark.parametrize(("cluster", "shares"), [("v5p:2x2x2", True), ("h100:8", False)])
def test_sums_to_scalars_are_one_on_tpus_and_alone_on_gpus(cluster: str, shares: bool) -> None:
    seconds = [
        autoshard.plan(
            scaled,
            [struct(1024, 1024)] * count,
            cluster=cluster,
            mesh="d=8",
            in_shardings=([P("d")] * count,),
            out_shardings=[P("d")] * count,
        ).communication_seconds
        for count in (1, 6)
    ]
    assert seconds[1] == pytest.approx((1 if shares else 6) * seconds[0], rel=1e-6)


def test_one_that_fills_the_buffer_is_alone() -> None:
    large = [struct(4096, 4096)] * 4
    assert JOINED < 4096 * 4096 * 4
    joined, alone = both(updated, large, struct(4096, 4096), mode="data_parallel", donate_argnums=0)
    assert joined == pytest.approx(alone, rel=1e-6)


def test_gathers_of_weights_share_it() -> None:
    weights = [struct(256, 256)] * 4
    pins = ([P("d")] * 4, P("d"))
    joined, alone = both(
        lambda params, x: jnp.tanh(jnp.tanh(x @ params[0]) @ params[1] @ params[2]) @ params[3],
        weights,
        struct(65536, 256),
        mesh="d=8",
        in_shardings=pins,
        out_shardings=P("d"),
    )
    latency = 7 * H100.dims[0].latency.value
    # x is an argument, too, that a matmul reads.
    assert alone - joined == pytest.approx(4 * (1 - 1 / 5) * latency, rel=1e-6)


def moments(x: Any) -> Any:
    """Independent sums: of a value, and of its square."""
    return x - jnp.sum(x, 0) * jnp.sum(x * x, 0)


def variance(x: Any) -> Any:
    """One sum waits for the other."""
    return x / jnp.sum((x - jnp.sum(x, 0)) ** 2, 0)


@pytest.mark.parametrize(("fn", "shares"), [(moments, True), (variance, False)])
def test_sums_beside_each_other_share_it_and_those_in_turn_do_not(fn: Any, shares: bool) -> None:
    def step(w: Any, x: Any) -> Any:
        return fn(x @ w) @ w

    pins = (P(), P("d"))
    options: dict[str, Any] = {"mesh": "d=8", "in_shardings": pins, "out_shardings": P("d")}
    joined, alone = both(step, struct(512, 512), struct(65536, 512), **options)
    latency = 2 * 3 * H100.dims[0].latency.value
    assert alone - joined == pytest.approx(shares * latency - 2 * LAUNCH, rel=1e-6)


def test_gathers_before_a_loop_share_it_too() -> None:
    def run(params: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]), None), x, params)[0]

    weights = (struct(12, 256, 256), struct(12, 256, 256))
    pins = ((P(None, "d"), P(None, "d")), P("d"))
    joined, alone = both(
        run, weights, struct(65536, 256), mesh="d=8", in_shardings=pins, out_shardings=P("d")
    )
    bytes_share = 12 * 256 * 256 * 4 / JOINED
    latency = 7 * H100.dims[0].latency.value
    # Both stacks enter the loop as they are.
    saved = 2 * (1 - max(1 / 2, bytes_share)) * latency
    assert alone - joined == pytest.approx(saved, rel=1e-6)
