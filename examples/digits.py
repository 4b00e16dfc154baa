"""MindSpore's network of three matmuls on two layouts, trained on handwritten digits.

The network of its guide to advanced operator parallelism: a layout of three axes on the first
matmul, one of a single axis on the second, plain tuples on both relus, nothing on the third matmul
and nothing on what computes the gradients. The data are the 1,797 digits of 8x8 pixels that come
with scikit-learn. 8 virtual CPU devices, compared with one device step by step.

    python examples/digits.py
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich import print
from rich.table import Table
from sklearn.datasets import load_digits

import autoshard

Parameters = dict[str, jax.Array]
Batch = tuple[np.ndarray, np.ndarray]
Step = Callable[[Parameters, np.ndarray, np.ndarray], tuple[jax.Array, Parameters]]

LAYOUT = autoshard.Layout((2, 2, 2), ("dp", "sp", "mp"))
LAYOUT2 = autoshard.Layout((8,), ("tp",))

BATCH, HIDDEN, EPOCHS = 32, 512, 10
LEARNING_RATE = 0.15
"""The guide has 0.01, for the 60,000 digits of MNIST."""
DEVIATION = 0.03
"""Deviation of the first weights: the loss starts at ln 10, as no digit is likelier than others."""
TARGET = 0.8
"""Where the guide's table of losses ends, at step 90."""

matmul1 = autoshard.shard(
    jnp.matmul, in_strategy=(LAYOUT("mp", ("sp", "dp")), LAYOUT(("sp", "dp"), "None"))
)
relu1 = autoshard.shard(jax.nn.relu, in_strategy=((4, 1),))
matmul2 = autoshard.shard(jnp.matmul, in_strategy=(LAYOUT2("None", "tp"), LAYOUT2("tp", "None")))
relu2 = autoshard.shard(jax.nn.relu, in_strategy=((8, 1),))


def network(parameters: Parameters, images: Any) -> jax.Array:
    """Logits of the ten digits, ``(images, 10)``."""
    x = images.reshape(len(images), -1)
    x = relu1(matmul1(x, parameters["fc1"]))
    x = relu2(matmul2(x, parameters["fc2"]))
    return jnp.matmul(x, parameters["fc3"])


def loss(parameters: Parameters, images: Any, labels: Any) -> jax.Array:
    """Mean cross entropy."""
    likelihoods = jax.nn.log_softmax(network(parameters, images))
    return -jnp.mean(jnp.take_along_axis(likelihoods, labels[:, None], axis=1))


def train_step(parameters: Parameters, images: Any, labels: Any) -> tuple[jax.Array, Parameters]:
    """One step of SGD: the loss before it, and the parameters after it."""
    value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
    moved = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients)
    return value, moved


def initial_parameters() -> Parameters:
    """Normally distributed weights, no biases."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"fc1": (64, HIDDEN), "fc2": (HIDDEN, HIDDEN), "fc3": (HIDDEN, 10)}
    return {
        name: DEVIATION * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


@functools.cache
def digits() -> Batch:
    """All images, from 0 to 1, and their labels."""
    data: Any = load_digits()
    return (data.images / 16).astype(np.float32), data.target.astype(np.int32)


def batches(epoch: int) -> Iterator[Batch]:
    """All digits in a random order, but for those that fill no batch."""
    images, labels = digits()
    order = np.random.default_rng(epoch).permutation(len(images))
    for start in range(0, len(images) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield images[chosen], labels[chosen]


def train(step: Step, epochs: int = EPOCHS) -> tuple[list[list[float]], Parameters]:
    """Losses of each step of each epoch, and the parameters at the end."""
    parameters = initial_parameters()
    losses: list[list[float]] = []
    for epoch in range(epochs):
        losses.append([])
        for images, labels in batches(epoch):
            value, parameters = step(parameters, images, labels)
            losses[-1].append(float(value))
    return losses, parameters


def main() -> None:
    """Train on 8 devices and on one, and print the losses side by side."""
    jax.config.update("jax_num_cpu_devices", 8)
    step = autoshard.jit(train_step)
    print(step.plan(initial_parameters(), *next(batches(0))))
    (sharded, _), (alone, _) = train(step), train(jax.jit(train_step))
    table = Table("epoch", "step", "8 devices", "1 device")
    for epoch, (found, expected) in enumerate(zip(sharded, alone, strict=True)):
        for number in range(0, len(found), 10 if epoch < 2 else 50):
            row = (f"{found[number]:.6f}", f"{expected[number]:.6f}")
            table.add_row(str(epoch), str(number), *row)
    print(table)
    all_losses = [value for epoch in sharded for value in epoch]
    first = next(n for n, value in enumerate(all_losses) if value < TARGET)
    print(f"ln 10 is {math.log(10):.4f}; under {TARGET} for the first time at step {first}.")


if __name__ == "__main__":
    main()
