"""Train steps of libraries of neural networks, on handwritten digits.

No bias stands before a batch norm, and none makes keys: their gradients are zero but for rounding,
which Adam makes large.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.programs.libraries.library_program import Jit, digits, program

ROWS = 256
STEPS = 3


def _cross_entropy(logits: Any, labels: Any) -> Any:
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@program("flax nnx", "dropout, batch norm, Adam; modules updated in place by nnx_jit")
def nnx_in_place(jit: Jit) -> Any:
    import optax
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Linear(64, 128, use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(128, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)
            self.last = nnx.Linear(128, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))

    def train_step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda m: _cross_entropy(m(x), y))(model)
        optimizer.update(model, gradients)
        return loss

    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    step = jit(train_step, batch=(2, 3), flavour="nnx_jit")
    losses = [step(model, optimizer, *digits(ROWS)) for _ in range(STEPS)]
    return losses, nnx.state(model, nnx.Param, nnx.BatchStat)


@program("flax nnx", "a transformer block by split and merge, AdamW")
def nnx_split(jit: Jit) -> Any:
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embed = nnx.Linear(8, 64, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(8, 64, use_bias=False, decode=False, rngs=rngs)
            self.norm = nnx.LayerNorm(64, rngs=rngs)
            self.last = nnx.Linear(64, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = self.embed(x.reshape(-1, 8, 8))
            return self.last(self.norm(x + self.attention(x)).mean(axis=1))

    graph, params = nnx.split(Block(nnx.Rngs(0)), nnx.Param)
    optimizer = optax.adamw(1e-3)

    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return _cross_entropy(nnx.merge(graph, params)(x), y)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    step = jit(train_step, batch=(2, 3))
    state, losses = optimizer.init(params), []
    for _ in range(STEPS):
        params, state, value = step(params, state, *digits(ROWS))
        losses.append(value)
    return losses, params


@program("flax linen", "a convolutional network, batch norm, TrainState")
def linen_train_state(jit: Jit) -> Any:
    import optax
    from flax import linen as nn
    from flax.training import train_state

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(16, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
            return nn.Dense(10)(x.reshape(len(x), -1))

    class State(train_state.TrainState):
        batch_stats: Any

    def train_step(state: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, new = state.apply_fn(variables, x, mutable=["batch_stats"])
            return _cross_entropy(logits, y), new["batch_stats"]

        (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients).replace(batch_stats=stats), value

    x, y = digits(ROWS)
    x = x.reshape(-1, 8, 8, 1)
    network = Network()
    variables = network.init(jax.random.key(0), x)
    state = State.create(
        apply_fn=network.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax.sgd(0.1, momentum=0.9),
    )
    step = jit(train_step, batch=(1, 2))
    losses: list[Any] = []
    for _ in range(STEPS):
        state, value = step(state, x, y)
        losses.append(value)
    return losses, state.params, state.batch_stats


@program("flax linen", "layers in nn.scan, computed again by nn.remat")
def linen_scan(jit: Jit) -> Any:
    import optax
    from flax import linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return x + nn.Dense(64)(nn.gelu(nn.Dense(128)(nn.LayerNorm()(x)))), None

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layers = nn.scan(
                nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=4
            )
            return nn.Dense(10)(layers()(x, None)[0])

    network = Network()
    x, y = digits(ROWS)
    params = network.init(jax.random.key(0), x)
    optimizer = optax.adam(1e-3)

    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: _cross_entropy(network.apply(p, x), y))(
            params
        )
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    step = jit(train_step, batch=(2, 3))
    state, losses = optimizer.init(params), []
    for _ in range(STEPS):
        params, state, value = step(params, state, x, y)
        losses.append(value)
    return losses, params


@program("equinox", "an MLP with dropout, filter_jit")
def equinox_filter_jit(jit: Jit) -> Any:
    import equinox as eqx
    import optax

    class Network(eqx.Module):
        mlp: Any
        drop: Any

        def __init__(self, key: Any) -> None:
            self.mlp = eqx.nn.MLP(64, 10, 128, 2, key=key)
            self.drop = eqx.nn.Dropout(0.1)

        def __call__(self, x: Any, key: Any) -> Any:
            return self.mlp(self.drop(x, key=key))

    optimizer = optax.adam(1e-3)

    def train_step(model: Any, state: Any, key: Any, x: Any, y: Any) -> Any:
        def loss(model: Any) -> Any:
            return _cross_entropy(jax.vmap(model)(x, jax.random.split(key, len(x))), y)

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, value

    model: Any = Network(jax.random.key(0))
    state: Any = optimizer.init(eqx.filter(model, eqx.is_array))
    step = jit(train_step, batch=(3, 4), flavour="filter_jit")
    losses: list[Any] = []
    for number in range(STEPS):
        model, state, value = step(model, state, jax.random.key(number), *digits(ROWS))
        losses.append(value)
    return losses, eqx.filter(model, eqx.is_array)


@program("haiku", "transform_with_state: batch norm and dropout")
def haiku_with_state(jit: Jit) -> Any:
    import haiku as hk
    import optax

    def network(x: Any) -> Any:
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(128, with_bias=False)(x), is_training=True)
        return hk.Linear(10)(hk.dropout(hk.next_rng_key(), 0.1, jax.nn.relu(x)))

    transformed = hk.transform_with_state(network)
    x, y = digits(ROWS)
    params, state = transformed.init(jax.random.key(0), x)
    optimizer = optax.adam(1e-3)

    def train_step(params: Any, state: Any, moments: Any, key: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, new = transformed.apply(params, state, key, x)
            return _cross_entropy(logits, y), new

        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(params, updates), new, moments, value

    step = jit(train_step, batch=(4, 5))
    moments, losses = optimizer.init(params), []
    for number in range(STEPS):
        params, state, moments, value = step(params, state, moments, jax.random.key(number), x, y)
        losses.append(value)
    return losses, params, state


def _keras_model() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


@program("keras", "stateless_call and stateless_apply")
def keras_stateless(jit: Jit) -> Any:
    import keras

    model, optimizer = _keras_model(), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(weights: Any, rest: Any, moments: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits, new = model.stateless_call(weights, rest, x, training=True)
            return loss_of(y, logits), new

        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        weights, moments = optimizer.stateless_apply(moments, gradients, weights)
        return weights, new, moments, value

    x, y = digits(ROWS)
    x = x.reshape(-1, 8, 8, 1)
    step = jit(train_step, batch=(3, 4))
    weights, rest, moments = (
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
        )
    )
    losses: list[Any] = []
    for _ in range(STEPS):
        weights, rest, moments, value = step(weights, rest, moments, x, y)
        losses.append(value)
    return losses, weights, rest


@program("keras", "model.fit of two epochs, its train_step jitted")
def keras_fit(jit: Jit) -> Any:
    model = _keras_model()
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", jit_compile=False)
    model.train_step = jit(model.train_step, batch=(1,))
    x, y = digits(4 * ROWS)
    history = model.fit(
        x.reshape(-1, 8, 8, 1), y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0
    )
    return history.history["loss"], [jnp.asarray(weight) for weight in model.get_weights()]
