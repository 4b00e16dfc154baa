"""Pallas kernels in interpret mode are cut on CPUs by what is proven of them, and stay right."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal, shardy
from jax.experimental.pallas.ops.tpu import splash_attention as splash

import autoshard
from norm_kernel import pallas_norm, plain_norm
from random_kernels import random_kernel

LAYERS, BATCH, LENGTH, HEADS, GROUPS, WIDTH = 2, 8, 128, 4, 2, 128
P = jax.sharding.PartitionSpec


def attend(q: Any, k: Any, v: Any) -> Any:
    """Splash attention of grouped queries, causal; batch, heads, sequence, features."""
    mask = splash.MultiHeadMask([splash.CausalMask((LENGTH, LENGTH))] * q.shape[1])
    kernel = splash.make_splash_mha_single_device(mask, interpret=True)
    return jax.vmap(kernel)(q, k, v)


@jax.custom_vjp
def norm(x: Any, scale: Any) -> Any:
    return pallas_norm(x, scale)


def _norm_backward(kept: Any, g: Any) -> Any:
    return jax.vjp(plain_norm, *kept)[1](g)


norm.defvjp(lambda x, scale: (pallas_norm(x, scale), (x, scale)), _norm_backward)


def training_step(weights: Any, x: Any) -> Any:
    """Loss and gradients of scanned, checkpointed layers."""

    def layer(x: Any, weights: Any) -> tuple[Any, None]:
        y = norm(x, weights["scale"])
        q, k, v = (
            (y @ weights[name]).reshape(*x.shape[:2], -1, WIDTH).swapaxes(1, 2) for name in "qkv"
        )
        made = attend(q / WIDTH**0.5, k, v).swapaxes(1, 2).reshape(*x.shape[:2], -1)
        return x + made @ weights["o"], None

    def loss(weights: Any) -> Any:
        last, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.mean(last**2)

    return jax.value_and_grad(loss)(weights)


def arguments() -> tuple[Any, Any]:
    random, features = np.random.default_rng(7), 64
    sizes = {"q": HEADS * WIDTH, "k": GROUPS * WIDTH, "v": GROUPS * WIDTH}
    weights = {
        name: random.normal(size=(LAYERS, features, size)).astype(np.float32) / features**0.5
        for name, size in sizes.items()
    }
    output = random.normal(size=(LAYERS, HEADS * WIDTH, features)) / (HEADS * WIDTH) ** 0.5
    weights["o"] = output.astype(np.float32)
    weights["scale"] = 1 + 0.1 * random.normal(size=(LAYERS, features)).astype(np.float32)
    return weights, random.normal(size=(BATCH, LENGTH, features)).astype(np.float32)


@pytest.fixture(scope="module")
def expected() -> Any:
    return jax.device_get(jax.jit(training_step)(*arguments()))


AUTO: dict[str, Any] = {"cluster": "cpu:8"}
SEMI_AUTO: dict[str, Any] = {
    "mesh": "dp=4,tp=2",
    "mode": "semi_auto",
    "in_shardings": (
        {**dict.fromkeys("qkv", P(None, None, "tp")), "o": P(None, "tp"), "scale": P()},
        P("dp"),
    ),
}


@pytest.mark.parametrize(
    ("options", "use_shardy"),
    [(AUTO, True), (AUTO, False), (SEMI_AUTO, True)],
    ids=["auto-shardy", "auto-gspmd", "semi_auto-shardy"],
)
@pytest.mark.filterwarnings("ignore::autoshard.PlanMismatchWarning")
def test_a_step_equals_the_unsharded_one(
    options: dict[str, Any], use_shardy: bool, expected: Any
) -> None:
    given = arguments()
    with shardy(use_shardy):
        step = autoshard.jit(training_step, **options)
        assert_equal(jax.device_get(step(*given)), expected, 2e-5)
    kernels = [op for op in step.plan(*given).ops if op.name.startswith("splash_mha")]
    assert len(kernels) in (3, 4)  # forward, perhaps once more in the backward half, two backward
    if "cluster" in options:
        assert all("-> [{}" not in (op.strategy or "-> [{}") for op in kernels)


WITH_TABLE = 399
"""The seed of a kernel whose table is cut as well."""


@pytest.mark.filterwarnings("ignore:.*1 kernels run whole:autoshard.AutoshardWarning")
@pytest.mark.filterwarnings("ignore::autoshard.PlanMismatchWarning")
@pytest.mark.parametrize("seed", [*range(4), WITH_TABLE])
def test_random_kernels_are_right_however_they_are_cut(seed: int) -> None:
    case = random_kernel(np.random.default_rng(seed))
    given = case.arguments(np.random.default_rng(0))
    expected = 2 * np.asarray(case.call(given, interpret=True))
    cut = 0
    shapes = [array.shape[:-2] for array in given]
    for number, dim in ((n, d) for n, shape in enumerate(shapes) for d in range(len(shape))):
        if shapes[number][dim] % 2:
            continue
        pins = [P()] * len(given)
        pins[number] = P(*(None,) * dim, "x")
        step = autoshard.jit(
            lambda *arrays: case.call(arrays, interpret=True) * 2,
            mesh="x=2",
            mode="semi_auto",
            in_shardings=tuple(pins),
        )
        np.testing.assert_array_equal(step(*given), expected)
        (kernel,) = [op for op in step.plan(*given).ops if op.name == "body"]
        cut += "x" in (kernel.strategy or "")
    assert bool(cut) == (seed in (1, WITH_TABLE))


def test_what_is_derived_is_what_a_rule_by_hand_says() -> None:
    def plain(x: Any, scale: Any) -> Any:
        return pallas_norm(2 * x, scale)

    def by_hand(x: Any, scale: Any) -> Any:
        return autoshard.kernel(pallas_norm, "b s d, d -> b s d", whole=("s", "d"))(2 * x, scale)

    x = jax.ShapeDtypeStruct((16, 64, 128), jnp.float32)
    scale = jax.ShapeDtypeStruct((128,), jnp.float32)
    derived, said = (autoshard.plan(fn, x, scale, cluster="cpu:8") for fn in (plain, by_hand))
    (derived_call,) = [op for op in derived.ops if op.name == "_norm_kernel"]
    (said_call,) = [op for op in said.ops if op.name == "pallas_norm"]
    assert derived_call.strategy == said_call.strategy
    assert [value.sharding for value in derived.arguments] == [
        value.sharding for value in said.arguments
    ]
    assert derived.arguments[0].sharding.tile == (8, 1, 1)
