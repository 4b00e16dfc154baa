"""``autoshard.pipeline_stage``: which ops of a module it marks, and what it refuses."""

from __future__ import annotations

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_shard import lower_as_autoshard

import autoshard

X = jnp.arange(8.0 * 4).reshape(8, 4)
W = jnp.arange(4.0 * 4).reshape(4, 4)


def stages(fn, *args):
    """The stage of every mark, in the order of the text."""
    return [int(n) for n in re.findall(r"autoshard.stage = (\d+)", lower_as_autoshard(fn, *args))]


def layer(w, x):
    return jnp.tanh(x @ w)


def loss(w, x):
    h = autoshard.pipeline_stage(layer, 0)(w, x)
    return autoshard.pipeline_stage(layer, 1)(w, h).sum()


def test_arguments_and_results_of_a_function_are_marked():
    assert stages(autoshard.pipeline_stage(layer, 2), W, X) == [2, 2, 2]


def test_arrays_of_a_pytree_are_marked_and_the_rest_stays():
    tree = autoshard.pipeline_stage({"a": X, "name": "b", "n": 3}, 1)
    assert (tree["name"], tree["n"]) == ("b", 3)
    assert stages(lambda x: autoshard.pipeline_stage({"a": x, "b": x + 1}, 1), X) == [1, 1]


def test_cotangents_are_marked_as_their_values():
    # Weights, activations and results, forwards; the same backwards, x of stage 0 has none.
    assert stages(loss, W, X) == [0, 0, 0, 1, 1, 1]
    assert stages(jax.grad(loss), W, X)[-5:] == [1, 1, 1, 0, 0]


def test_derivatives_are_those_of_the_function():
    plain = jax.grad(lambda w, x: layer(w, layer(w, x)).sum())
    np.testing.assert_array_equal(jax.grad(loss)(W, X), plain(W, X))
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(W, X), plain(W, X))
    _, tangent = jax.jvp(loss, (W, X), (W, X))
    assert np.isfinite(tangent)


def test_integers_have_marks_and_no_derivatives():
    def look_up(table, rows):
        return autoshard.pipeline_stage(lambda t, r: t[r].sum(), 1)(table, rows)

    rows = jnp.array([1, 2])
    assert stages(jax.grad(look_up), W, rows)
    assert jax.grad(look_up)(W, rows).sum() == 8


@pytest.mark.parametrize(
    "changed",
    [
        lambda f: jax.vmap(f, in_axes=(None, 0)),
        lambda f: jax.checkpoint(f),
        lambda f: lambda w, x: jax.lax.scan(lambda h, _: (f(w, h), None), x, length=3)[0],
        lambda f: jax.jit(f),
    ],
    ids=["vmap", "checkpoint", "scan", "jit"],
)
def test_marks_survive(changed):
    marked = changed(autoshard.pipeline_stage(layer, 1))
    assert set(stages(marked, W, X)) == {1}
    gradient = jax.grad(lambda w, x: marked(w, x).sum())
    assert len(stages(gradient, W, X)) > len(stages(marked, W, X))
    assert "autoshard" not in jax.jit(gradient).lower(W, X).as_text()


def test_an_nnx_module_stays_one():
    plain = nnx.Linear(4, 6, rngs=nnx.Rngs(0))
    marked = autoshard.pipeline_stage(plain, 3)
    assert isinstance(marked, nnx.Linear)
    graph, state = nnx.split(marked)
    assert stages(lambda s, x: nnx.merge(graph, s)(x), state, X) == [3, 3]
    np.testing.assert_array_equal(marked(X), plain(X))


def test_an_equinox_module_stays_one():
    plain = eqx.nn.Linear(4, 6, key=jax.random.key(0))
    marked = autoshard.pipeline_stage(plain, 3)
    assert isinstance(marked, eqx.nn.Linear)
    assert stages(lambda m, x: m(x), marked, X[0]) == [3, 3]


def test_numbers_of_stages_are_whole_and_not_negative():
    for wrong in (-1, 1.5, True, "1"):
        with pytest.raises(autoshard.errors.StrategyError, match=r"test_pipeline_stage.py:\d+: "):
            autoshard.pipeline_stage(layer, wrong)
    with pytest.raises(autoshard.errors.StrategyError, match="stage -1 is no number of a stage"):
        autoshard.pipeline_stage(X, -1)


def test_without_a_pipeline_marks_say_nothing():
    plan = autoshard.plan(loss, W, X, cluster="cpu:2")
    assert "@autoshard.pipeline_stage" not in plan.to_mlir()
