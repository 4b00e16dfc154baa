"""ResNet-50, a U-Net and ConvNeXt in whole numbers: a sharded step must give the same bits.

The layers are those of the published networks, at any depth and width, but for normalisation:
subtracting the mean of all pixels stands for it, ``wrapped`` for the division, and a sum for the
mean of the last pixels, whose gradients would round to zero. Batches are small beside the images,
so that a search cuts images.

Sources: He et al. 2015 (arXiv:1512.03385), Ronneberger et al. 2015 (arXiv:1505.04597), Liu et al.
2022 (arXiv:2201.03545).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from models import wrapped

import autoshard

Array = Any
Take = Callable[..., Array]
"""Gives the next parameter, of this shape."""

_NHWC = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True)
class Network:
    """An image network and the images it is fed."""

    name: str
    apply: Callable[[Take, Array], Array]
    """Images ``(batch, height, width, 3)`` to classes ``(batch, ..., classes)``."""
    pixels: int
    """Height and width of an image; a power of 2, so that means are exact."""
    batch: int = 2

    def step(self, parameters: Sequence[Array], images: Array) -> tuple[Array, Sequence[Array]]:
        """The sum of the squares of what comes out, and its gradients."""

        def loss(parameters: Sequence[Array]) -> Array:
            given = iter(parameters)
            return jnp.sum(self.apply(lambda *_: next(given), images) ** 2)

        return jax.value_and_grad(loss)(parameters)

    def arguments(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Parameters and images: small integers, the same at each call."""
        random = np.random.default_rng(0)
        images = random.integers(-2, 3, (self.batch, self.pixels, self.pixels, 3))
        shapes = list(self._shapes())
        drawn = [random.integers(-1, 2, shape).astype(np.float32) for shape in shapes]
        return drawn, images.astype(np.float32)

    def _shapes(self) -> Iterator[tuple[int, ...]]:
        asked: list[tuple[int, ...]] = []

        def take(*shape: int) -> Array:
            asked.append(shape)
            return jnp.zeros(shape)

        images = jax.ShapeDtypeStruct((self.batch, self.pixels, self.pixels, 3), jnp.float32)
        jax.eval_shape(lambda images: self.apply(take, images), images)
        yield from asked


def _convolution(
    take: Take, x: Array, features: int, window: int, stride: int = 1, groups: int = 1
) -> Array:
    kernel = take(window, window, x.shape[-1] // groups, features)
    strides = (stride, stride)
    return wrapped(
        lax.conv_general_dilated(
            x, kernel, strides, "SAME", dimension_numbers=_NHWC, feature_group_count=groups
        )
    )


def _normalised(x: Array) -> Array:
    return wrapped(x - jnp.mean(x, (0, 1, 2)))


def _rectified(x: Array) -> Array:
    return jnp.maximum(_normalised(x), 0)


def _largest(x: Array, window: int, stride: int) -> Array:
    sizes = (1, window, window, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, *sizes, "SAME")


def _classes(take: Take, x: Array, classes: int) -> Array:
    return wrapped(wrapped(jnp.sum(x, (1, 2))) @ take(x.shape[-1], classes))


def residual_network(
    depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
) -> Callable[[Take, Array], Array]:
    """ResNet-50 with bottlenecks, strides in their 3x3 convolutions."""

    def bottleneck(take: Take, x: Array, features: int, stride: int) -> Array:
        inner = _rectified(_convolution(take, x, features, 1))
        inner = _rectified(_convolution(take, inner, features, 3, stride))
        made = _normalised(_convolution(take, inner, 4 * features, 1))
        if stride > 1 or x.shape[-1] != made.shape[-1]:
            x = _normalised(_convolution(take, x, 4 * features, 1, stride))
        return jnp.maximum(wrapped(x + made), 0)

    def apply(take: Take, x: Array) -> Array:
        x = _largest(_rectified(_convolution(take, x, width, 7, 2)), 3, 2)
        for stage, depth in enumerate(depths):
            for block in range(depth):
                x = bottleneck(take, x, width << stage, 2 if stage and not block else 1)
        return _classes(take, x, classes)

    return apply


def u_network(levels: int = 4, width: int = 64, classes: int = 4) -> Callable[[Take, Array], Array]:
    """A U-Net: down by max pools, up by transposed convolutions, each level handed across."""

    def twice(take: Take, x: Array, features: int) -> Array:
        for _ in range(2):
            x = _rectified(_convolution(take, x, features, 3))
        return x

    def enlarged(take: Take, x: Array, features: int) -> Array:
        kernel = take(2, 2, x.shape[-1], features)
        return wrapped(lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=_NHWC))

    def apply(take: Take, x: Array) -> Array:
        handed: list[Array] = []
        for level in range(levels):
            handed.append(twice(take, x, width << level))
            x = _largest(handed[-1], 2, 2)
        x = twice(take, x, width << levels)
        for level in reversed(range(levels)):
            up = enlarged(take, x, width << level)
            x = twice(take, jnp.concatenate((handed[level], up), -1), width << level)
        return _convolution(take, x, classes, 1)

    return apply


def convolutions_next(
    depths: Sequence[int] = (3, 3, 9, 3), width: int = 96, classes: int = 1000
) -> Callable[[Take, Array], Array]:
    """ConvNeXt-T: depthwise 7x7 convolutions, then two dense layers at each pixel."""

    def block(take: Take, x: Array) -> Array:
        features = x.shape[-1]
        inner = _normalised(_convolution(take, x, features, 7, groups=features))
        inner = jnp.maximum(wrapped(inner @ take(features, 4 * features)), 0)
        return wrapped(x + inner @ take(4 * features, features))

    def apply(take: Take, x: Array) -> Array:
        x = _normalised(_convolution(take, x, width, 4, 4))
        for stage, depth in enumerate(depths):
            if stage:
                x = _convolution(take, _normalised(x), width << stage, 2, 2)
            for _ in range(depth):
                x = block(take, x)
        return _classes(take, _normalised(x), classes)

    return apply


def cut_images(plan: autoshard.Plan) -> int:
    """Convolutions of which each device has a part of the image only."""
    strategies = (op.strategy or "" for op in plan.ops if op.name == "convolution")
    first_operands = (strategy.partition("]")[0].split("{")[2:4] for strategy in strategies)
    return sum(any(not dim.startswith("}") for dim in image) for image in first_operands)


def networks() -> tuple[Network, ...]:
    """As published, on small images."""
    return (
        Network("ResNet-50", residual_network(), 64),
        Network("U-Net", u_network(), 64),
        Network("ConvNeXt-T", convolutions_next(), 64),
    )


def small_networks() -> tuple[Network, ...]:
    """A block of each kind, few features."""
    return (
        Network("ResNet", residual_network((1, 1), 8, 16), 32),
        Network("U-Net", u_network(2, 8), 16),
        Network("ConvNeXt", convolutions_next((1, 1), 8, 16), 32),
    )
