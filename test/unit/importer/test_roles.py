"""Roles of arguments: parameter, optimizer state, batch, ..., by structure alone."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from autoshard.importer.dataflow import dataflow
from autoshard.importer.roles import Role, Roles, argument_roles
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.boundary import main_function
from autoshard.ir.native import run_native
from autoshard.planned.write import populate_rules

Tree = Any

PARAMETER, STATE, OTHER = Role.PARAMETER, Role.OPTIMIZER_STATE, Role.STATE
BATCH, COUNTER, KEY = Role.BATCH, Role.COUNTER, Role.KEY


def roles_of_text(text: bytes, given: dict[int, Role] | None = None) -> Roles:
    module = parse_bytes(text, new_context())
    run_native(module, "builtin.module(sdy-flatten-call-graph)")
    populate_rules(module)
    with module.context:
        return argument_roles(main_function(module), dataflow(module), given)


def roles_of(fn: Callable[..., Any], *args: Any, donate: Any = (0, 1), **options: Any) -> Roles:
    jitted = jax.jit(fn, donate_argnums=donate, keep_unused=True)
    return roles_of_text(jitted.lower(*args).as_text().encode(), **options)


PARAMETERS = {
    "bias": jnp.zeros(32),
    "scale": jnp.ones(16),
    "w": jnp.zeros((16, 32)),
}
X, LABELS = jnp.zeros((8, 16)), jnp.zeros(8, jnp.int32)


def loss_of(p: Tree, x: Any, labels: Any) -> Any:
    x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * p["scale"]
    logits = jnp.tanh(x @ p["w"] + p["bias"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def step_with(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    def step(p: Tree, state: Tree, x: Any, labels: Any) -> Tree:
        loss, gradients = jax.value_and_grad(loss_of)(p, x, labels)
        updates, state = optimizer.update(gradients, state, p)
        return optax.apply_updates(p, updates), state, loss

    return step


OPTIMIZERS = {
    "adamw": optax.adamw(1e-3),
    "adamw with clipping": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "lion": optax.lion(1e-3),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=8),
    "sgd": optax.sgd(1e-2),
    "momentum": optax.sgd(1e-2, momentum=0.9, nesterov=True),
    "rmsprop": optax.rmsprop(1e-3),
    "several steps": optax.MultiSteps(optax.adam(1e-3), 4),
    "a schedule": optax.adam(optax.cosine_decay_schedule(1e-3, 100)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_and_states_of_optimizers(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    state = optimizer.init(PARAMETERS)
    roles = roles_of(step_with(optimizer), PARAMETERS, state, X, LABELS)
    leaves = jax.tree.leaves(state)
    assert roles.arguments[:3] == (PARAMETER,) * 3
    assert roles.arguments[-2:] == (BATCH, BATCH)
    for number, leaf in enumerate(leaves, start=3):
        # adafactor keeps arrays of one zero where it has nothing to keep
        wanted = (STATE,) if leaf.size > 1 else (COUNTER, OTHER, STATE)
        assert roles.arguments[number] in wanted


def test_states_belong_to_the_parameter_that_they_update() -> None:
    optimizer = OPTIMIZERS["adamw"]
    roles = roles_of(step_with(optimizer), PARAMETERS, optimizer.init(PARAMETERS), X, LABELS)
    # bias, scale, w, count, mu of the three, nu of the three
    assert roles.states == {0: (4, 7), 1: (5, 8), 2: (6, 9)}
    assert roles.arguments[3] is COUNTER


def test_factored_states_belong_to_their_matrix() -> None:
    optimizer = OPTIMIZERS["adafactor"]
    state = optimizer.init(PARAMETERS)
    roles = roles_of(step_with(optimizer), PARAMETERS, state, X, LABELS)
    shapes = [leaf.shape for leaf in (*jax.tree.leaves(PARAMETERS), *jax.tree.leaves(state))]
    assert {shapes[number] for number in roles.states[2]} >= {(16,), (32,)}


def test_an_update_rule_of_the_users_own() -> None:
    def step(p: Tree, slow: Tree, x: Any, labels: Any) -> Tree:
        gradients = jax.grad(loss_of)(p, x, labels)
        slow = jax.tree.map(lambda s, g: jnp.sqrt(0.9 * s * s + 0.1 * g * g), slow, gradients)
        p = jax.tree.map(lambda p, g, s: p * 0.999 - 0.1 * g / (s + 1e-3), p, gradients, slow)
        return p, slow

    roles = roles_of(step, PARAMETERS, PARAMETERS, X, LABELS)
    assert roles.arguments == (*(PARAMETER,) * 3, *(STATE,) * 3, BATCH, BATCH)


def test_without_donation_results_are_matched_by_what_they_are_made_of() -> None:
    optimizer = OPTIMIZERS["momentum"]
    roles = roles_of(
        step_with(optimizer), PARAMETERS, optimizer.init(PARAMETERS), X, LABELS, donate=()
    )
    assert roles.arguments == (*(PARAMETER,) * 3, *(STATE,) * 3, BATCH, BATCH)
    assert roles.updates == {number: number for number in range(6)}


def test_a_running_copy_of_parameters_is_their_state() -> None:
    def step(p: Tree, average: Tree, x: Any, labels: Any) -> Tree:
        gradients = jax.grad(loss_of)(p, x, labels)
        p = jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients)
        return p, jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, p)

    roles = roles_of(step, PARAMETERS, PARAMETERS, X, LABELS)
    assert roles.arguments[3:6] == (STATE,) * 3
    assert roles.states == {0: (3,), 1: (4,), 2: (5,)}


def test_layers_in_a_scan() -> None:
    optimizer = optax.adam(1e-3)

    def step(p: Tree, state: Tree, x: Any) -> Tree:
        def loss(p: Tree) -> Any:
            x_out = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w["w"] + w["b"]), None), x, p)[0]
            return jnp.mean(jnp.square(x_out))

        updates, state = optimizer.update(jax.grad(loss)(p), state, p)
        return optax.apply_updates(p, updates), state

    p = {"b": jnp.zeros((3, 16)), "w": jnp.zeros((3, 16, 16))}
    roles = roles_of(step, p, optimizer.init(p), X)
    assert roles.arguments == (PARAMETER, PARAMETER, COUNTER, *(STATE,) * 4, BATCH)
    assert roles.states == {0: (3, 5), 1: (4, 6)}


def test_several_updates_in_a_loop() -> None:
    optimizer = OPTIMIZERS["momentum"]
    update = step_with(optimizer)

    def steps(p: Tree, state: Tree, xs: Any, labels: Any) -> Tree:
        def one(carried: Tree, batch: Tree) -> tuple[Tree, Any]:
            p, state, loss = update(*carried, *batch)
            return (p, state), loss

        return jax.lax.scan(one, (p, state), (xs, labels))

    state = optimizer.init(PARAMETERS)
    xs, labels = jnp.zeros((4, *X.shape)), jnp.zeros((4, 8), jnp.int32)
    roles = roles_of(steps, PARAMETERS, state, xs, labels)
    assert roles.arguments == (*(PARAMETER,) * 3, *(STATE,) * 3, BATCH, BATCH)


def test_running_means_are_no_optimizer_state() -> None:
    def step(p: Tree, mean: Any, x: Any) -> Tree:
        def loss(p: Tree) -> Any:
            return jnp.mean(jnp.square((x - x.mean(0)) @ p["w"]))

        p = jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p))
        return p, 0.9 * mean + 0.1 * x.mean(0)

    roles = roles_of(step, {"w": jnp.zeros((16, 32))}, jnp.zeros(16), X)
    assert roles.arguments == (PARAMETER, OTHER, BATCH)


def test_caches_and_keys() -> None:
    def decode(cache: Any, key: Any, w: Any, tokens: Any, place: Any) -> Tree:
        key, now = jax.random.split(key)
        new = jax.nn.one_hot(tokens, 16) @ w + jax.random.normal(now, (8, 32))
        cache = jax.lax.dynamic_update_slice(cache, new[:, None], (0, place, 0))
        return cache, key, jnp.einsum("btf,bf->bt", cache, new)

    cache, key = jnp.zeros((8, 64, 32)), jnp.zeros(2, jnp.uint32)
    roles = roles_of(decode, cache, key, jnp.zeros((16, 32)), LABELS, jnp.int32(3))
    assert roles.arguments == (OTHER, KEY, PARAMETER, BATCH, BATCH)


def test_frozen_weights_share_no_dim_with_the_batch() -> None:
    """Low-rank adaption: only a and b are trained."""

    def step(p: Tree, w: Any, x: Any, labels: Any) -> Tree:
        def loss(p: Tree) -> Any:
            logits = x @ w + x @ p["a"] @ p["b"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p))

    p = {"a": jnp.zeros((16, 4)), "b": jnp.zeros((4, 32))}
    roles = roles_of(step, p, jnp.zeros((16, 32)), X, LABELS, donate=0)
    assert roles.arguments == (PARAMETER, PARAMETER, PARAMETER, BATCH, BATCH)


@pytest.mark.parametrize("reads_nodes", [False, True])
def test_a_frozen_table_is_no_batch(reads_nodes: bool) -> None:
    """Features of the nodes of a graph are looked up, too, but are also read otherwise."""

    def step(p: Tree, table: Any, ids: Any, labels: Any) -> Tree:
        def loss(p: Tree) -> Any:
            rows = jnp.take(table, ids, axis=0)
            if reads_nodes:
                rows += jnp.tanh(table @ p["w"].T @ p["w"])[: len(ids)]
            return optax.softmax_cross_entropy_with_integer_labels(rows @ p["w"].T, labels).mean()

        return jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p))

    args = ({"w": jnp.zeros((32, 16))}, jnp.zeros((64, 16)), LABELS, LABELS)
    found = roles_of(step, *args, donate=0).arguments[1]
    assert found == (BATCH if reads_nodes else PARAMETER)


def test_rows_of_a_table_that_are_added_to() -> None:
    def step(table: Any, ids: Any) -> Any:
        rows = jnp.take(table, ids, axis=0)
        return table.at[ids].add(-0.1 * (rows - 1))

    assert roles_of(step, jnp.zeros((64, 16)), LABELS, donate=0).arguments == (PARAMETER, BATCH)


def test_given_roles_are_kept() -> None:
    optimizer = OPTIMIZERS["sgd"]
    args = (PARAMETERS, optimizer.init(PARAMETERS), X, LABELS)
    roles = roles_of(step_with(optimizer), *args, donate=0, given={0: OTHER})
    assert roles.arguments == (OTHER, PARAMETER, PARAMETER, BATCH, BATCH)


CORPUS = Path(os.environ.get("AUTOSHARD_CORPUS", Path(__file__).parents[4] / "shared" / "corpus"))
AS_CORPUS = {
    PARAMETER: {"params"},
    STATE: {"opt_state"},
    COUNTER: {"opt_state", "state"},
    OTHER: {"state"},
    KEY: {"state", "rng", "batch"},
    BATCH: {"batch", "const"},
}


@pytest.mark.parametrize(
    "name", ["llama2_7b_scan_maxtext.train", "resnet50_keras.train", "gemma3_12b_gm.decode"]
)
def test_roles_of_published_models(name: str) -> None:
    path = CORPUS / f"{name}.mlirbc"
    if not path.exists():
        pytest.skip(f"no corpus: {path} is missing; set AUTOSHARD_CORPUS")
    roles = roles_of_text(path.read_bytes())
    said = json.loads(gzip.decompress((CORPUS / f"{name}.json.gz").read_bytes()))["args"]
    wrong = [
        (argument["path"], argument["role"], role)
        for argument, role in zip(said, roles.arguments, strict=True)
        if argument["role"] not in AS_CORPUS[role]
    ]
    assert not wrong
