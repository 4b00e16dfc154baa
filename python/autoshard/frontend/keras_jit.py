"""``autoshard.keras_jit``: the step of a keras model's ``fit``, planned."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, TypeVar, Unpack, cast

import jax

from autoshard.errors import PlanError
from autoshard.frontend.jit import JitOptions, jit
from autoshard.ir.lowering import user_line

Model = TypeVar("Model")

_GIVEN = ("donate_argnums", "donate_argnames", "static_argnums", "static_argnames")
"""Options that say something of the arguments of a step, which are keras' own."""

_DISTRIBUTED = ("mesh", "in_shardings")
"""Those that a distribution of keras says."""


def keras_jit(model: Model, **options: Unpack[JitOptions]) -> Model:
    """``autoshard.jit`` for the train step that ``fit`` of a keras model runs.

    Variables of the model and of its optimizer are cut as the plan has them from the first step on,
    and lie there after ``fit``. ``evaluate`` and ``predict`` are compiled by ``jax.jit`` for
    variables where they lie. A last batch of another size has a plan of its own.

    Under ``keras.distribution`` its mesh is the plan's, and what it cuts are pins: the batch, and
    variables with a layout of their own or of its ``LayoutMap``. Variables that it would copy to
    all devices are the plan's to cut.

    Args:
        model: A compiled ``keras.Model``, changed in place: keras no longer compiles its steps.
            What ``compile`` is given later counts after another ``keras_jit``.
        options: As for ``autoshard.jit``, but for donated and static arguments. Argument 0 of a
            step is its state, argument 1 the batch.

    Returns:
        ``model``; its ``train_step`` is what ``autoshard.jit`` returns.

    Raises:
        PlanError: Keras computes with another backend than JAX, the model is not compiled or runs
            eagerly, or an option says what keras or its distribution decides.

    Example:
        model.compile(optimizer="adam", loss="mse")
        autoshard.keras_jit(model, cluster="v5e:2x4").fit(x, y)
    """
    given: Any = model
    why = _cannot_be_planned(given) or next(
        (f"{name} is decided: fit donates its state" for name in _GIVEN if name in options), None
    )
    distribution: Any = None if why else _keras().distribution.distribution()
    if distribution is not None:
        why = next(
            (
                f"{name}= and keras.distribution both say how arrays lie. Leave {name} out, or take"
                " the distribution away: keras.distribution.set_distribution(None)"
                for name in _DISTRIBUTED
                if name in options
            ),
            None,
        )
    if why is not None:
        raise PlanError(f"keras_jit({getattr(given, 'name', given)}): {why}.", user_line())
    kind = cast(Any, type(model))
    given.jit_compile = False
    step = kind.train_step.__get__(given)
    if distribution is None:
        given.train_step = jit(step, **{**options, "donate_argnums": 0})
    else:
        given.train_step = _DistributedStep(given, step, distribution, options)
    given.test_step = jax.jit(kind.test_step.__get__(given), donate_argnums=0)
    # Keras passes on the variables that it gave, so that nothing is donated.
    given.predict_step = jax.jit(kind.predict_step.__get__(given))
    given.train_function = given.test_function = given.predict_function = None
    return model


def _cannot_be_planned(model: Any) -> str | None:
    keras = _keras()
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
    return None


def _keras() -> Any:
    return importlib.import_module("keras")


class _DistributedStep:
    """A train step whose pins are those of a distribution.

    They are read in the first call: before, keras has not made all variables.
    """

    def __init__(self, model: Any, step: Any, distribution: Any, options: JitOptions) -> None:
        self._model = model
        self._step = step
        self._distribution = distribution
        self._options = options
        self._planned: Any = None

    def __call__(self, state: Any, data: Any) -> Any:
        return self.planned(state, data)

    @property
    def planned(self) -> Any:
        """What ``autoshard.jit`` returns for the step."""
        if self._planned is None:
            options: JitOptions = {"mode": "auto", **self._options, "donate_argnums": 0}
            options["in_shardings"] = self._pins()
            self._planned = jit(self._step, **options)
        return self._planned

    @property
    def variables_of_step(self) -> tuple[Sequence[Any], ...]:
        """The state of a step: trainable variables, others, the optimizer's, the metrics'."""
        model = self._model
        optimizer = () if model.optimizer is None else model.optimizer.variables
        return (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer,
            model.metrics_variables,
        )

    def _pins(self) -> Any:
        mesh = self._distribution.device_mesh.backend_mesh
        state = tuple([self._pin(one) for one in kind] for kind in self.variables_of_step)
        batch = jax.sharding.PartitionSpec(self._distribution.batch_dim_name)
        return state, jax.sharding.NamedSharding(mesh, batch)

    def _pin(self, variable: Any) -> Any:
        """The layout of a variable, None if it is one copy a device."""
        layout = self._distribution.get_variable_layout(variable)
        is_cut = any(axis is not None for axis in layout.axes)
        return layout.backend_layout if is_cut else None
