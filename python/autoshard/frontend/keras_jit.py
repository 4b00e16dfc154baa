"""``autoshard.keras_jit``: the step of a keras model's ``fit``, planned."""

from __future__ import annotations

import importlib
from typing import Any, TypeVar, Unpack, cast

import jax

from autoshard.errors import PlanError
from autoshard.frontend.jit import JitOptions, jit
from autoshard.ir.lowering import user_line

Model = TypeVar("Model")

_GIVEN = ("donate_argnums", "donate_argnames", "static_argnums", "static_argnames")
"""Options that say something of the arguments of a step, which are keras' own."""


def keras_jit(model: Model, **options: Unpack[JitOptions]) -> Model:
    """``autoshard.jit`` for the train step that ``fit`` of a keras model runs.

    Variables of the model and of its optimizer are cut as the plan has them from the first step on,
    and lie there after ``fit``. ``evaluate`` and ``predict`` are compiled by ``jax.jit`` for
    variables where they lie. A last batch of another size has a plan of its own.

    Args:
        model: A compiled ``keras.Model``, changed in place: keras no longer compiles its steps.
            What ``compile`` is given later counts after another ``keras_jit``.
        options: As for ``autoshard.jit``, but for donated and static arguments. Argument 0 of a
            step is its state, argument 1 the batch.

    Returns:
        ``model``; its ``train_step`` is what ``autoshard.jit`` returns.

    Raises:
        PlanError: Keras computes with another backend than JAX, the model is not compiled or runs
            eagerly, ``keras.distribution`` is set, or an option says what keras decides.

    Example:
        model.compile(optimizer="adam", loss="mse")
        autoshard.keras_jit(model, cluster="v5e:2x4").fit(x, y)
    """
    given: Any = model
    why = _cannot_be_planned(given) or next(
        (f"{name} is decided: fit donates its state" for name in _GIVEN if name in options), None
    )
    if why is not None:
        raise PlanError(f"keras_jit({getattr(given, 'name', given)}): {why}.", user_line())
    kind = cast(Any, type(model))
    given.jit_compile = False
    given.train_step = jit(kind.train_step.__get__(given), **{**options, "donate_argnums": 0})
    given.test_step = jax.jit(kind.test_step.__get__(given), donate_argnums=0)
    # Keras passes on the variables that it gave, so that nothing is donated.
    given.predict_step = jax.jit(kind.predict_step.__get__(given))
    given.train_function = given.test_function = given.predict_function = None
    return model


def _cannot_be_planned(model: Any) -> str | None:
    keras: Any = importlib.import_module("keras")
    if not isinstance(model, keras.Model):
        return f"it is a {type(model).__name__}, not a keras.Model"
    if keras.backend.backend() != "jax":
        return (
            f"keras computes with {keras.backend.backend()}: set KERAS_BACKEND=jax before keras is"
            " imported"
        )
    if not model.compiled:
        return "model.compile(..) has to come first: it says what a step computes"
    if model.run_eagerly:
        return "it is compiled with run_eagerly=True, which runs op by op: leave that out"
    if keras.distribution.distribution() is not None:
        return (
            "keras.distribution is set, which says how variables lie: take it away"
            " (keras.distribution.set_distribution(None)) and give mesh= or in_shardings= here"
        )
    return None
