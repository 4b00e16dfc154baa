"""Zeros that compiled programs multiply, in plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autoshard

GPU = "h100:1"


def planned(
    function: Callable[..., Any], *shapes: Any, cluster: str = GPU, without: str = "", **more: Any
) -> Any:
    """A plan of one device, without a rule of the compiler."""
    name = f"xla-gpu-0.10.2:without={without}" if without else None
    return autoshard.plan(function, *shapes, cluster=cluster, compiler=name, **more)


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
