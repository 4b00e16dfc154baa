"""Modules of flax nnx and equinox, planned: what nnx.jit and equinox.filter_jit give."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

nnx = pytest.importorskip("flax.nnx")
equinox = pytest.importorskip("equinox")
optax = pytest.importorskip("optax")

X = jax.random.normal(jax.random.key(0), (64, 32))
Y = jax.random.normal(jax.random.key(1), (64, 8))


class Noisy(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.inner = nnx.Linear(32, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.drop(self.norm(self.inner(x)))


def nnx_step(model: Any, optimizer: Any, batch: Any, scale: int = 1) -> Any:
    loss, grads = nnx.value_and_grad(lambda m: ((m(batch[0]) - batch[1]) ** 2).mean() * scale)(
        model
    )
    optimizer.update(model, grads)
    return loss


def losses(jitted: Any, **options: Any) -> tuple[list[float], Any]:
    model = Noisy(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-1), wrt=nnx.Param)
    step = jitted(nnx_step, static_argnames="scale", **options)
    return [float(step(model, optimizer, (X, Y), scale=2)) for _ in range(3)], (
        model,
        step,
        optimizer,
    )


def test_nnx_modules_optimizers_and_streams_are_updated_in_place() -> None:
    expected, (plain, *_) = losses(nnx.jit)
    found, (model, step, optimizer) = losses(
        autoshard.nnx_jit, cluster="cpu:8", donate_argnums=(0, 1)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for one, other in zip(
        jax.tree.leaves(nnx.state(plain)), jax.tree.leaves(nnx.state(model)), strict=True
    ):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)
    assert len(step._jitted._programs) == 1  # what a step wrote is what the next one takes
    plan = step.plan(model, optimizer, (X, Y), scale=2)
    names = [value.name for value in plan.arguments]
    assert "model['inner']['kernel'].value" in names, names


def test_arguments_are_called_in_lines_as_in_the_plan() -> None:
    def by_nnx(model: Any, x: Any, **more: Any) -> Any:
        return model(x).sum() * more["scale"]

    x = jnp.zeros((256, 1024))
    layers = (nnx.Linear(*sizes, rngs=nnx.Rngs(0)) for sizes in ((1024, 8192), (8192, 1024)))
    layer = nnx.Sequential(*layers)
    mlp = equinox.nn.MLP(1024, 1024, 8192, 2, key=jax.random.key(0))
    options: Any = {"cluster": "v5e:2x4"}
    for jitted, given, more in (
        (autoshard.nnx_jit(by_nnx, **options), layer, {"scale": jnp.ones(())}),
        (autoshard.filter_jit(lambda m, x: jax.vmap(m)(x).sum(), **options), mlp, {}),
    ):
        plan = jitted.plan(given, x, **more)
        lines = plan.annotations()
        called = {name for line in lines.lines for name in line.members}
        assert called
        assert called <= {value.name for value in plan.arguments}
        assert all(lines.spec_of(name) is not None for name in called)


def test_modules_that_share_variables_go_in_once() -> None:
    def both(pair: Any, again: Any, x: Any) -> Any:
        again.kernel[...] = again.kernel[...] * 2
        return pair[0](x)

    def run(jitted: Any) -> Any:
        layer = nnx.Linear(32, 8, rngs=nnx.Rngs(0))
        return jitted(both)([layer], layer, X), layer.kernel[...]

    for one, other in zip(
        run(nnx.jit), run(lambda f: autoshard.nnx_jit(f, cluster="cpu:8")), strict=True
    ):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_a_function_that_adds_variables_is_refused() -> None:
    def grows(layer: Any, x: Any) -> Any:
        layer.more = nnx.Param(x.sum())
        return layer(x)

    with pytest.raises(autoshard.PlanError, match=r"nnx_jit of grows.*changes the structure"):
        autoshard.nnx_jit(grows, cluster="cpu:8")(nnx.Linear(32, 8, rngs=nnx.Rngs(0)), X)
    with pytest.raises(autoshard.PlanError, match="out_shardings pins"):
        autoshard.nnx_jit(grows, cluster="cpu:8", out_shardings=jax.P())


def test_equinox_modules_go_in_and_come_back_with_what_is_no_array() -> None:
    optimizer = optax.adam(1e-2)

    def step(model: Any, state: Any, x: Any, *, name: str) -> Any:
        def loss(model: Any) -> Any:
            return ((jax.vmap(model)(x) - Y) ** 2).mean()

        value, grads = equinox.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state, model)
        return equinox.apply_updates(model, updates), state, {"loss": value, "name": name}

    def run(jitted: Any, **options: Any) -> Any:
        model: Any = equinox.nn.MLP(32, 8, 16, 1, key=jax.random.key(0))
        state: Any = optimizer.init(equinox.filter(model, equinox.is_array))
        train = jitted(step, **options)
        for name in ("first", "second"):
            model, state, told = train(model, state, X, name=name)
        return model, told

    plain, expected = run(equinox.filter_jit)
    model, told = run(autoshard.filter_jit, cluster="cpu:8")
    assert told["name"] == "second"
    np.testing.assert_allclose(told["loss"], expected["loss"], rtol=1e-5)
    assert model.activation is plain.activation
    np.testing.assert_allclose(model.layers[0].weight, plain.layers[0].weight, rtol=1e-3, atol=1e-4)
    assert len(model.layers[0].weight.sharding.device_set) == 8


def test_what_a_step_returns_lies_where_the_next_one_takes_it() -> None:
    """Equal shardings: such a call is made by C++, and sends nothing."""

    def equinox_step(model: Any, state: Any, x: Any) -> Any:
        def loss(model: Any) -> Any:
            return ((jax.vmap(model)(x) - Y) ** 2).mean()

        value, grads = equinox.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state, model)
        return equinox.apply_updates(model, updates), state, value

    def nnx_step(model: Any, means: Any, x: Any) -> Any:
        hidden = model(x)
        means = {"x": 0.9 * means["x"] + x.mean(0), "hidden": means["hidden"] + hidden.mean(0)}
        model.kernel[...] += means["x"][:, None] * 1e-3
        return means, hidden.sum()

    optimizer = optax.adam(1e-2)
    options: Any = {"mode": "data_parallel", "mesh": "d=8", "batch_argnums": 2}
    mlp: Any = equinox.nn.MLP(32, 8, 16, 1, key=jax.random.key(0))
    state = optimizer.init(equinox.filter(mlp, equinox.is_array))
    found = autoshard.filter_jit(equinox_step, **options).plan(mlp, state, X)
    assert jax.tree.leaves(found.in_shardings[:2]) == jax.tree.leaves(found.out_shardings[:2])

    layer = nnx.Linear(32, 8, rngs=nnx.Rngs(0))
    means = {"x": jnp.zeros(32), "hidden": jnp.zeros(8)}
    step = autoshard.nnx_jit(nnx_step, **options)
    found = step.plan(layer, means, X)
    assert jax.tree.leaves(found.in_shardings[1]) == jax.tree.leaves(found.out_shardings[1])
    expected = layer(X).sum()
    returned, value = step(layer, means, X)
    np.testing.assert_allclose(returned["x"], X.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_arrays_of_numpy_are_arrays_as_they_are_to_equinox() -> None:
    model: Any = equinox.nn.Linear(32, 8, key=jax.random.key(0))
    found = autoshard.filter_jit(lambda model, x: jax.vmap(model)(x), cluster="cpu:8")
    expected = jax.vmap(model)(X)
    for rows in (np.asarray(X), np.asarray(X) + 0):  # arrays are not told apart by their values
        np.testing.assert_allclose(found(model, rows), expected, rtol=1e-5, atol=1e-6)
    assert len(found._jitted._programs) == 1


def test_what_is_written_into_a_module_without_nnx_jit_is_warned_of_once() -> None:
    layer = nnx.Linear(32, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(layer, optax.sgd(1e-1), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        gradients = nnx.grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return model.kernel.sum()

    with pytest.warns(
        autoshard.AutoshardWarning, match=r"test_library_jit.py:\d+: step writes .*nnx_jit"
    ) as said:
        autoshard.jit(step, cluster="cpu:8")(layer, optimizer, X)
    assert len([warning for warning in said if "writes into" in str(warning.message)]) == 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """What a loop holds."""

    w: Any
    seen: Any


def test_what_is_written_and_returned_is_not_lost() -> None:
    """Warnings are errors here."""
    layer = nnx.Linear(32, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(layer, optax.sgd(1e-1), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        gradients = nnx.grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return model, optimizer

    autoshard.plan(step, layer, optimizer, X, cluster="cpu:8")

    def change(state: State, x: Any, lost: bool) -> Any:
        state.w = state.w - x.mean(0)
        state.seen = state.seen + 1
        return (state.seen, state.w * 2) if lost else state

    state = State(jnp.zeros(32), jnp.zeros(()))
    autoshard.plan(change, state, X, False, cluster="cpu:8", static_argnums=2)
    with pytest.warns(autoshard.AutoshardWarning, match=r"\(\[0\]\[0\].w\), and that is lost"):
        autoshard.plan(change, state, X, True, cluster="cpu:8", static_argnums=2)


def test_modules_that_are_read_and_dicts_that_are_changed_are_no_matter() -> None:
    def read(model: Any, batch: Any) -> Any:
        batch["x"] = batch["x"] * 2
        return model(batch.pop("x"))

    layer = nnx.Linear(32, 8, rngs=nnx.Rngs(0))
    found = autoshard.jit(read, cluster="cpu:8")(layer, {"x": X})
    np.testing.assert_allclose(found, layer(X * 2), rtol=1e-5)
