"""``fit`` of keras models, planned: what keras gives by itself."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import autoshard

keras = pytest.importorskip("keras")

X = np.random.default_rng(0).normal(size=(160, 32)).astype("float32")
Y = (X[:, :8] > 0).astype("float32")


def model_of(seed: int = 0) -> Any:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(128, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(8),
        ]
    )
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return model


def trained(model: Any) -> list[Any]:
    history = model.fit(X, Y, batch_size=64, epochs=2, shuffle=False, verbose=0)
    scores = model.evaluate(X, Y, batch_size=64, verbose=0)
    return [history.history, scores, model.predict(X, batch_size=64, verbose=0)]


@pytest.mark.parametrize("options", [{"cluster": "cpu:8"}, {"mode": "data_parallel"}])
def test_fit_evaluate_and_predict_are_those_of_keras(options: dict[str, Any]) -> None:
    expected = trained(model_of())
    model = autoshard.keras_jit(model_of(), **options)
    found = trained(model)  # 160 examples: the last batch has 32
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    for weight in model.trainable_variables:
        assert len(weight.value.sharding.device_set) == 8


def test_a_later_compile_counts_after_another_call() -> None:
    model = autoshard.keras_jit(model_of(), mode="data_parallel")
    model.fit(X, Y, batch_size=160, verbose=0)
    model.compile(optimizer=keras.optimizers.Adam(0.0), loss="mse")
    before = np.asarray(model.trainable_variables[0].value)
    autoshard.keras_jit(model, mode="data_parallel").fit(X, Y, batch_size=160, verbose=0)
    np.testing.assert_array_equal(model.trainable_variables[0].value, before)


class Else:
    name = "else"


def without_compile() -> Any:
    return keras.Sequential([keras.Input((32,)), keras.layers.Dense(8)])


def run_eagerly() -> Any:
    model = without_compile()
    model.compile(loss="mse", run_eagerly=True)
    return model


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (Else, {}, r"keras_jit\(else\): it is a Else, not a keras\.Model"),
        (without_compile, {}, r"model\.compile\(\.\.\) has to come first"),
        (run_eagerly, {}, "run_eagerly=True, which runs op by op"),
        (model_of, {"donate_argnums": 0}, "donate_argnums is decided: fit donates its state"),
    ],
)
def test_what_cannot_be_planned_is_refused(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(autoshard.PlanError, match=said):
        autoshard.keras_jit(make(), cluster="cpu:8", **options)


@pytest.fixture
def distributed() -> Any:
    """Sets a distribution of keras, which ends with the test."""
    yield keras.distribution.set_distribution
    keras.distribution.set_distribution(None)


def model_parallel() -> Any:
    mesh = keras.distribution.DeviceMesh(
        (2, 4), ("batch", "model"), keras.distribution.list_devices()
    )
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*/dense[_0-9]*/kernel"] = (None, "model")
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


@pytest.mark.parametrize("options", [{}, {"cluster": "cpu:8"}])
def test_layouts_of_keras_are_pins(distributed: Any, options: dict[str, Any]) -> None:
    expected = trained(model_of())
    distributed(model_parallel())
    model = autoshard.keras_jit(model_of(), **options)
    found = trained(model)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    kernels = [weight for weight in model.trainable_variables if weight.name == "kernel"]
    momenta = [one for one in model.optimizer.variables if "kernel_momentum" in one.path]
    assert len(kernels) == len(momenta) == 2
    for one in (*kernels, *momenta):
        assert one.value.sharding.spec == jax.sharding.PartitionSpec(None, "model"), one.path
        assert one.value.sharding.mesh.shape == {"batch": 2, "model": 4}


def test_a_batch_is_cut_as_keras_cuts_it(distributed: Any) -> None:
    expected = trained(model_of())
    distributed(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
    model = autoshard.keras_jit(model_of())
    found = trained(model)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    state = tuple([one.value for one in kind] for kind in model.train_step.variables_of_step)
    plan = model.train_step.planned.plan(state, (X[:64], Y[:64], None))
    batch = [value for value in plan.arguments if value.name.startswith("data[")]
    assert [value.sharding.num_shards(0) for value in batch] == [8, 8]


def test_a_distribution_says_mesh_and_pins(distributed: Any) -> None:
    distributed(model_parallel())
    with pytest.raises(autoshard.PlanError, match=r"mesh= and keras\.distribution both say how"):
        autoshard.keras_jit(model_of(), mesh="batch=2,model=4")
