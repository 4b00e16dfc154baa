"""Without any annotation the search finds what an expert would write.

Sizes are those at which experts write it; nothing runs, the programs are lowered from shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from plan_cases import struct, whole_products

import autoshard
from autoshard import Plan

Loss = Callable[..., Any]


def tile(plan: Plan, number: int) -> tuple[int, ...]:
    """Into how many blocks each dim of a flat argument is cut."""
    return plan.arguments[number].sharding.tile


def sent_bytes(plan: Plan) -> dict[str, float]:
    """By kind of collective, what a device sends in a step."""
    assert plan.summary is not None
    sent: dict[str, float] = {}
    for collective in plan.summary.collectives:
        sent[collective.kind] = sent.get(collective.kind, 0.0) + collective.total_bytes
    return sent


def train_step(loss: Loss) -> Loss:
    """Momentum: parameters, momenta and batch in, new parameters and momenta out."""

    def step(p: Any, m: Any, *batch: Any) -> Any:
        gradients = jax.grad(loss)(p, *batch)
        m = jax.tree.map(lambda old, g: 0.9 * old + g.astype(old.dtype), m, gradients)
        return jax.tree.map(lambda w, change: w - 0.01 * change, p, m), m

    return step


def trained(loss: Loss, p: Any, *batch: Any, cluster: str) -> Plan:
    """The plan of a train step without a word about it."""
    return autoshard.plan(train_step(loss), p, p, *batch, cluster=cluster, donate_argnums=(0, 1))


def layers(p: Any, x: Any) -> Any:
    """Pairs of matrices, as in a transformer's feed-forward."""
    for up, down in p:
        x = x + jnp.tanh(x @ up.astype(x.dtype)) @ down.astype(x.dtype)
    return x


def layers_loss(p: Any, x: Any) -> Any:
    return jnp.sum(layers(p, x).astype(jnp.float32) ** 2)


def pairs(width: int, hidden: int, count: int) -> list[Any]:
    return [(struct(width, hidden), struct(hidden, width)) for _ in range(count)]


def test_small_parameters_and_a_large_batch_are_data_parallel() -> None:
    p = pairs(256, 512, 3)
    x = struct(131_072, 256, dtype=jnp.bfloat16)
    plan = trained(layers_loss, p, x, cluster="h100:8")
    assert tile(plan, 12) == (8, 1)
    parameters = sum(prod(a.shape) * 4 for a in plan.arguments[:6])
    # Gradients are all that is sent: an all-reduce, or its two halves around a cut optimizer.
    assert sum(sent_bytes(plan).values()) <= 2.01 * parameters


def test_large_parameters_and_a_large_batch_are_fsdp() -> None:
    p = pairs(4096, 11_008, 8)
    x = struct(131_072, 4096, dtype=jnp.bfloat16)
    plan = trained(layers_loss, p, x, cluster="v5e:4x4")
    assert tile(plan, 32) == (16, 1)
    # Over all devices, or twice over half of them: the two are 1.4 % apart by the model.
    assert all(prod(tile(plan, number)) >= 8 for number in range(32))


def test_a_small_batch_takes_megatron_pairs() -> None:
    cluster = whole_products("v5p:2x2x2")
    plan = autoshard.plan(layers, pairs(8192, 32_768, 3), struct(16, 8192), cluster=cluster)
    for number in range(0, 6, 2):
        assert tile(plan, number) == (1, 8)
        assert tile(plan, number + 1) == (8, 1)
    # One sum a pair; the activations are far smaller than any matrix.
    assert sum(sent_bytes(plan).values()) <= 3 * 2 * 16 * 8192 * 4


def experts(x: Any, gates: Any, up: Any, down: Any) -> Any:
    """Dispatch by groups, as in GShard."""
    sent = jnp.einsum("gsd,gsec->egcd", x, gates)
    hidden = jnp.maximum(jnp.einsum("egcd,edf->egcf", sent, up), 0)
    back = jnp.einsum("egcf,efd->egcd", hidden, down)
    return jnp.einsum("egcd,gsec->gsd", back, gates)


def experts_loss(p: Any, x: Any, gates: Any) -> Any:
    return jnp.sum(experts(x, gates, *p).astype(jnp.float32) ** 2)


def test_experts_are_parallel_with_all_to_all() -> None:
    half = jnp.bfloat16
    p = [struct(8, 4096, 14_336, dtype=half), struct(8, 14_336, 4096, dtype=half)]
    x, gates = struct(64, 512, 4096, dtype=half), struct(64, 512, 8, 128, dtype=half)
    plan = trained(experts_loss, p, x, gates, cluster="h100:8")
    for number in range(4):
        assert tile(plan, number) == (8, 1, 1)
    sent = sent_bytes(plan)
    assert sent["all-to-all"] >= 0.9 * sum(sent.values())


def block(p: Any, x: Any) -> Any:
    """Attention and a feed-forward."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in p[:3])
    scores = jnp.einsum("bshk,bthk->bhst", q, k)
    mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores, -1), v)
    x = x + jnp.einsum("bshk,hkd->bsd", mixed, p[3])
    return x + jax.nn.gelu(x @ p[4]) @ p[5]


def test_a_long_sequence_with_batch_1_is_cut_along_the_sequence() -> None:
    half = jnp.bfloat16
    heads = struct(1024, 8, 128, dtype=half)
    p = [heads, heads, heads, struct(8, 128, 1024, dtype=half)]
    p += [struct(1024, 4096, dtype=half), struct(4096, 1024, dtype=half)]
    plan = autoshard.plan(block, p, struct(1, 32_768, 1024, dtype=half), cluster="v5e:4x4")
    # The input may as well come whole: it is cut where it is read.
    assert plan.results[0].sharding.tile == (1, 16, 1)
    assert sum(sent_bytes(plan).values()) < 32_768 * 1024 * 2


def convolutions(kernels: Any, x: Any) -> Any:
    for kernel in kernels:
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        )
    return x


def convolutions_loss(kernels: Any, x: Any) -> Any:
    return jnp.sum(convolutions(kernels, x) ** 2)


def test_many_images_are_cut_by_image() -> None:
    kernels = [struct(3, 3, 64, 64) for _ in range(4)]
    plan = trained(convolutions_loss, kernels, struct(256, 56, 56, 64), cluster="h100:8")
    assert tile(plan, 8) == (8, 1, 1, 1)


def test_one_large_image_is_cut_into_tiles() -> None:
    kernels = [struct(3, 3, 64, 64) for _ in range(4)]
    plan = autoshard.plan(convolutions, kernels, struct(1, 4096, 4096, 64), cluster="h100:8")
    image = tile(plan, 4)
    assert image[1] * image[2] == 8
    # Neighbours exchange a row or a column; nobody gathers the image.
    assert set(sent_bytes(plan)) == {"collective-permute"}


def test_a_large_embedding_is_cut_by_rows_or_columns() -> None:
    plan = autoshard.plan(
        lambda table, ids: jnp.take(table, ids, axis=0, mode="clip"),
        struct(50_000_000, 64),
        struct(8192, 26, dtype=jnp.int32),
        cluster="h100:8",
        memory_limit="4GiB",
    )
    assert prod(tile(plan, 0)) == 8
    # Rows that were looked up are sent, never the table.
    assert sum(sent_bytes(plan).values()) < 8192 * 26 * 64 * 4 * 2
