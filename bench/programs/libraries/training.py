"""What goes around a network: optimizers, checkpoints, losses of reinforcement learning."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bench.programs.libraries.library_program import Jit, digits, program

ROWS = 256


def _weights(*widths: int) -> Any:
    keys = jax.random.split(jax.random.key(0), len(widths))
    return [
        {"w": jax.random.normal(key, (rows, columns)) / rows**0.5, "b": jnp.zeros(columns)}
        for key, rows, columns in zip(keys, widths, widths[1:], strict=False)
    ]


def _mlp(layers: Any, x: Any) -> Any:
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def _loss(layers: Any, x: Any, y: Any) -> Any:
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(_mlp(layers, x), y).mean()


def _train_step(optimizer: Any) -> Any:
    import optax

    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(_loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return train_step


@program("optax", "MultiSteps of 2, a clip, a schedule, decay of some weights")
def optax_multi_steps(jit: Jit) -> Any:
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    inner = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)),
    )
    optimizer = optax.MultiSteps(inner, every_k_schedule=2)

    step = jit(_train_step(optimizer), batch=(2, 3))
    params: Any = _weights(64, 128, 10)
    state, losses = optimizer.init(params), []
    for _ in range(6):
        params, state, value = step(params, state, *digits(ROWS))
        losses.append(value)
    return losses, params


@program("optax", "L-BFGS with a line search in a loop", x64=True, tolerance=1e-8)
def optax_lbfgs(jit: Jit) -> Any:
    import optax

    optimizer = optax.lbfgs()

    def train_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return _loss(params, x, y) + 1e-3 * optax.tree.norm(params, squared=True)

        value, gradients = optax.value_and_grad_from_state(loss)(params, state=state)
        updates, state = optimizer.update(
            gradients, state, params, value=value, grad=gradients, value_fn=loss
        )
        return optax.apply_updates(params, updates), state, value

    step = jit(train_step, batch=(2, 3))
    params: Any = _weights(64, 10)
    state, losses = optimizer.init(params), []
    for _ in range(4):
        params, state, value = step(params, state, *digits(ROWS))
        losses.append(value)
    return losses, params


@program("orbax", "a checkpoint after two steps, restored where the step wants it, two more")
def orbax_resume(jit: Jit) -> Any:
    import optax
    import orbax.checkpoint as ocp

    optimizer = optax.adam(1e-3)

    step = jit(_train_step(optimizer), batch=(2, 3))
    x, y = digits(ROWS)
    params: Any = _weights(64, 128, 10)
    state = optimizer.init(params)
    for _ in range(2):
        params, state, _ = step(params, state, x, y)
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        path = Path(folder) / "step2"
        checkpointer.save(path, (params, state))
        checkpointer.wait_until_finished()
        like = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), (params, state)
        )
        params, state = checkpointer.restore(path, like)
    for _ in range(2):
        params, state, value = step(params, state, x, y)
    return params, value


@program("rlax", "Q-learning with a target network")
def rlax_q_learning(jit: Jit) -> Any:
    import optax
    import rlax

    optimizer = optax.adam(1e-3)

    def train_step(params: Any, target: Any, state: Any, moved: Any) -> Any:
        before, action, reward, discount, after = moved

        def loss(params: Any) -> Any:
            errors = jax.vmap(rlax.double_q_learning)(
                _mlp(params, before),
                action,
                reward,
                discount,
                _mlp(target, after),
                _mlp(params, after),
            )
            return rlax.l2_loss(errors).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, target, 0.1), state, value

    step = jit(train_step, batch=(3,))
    params: Any = _weights(8, 64, 4)
    target, state, losses = params, optimizer.init(params), []
    for number in range(3):
        keys = jax.random.split(jax.random.key(number), 4)
        moved = (
            jax.random.normal(keys[0], (ROWS, 8)),
            jax.random.randint(keys[1], (ROWS,), 0, 4),
            jax.random.normal(keys[2], (ROWS,)),
            jnp.full((ROWS,), 0.99),
            jax.random.normal(keys[3], (ROWS, 8)),
        )
        params, target, state, value = step(params, target, state, moved)
        losses.append(value)
    return losses, params, target


@program("distrax", "a flow of affine couplings, by likelihood")
def distrax_flow(jit: Jit) -> Any:
    import distrax
    import optax

    optimizer = optax.adam(1e-3)

    def log_prob(params: Any, x: Any) -> Any:
        layers: list[Any] = []
        for number, weights in enumerate(params):

            def conditioner(masked: Any, weights: Any = weights) -> Any:
                return _mlp(weights, masked).reshape(*masked.shape, 2)

            def coupled(found: Any) -> Any:
                return distrax.ScalarAffine(found[..., 0], log_scale=jnp.tanh(found[..., 1]))

            mask = jnp.arange(64) % 2 == number % 2
            layers.append(distrax.MaskedCoupling(mask, conditioner, coupled))
        base = distrax.MultivariateNormalDiag(jnp.zeros(64), jnp.ones(64))
        return distrax.Transformed(base, distrax.Inverse(distrax.Chain(layers))).log_prob(x)

    def train_step(params: Any, state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: -log_prob(p, x).mean())(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    step = jit(train_step, batch=(2,))
    params: Any = [_weights(64, 64, 128), _weights(64, 64, 128)]
    state, losses = optimizer.init(params), []
    for _ in range(3):
        params, state, value = step(params, state, digits(ROWS)[0])
        losses.append(value)
    return losses, params


@program("jraph", "two graph convolutions over a batch of graphs")
def jraph_network(jit: Jit) -> Any:
    import jraph
    import numpy as np

    random = np.random.default_rng(0)
    nodes, edges = 512, 2048
    graph = jraph.GraphsTuple(
        nodes=random.normal(size=(nodes, 32)).astype(np.float32),
        edges=None,
        senders=random.integers(0, nodes, edges).astype(np.int32),
        receivers=random.integers(0, nodes, edges).astype(np.int32),
        n_node=np.full(16, nodes // 16, np.int32),
        n_edge=np.full(16, edges // 16, np.int32),
        globals=None,
    )
    labels = random.integers(0, 4, nodes)

    def train_step(params: Any, graph: Any, labels: Any) -> Any:
        import optax

        def loss(params: Any) -> Any:
            found = graph
            for layer in params:
                update = jraph.GraphConvolution(
                    lambda x, layer=layer: jax.nn.tanh(x @ layer["w"] + layer["b"]),
                    add_self_edges=True,
                    symmetric_normalization=True,
                )
                found = update(found)
            return optax.softmax_cross_entropy_with_integer_labels(found.nodes, labels).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value

    step = jit(train_step, batch=(2,))
    params: Any = _weights(32, 64, 4)
    losses: list[Any] = []
    for _ in range(3):
        params, value = step(params, graph, labels)
        losses.append(value)
    return losses, params
