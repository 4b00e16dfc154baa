"""``autoshard.shard`` on flax nnx and equinox modules: they stay modules."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_shard import marks

import autoshard

X = jnp.arange(8.0 * 4).reshape(8, 4)


def nnx_linear():
    return nnx.Linear(4, 6, rngs=nnx.Rngs(0))


def equinox_linear():
    return eqx.nn.Linear(4, 6, key=jax.random.key(0))


def test_nnx_module_keeps_parameters_paths_and_class_name():
    plain = nnx_linear()
    marked = autoshard.shard(plain, ((2, 1),), (2, 1))
    assert isinstance(marked, nnx.Linear)
    assert type(marked).__name__ == "Linear"
    assert marked.kernel is plain.kernel
    assert nnx.to_flat_state(nnx.state(marked)).paths == nnx.to_flat_state(nnx.state(plain)).paths
    np.testing.assert_array_equal(marked(X), plain(X))


def test_nnx_module_is_marked_inside_another_and_under_its_transforms():
    class Net(nnx.Module):
        def __init__(self):
            self.up = autoshard.shard(nnx_linear(), ((2, 1),), (2, 3))

        def __call__(self, x):
            return jnp.tanh(self.up(x))

    net = Net()
    graph, state = nnx.split(net)
    assert marks(lambda s, x: nnx.merge(graph, s)(x), state, X) == ["in 0 (2, 1)", "out 0 (2, 3)"]
    loss = nnx.jit(nnx.grad(lambda net, x: net(x).sum()))(net, X)
    assert nnx.to_flat_state(loss).paths == nnx.to_flat_state(state).paths


def test_plain_nnx_module_stays_unmarked():
    plain = nnx_linear()
    autoshard.shard(plain, ((2, 1),))
    graph, state = nnx.split(plain)
    assert marks(lambda s, x: nnx.merge(graph, s)(x), state, X) == []


def test_nnx_parameters_by_path():
    marked = autoshard.shard(
        nnx_linear(), ((2, 1),), parameter_strategy={"kernel": (1, 2), "bias": (2,)}
    )
    graph, state = nnx.split(marked)
    found = marks(lambda s, x: nnx.merge(graph, s)(x), state, X)
    assert sorted(found) == ["in 0 (2, 1)", "in 1 (2)", "in 2 (1, 2)"]
    np.testing.assert_array_equal(marked(X), nnx_linear()(X))


def test_what_an_nnx_module_writes_reaches_it_when_parameters_are_marked():
    plain = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    marked = autoshard.shard(
        nnx.BatchNorm(4, rngs=nnx.Rngs(0)), ((2, 1),), parameter_strategy={"scale": (2,)}
    )
    scale = marked.scale
    nnx.jit(lambda m, x: m(x))(marked, X)
    plain(X)
    np.testing.assert_allclose(marked.mean[...], plain.mean[...], rtol=1e-6)
    assert marked.scale is scale


def test_equinox_module_keeps_parameters_paths_and_class_name():
    plain = equinox_linear()
    marked = autoshard.shard(plain, ((4,),), (2,))
    assert isinstance(marked, eqx.nn.Linear)
    assert type(marked).__name__ == "Linear"
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(marked)]
    assert paths == [".weight", ".bias"]
    assert marks(lambda m, x: m(x), marked, X[0]) == ["in 0 (4)", "out 0 (2)"]
    assert marks(lambda m, x: m(x), plain, X[0]) == []
    np.testing.assert_array_equal(marked(X[0]), plain(X[0]))


def test_equinox_parameters_by_path():
    marked = autoshard.shard(equinox_linear(), parameter_strategy={"weight": (2, 1)})
    assert marks(lambda m, x: m(x), marked, X[0]) == ["in 1 (2, 1)"]
    assert marks(lambda m, x: jax.vmap(m)(x), marked, X) == ["in 1 (2, 1)"]


@pytest.mark.parametrize("make", [nnx_linear, equinox_linear])
def test_unknown_parameter(make):
    with pytest.raises(
        autoshard.StrategyError, match=r"test_shard_modules.py:\d+: Linear has no parameter 'w'"
    ):
        autoshard.shard(make(), parameter_strategy={"w": (2, 1)})


def test_parameters_of_a_function():
    with pytest.raises(autoshard.StrategyError, match="parameter_strategy names parameters"):
        autoshard.shard(jnp.tanh, parameter_strategy={"w": (2, 1)})


def test_wrong_parameter_strategy():
    with pytest.raises(autoshard.StrategyError, match=r"Linear.weight: dim 0 \(size 6\)"):
        autoshard.shard(equinox_linear(), parameter_strategy={"weight": (4, 1)})(X[0])


def test_dot_general_of_a_flax_layer_can_be_the_sharded_one():
    dot = autoshard.shard(jax.lax.dot_general, ((2, 1), (1, 3)))
    layer = nnx.Linear(4, 6, rngs=nnx.Rngs(0), dot_general=dot)
    graph, state = nnx.split(layer)
    assert marks(lambda s, x: nnx.merge(graph, s)(x), state, X) == ["in 0 (2, 1)", "in 1 (1, 3)"]


def test_method_of_a_module():
    class Net(eqx.Module):
        inner: eqx.nn.Linear

        def half(self, x):
            return self.inner(x) / 2

    net = Net(equinox_linear())
    assert marks(lambda n, x: autoshard.shard(n.half, ((2,),))(x), net, X[0]) == ["in 0 (2)"]
