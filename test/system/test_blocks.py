"""Ops that XLA makes whole are computed block by block: what is planned is what runs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import shardy, unsharded

import autoshard

P = jax.sharding.PartitionSpec


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def convolution(images: Any, kernel: Any, strides: tuple[int, int] = (1, 1)) -> Any:
    """As many groups as the kernel's input features go into the images'."""
    return jax.lax.conv_general_dilated(
        images,
        kernel,
        strides,
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=images.shape[3] // kernel.shape[2],
    )


def gradients(strides: tuple[int, int]) -> Callable[..., Any]:
    return jax.grad(lambda w, x: jnp.sum(convolution(x, w, strides) ** 2), argnums=(0, 1))


def batches_in_groups(images: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(
        images,
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        batch_group_count=4,
    )


IMAGES = integers(8, 16, 16, 16)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "fft": (lambda x: jnp.fft.irfft(2 * jnp.fft.rfft(x)), (integers(64, 128),)),
    "fft of planes": (lambda x: jnp.abs(jnp.fft.fft2(x)), (integers(32, 16, 16),)),
    "top-k": (lambda x: jax.lax.top_k(x, 5), (integers(64, 128),)),
    "depthwise": (gradients((1, 1)), (integers(3, 3, 1, 16), IMAGES)),
    "depthwise, strided": (gradients((2, 2)), (integers(3, 3, 1, 16), IMAGES)),
    "depthwise, two features each": (gradients((1, 1)), (integers(3, 3, 1, 32), IMAGES)),
    "four groups": (gradients((1, 1)), (integers(3, 3, 4, 16), IMAGES)),
    "batches in groups": (batches_in_groups, (integers(8, 8, 8, 8), integers(3, 3, 8, 16))),
}


def assert_as_planned(fn: Any, args: tuple[np.ndarray, ...], **options: Any) -> None:
    """``fn`` runs, gives what it gives on one device, and sends what was planned."""
    expected = unsharded(fn, args)
    with warnings.catch_warnings():
        warnings.simplefilter("error", autoshard.PlanMismatchWarning)
        found = autoshard.jit(fn, **options)(*args)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3), found, expected
    )


@pytest.mark.parametrize("use_shardy", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_automatic_mode_sends_what_it_plans(name: str, use_shardy: bool) -> None:
    with shardy(use_shardy):
        assert_as_planned(*PROGRAMS[name], mesh="a=2,b=4", mode="auto")


@pytest.mark.parametrize(
    ("name", "pins"),
    [
        ("fft", (P("b"),)),
        ("top-k", (P(("a", "b")),)),
        ("four groups", (P(), P(("a", "b")))),
        ("four groups", (P(None, None, None, "b"), P())),
        ("four groups", (P(None, None, "b"), P("a"))),
        ("depthwise, two features each", (P(), P("a", None, None, "b"))),
        ("batches in groups", (P("a"), P(None, None, None, "b"))),
        ("batches in groups", (P(), P(None, None, None, ("a", "b")))),
    ],
)
def test_pinned_arguments_send_what_is_planned(name: str, pins: tuple[Any, ...]) -> None:
    assert_as_planned(*PROGRAMS[name], mesh="a=2,b=4", in_shardings=pins)


def test_images_of_a_convolution_in_groups_stay_whole() -> None:
    fn, args = PROGRAMS["four groups"]
    plan = autoshard.plan(fn, *args, mesh="a=2,b=4", in_shardings=(P(), P(None, "a", "b")))
    strategies = [op.strategy or "" for op in plan.ops if op.name == "convolution"]
    assert len(strategies) == 3
    for strategy in strategies:
        assert re.match(r"\[[^\]]*?\}, \{\}, \{\}, \{", strategy), strategy


def test_nothing_is_sent_for_a_batch_of_transforms() -> None:
    fn, args = PROGRAMS["fft"]
    assert autoshard.plan(fn, *args, cluster="cpu:8").collectives == ()
