"""Train steps of models of keras and keras-hub, of whose weights there are shapes alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.programs.storage import Case, spec, train


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over all labels, in float32."""
    logits = logits.astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def classified(model: Any, shape: tuple[int, ...], labelled: tuple[int, ...] | None = None) -> Case:
    """A classifier's train step with momentum, batch statistics updated.

    Args:
        model: From images to classes.
        shape: Of images.
        labelled: Shape of labels; None: one an image.
    """

    def loss(weights: Any, rest: Any, images: Any, labels: Any) -> Any:
        logits, rest = called(model, weights, rest, images, training=True)
        return cross_entropy(logits, labels), rest

    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(weights: Any, state: Any, rest: Any, images: Any, labels: Any) -> Any:
        (value, rest), gradients = jax.value_and_grad(loss, has_aux=True)(
            weights, rest, images, labels
        )
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, rest, value

    weights = [spec(*v.shape) for v in model.trainable_variables]
    rest = [spec(*v.shape, dtype=v.dtype) for v in model.non_trainable_variables]
    state = jax.eval_shape(optimizer.init, weights)
    images, labels = spec(*shape), spec(*(labelled or shape[:1]), dtype=jnp.int32)
    return step, (weights, state, rest, images, labels), (0, 1)


def token_step(backbone: Any, batch: int, tokens: int, *zeros: str) -> Case:
    """A backbone of keras-hub over tokens, its embedding as the head, AdamW.

    ``zeros``: inputs for each token that are 0.
    """

    def loss(weights: Any, rest: Any, ids: Any) -> Any:
        inputs = {"token_ids": ids, "padding_mask": jnp.ones_like(ids)}
        hidden, _ = called(
            backbone, weights, rest, inputs | dict.fromkeys(zeros, jnp.zeros_like(ids))
        )
        hidden = hidden["sequence_output"] if isinstance(hidden, dict) else hidden
        table = weights[0].astype(hidden.dtype)
        return cross_entropy(hidden[:, :-1] @ table.T, ids[:, 1:])

    return trained(backbone, loss, spec(batch, tokens, dtype=jnp.int32))


def trained(model: Any, loss: Callable[..., Any], *inputs: Any) -> Case:
    """A train step with AdamW of a loss of the weights, what is not trained, and inputs."""
    weights = [spec(*v.shape) for v in model.trainable_variables]
    rest = [spec(*v.shape, dtype=v.dtype) for v in model.non_trainable_variables]
    return train(loss, weights, rest, *inputs, optimizer=optax.adamw(1e-4))


def model_of(kind: str | type, **sizes: Any) -> Any:
    """A model of keras-hub, by its name or class, of whose weights there are shapes alone."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras
    import keras_hub

    keras.config.set_dtype_policy("mixed_bfloat16")
    with keras.StatelessScope(initialize_variables=False):
        made = getattr(keras_hub.models, kind) if isinstance(kind, str) else kind
        return made(**sizes)


def called(model: Any, weights: Any, rest: Any, inputs: Any, *, training: bool = False) -> Any:
    """Outputs, and what is not trained as it is then; nothing else is given values."""
    import keras

    with keras.StatelessScope(initialize_variables=False):
        return model.stateless_call(weights, rest, inputs, training=training)
