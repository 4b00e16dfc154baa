"""Barriers of recomputed layers that wait for gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.module import operations_of
from autoshard.passes.host_offload import HostOffload
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.rewrites.gradient_order import BARRIER, bound_gradients

LAYERS = 4
GPUS = Cluster.parse("h100:8")
SHAPE = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def step(weights: list[Any], x: Any) -> Any:
    def loss(weights: list[Any]) -> Any:
        y = x
        for w in weights:
            y = jax.checkpoint(lambda w, y: y + jnp.tanh(y @ w))(w, y)
        return jnp.sum(y)

    gradients = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def lowered() -> mlir.Module:
    text = jax.jit(step).lower([SHAPE] * LAYERS, SHAPE).as_text()
    return parse_bytes(text.encode(), new_context(), "step")


def passed_on(module: mlir.Module, name: str = "dot_general") -> list[list[str]]:
    """By barrier: which of its operands ops of a name make that have no other reader."""
    (main,) = (op for op in module.body.operations if "main" in str(op.attributes["sym_name"]))
    found: list[list[str]] = []
    for op in main.regions[0].blocks[0].operations:
        if op.operation.name != BARRIER:
            continue
        found.append(
            [
                maker.name
                for value in op.operands
                if not isinstance(maker := value.owner, mlir.Block)
                and maker.name == f"stablehlo.{name}"
                and len(list(value.uses)) == 1
            ]
        )
    return found


def test_the_layer_after_the_next_waits_for_gradients() -> None:
    module = lowered()
    assert passed_on(module) == [[]] * LAYERS
    with module.context:
        bound_gradients(module, GPUS, operations_of(module.operation))
    module.operation.verify()
    # The last one also for the layer right before it.
    assert [len(each) for each in passed_on(module)] == [0, 0, 1, 2]


def step_with_loss(weights: list[Any], x: Any) -> Any:
    """The loss is returned, of maxima and sums of rows that its gradient computes again."""

    def loss(weights: list[Any]) -> Any:
        y = x
        for w in weights:
            y = jax.checkpoint(lambda w, y: y + jnp.tanh(y @ w))(w, y)
        return jax.checkpoint(lambda y: jnp.mean(jax.nn.logsumexp(y, axis=1)))(y)

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def test_no_barrier_waits_for_what_goes_behind_it() -> None:
    """Maxima of rows look like a gradient, and the sums that are computed from them do."""
    text = jax.jit(step_with_loss).lower([SHAPE] * LAYERS, SHAPE).as_text()
    module = parse_bytes(text.encode(), new_context(), "step")
    with module.context:
        bound_gradients(module, GPUS, operations_of(module.operation))
    module.operation.verify()
    search_module(module, Cluster.parse("h100:2"), RecursiveProgramming())
    run_passes(module, ["autoshard-export-shardy"])


def biased_step(weights: list[Any], biases: list[Any], x: Any) -> Any:
    """The loss is returned: a sum, too, but no gradient, as that of all gradients' squares."""

    def loss(weights: list[Any], biases: list[Any]) -> Any:
        y = x
        for w, b in zip(weights, biases, strict=True):
            y = jax.checkpoint(lambda w, b, y: y + jnp.tanh(y @ w + b))(w, b, y)
        return jnp.sum(y)

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(weights, biases)
    squares = [jnp.sum(g * g, axis=0) for g in gradients[0]]
    updated = [
        [p - 0.1 * g for p, g in zip(parameters, of_them, strict=True)]
        for parameters, of_them in zip((weights, biases), gradients, strict=True)
    ]
    return updated, value, squares


def test_sums_of_activations_are_gradients_as_well() -> None:
    """Biases have such: without, what is summed up would wait until the end."""
    biases = [jax.ShapeDtypeStruct((64,), jnp.float32)] * LAYERS
    text = jax.jit(biased_step).lower([SHAPE] * LAYERS, biases, SHAPE).as_text()
    module = parse_bytes(text.encode(), new_context(), "step")
    with module.context:
        bound_gradients(module, GPUS, operations_of(module.operation))
        once = str(module)
        bound_gradients(module, GPUS, operations_of(module.operation))
    module.operation.verify()
    assert [len(each) for each in passed_on(module, "reduce")] == [0, 0, 1, 2]
    assert str(module) == once


def test_twice_is_once() -> None:
    module = lowered()
    with module.context:
        bound_gradients(module, GPUS, operations_of(module.operation))
        once = str(module)
        bound_gradients(module, GPUS, operations_of(module.operation))
    assert str(module) == once


def test_updates_that_wait_for_the_host_come_behind_their_gradients() -> None:
    """Each loads its momentum when that of the one before has gone, which its gradient makes."""

    def momentum_step(weights: list[Any], momenta: list[Any], x: Any) -> Any:
        gradients = [w - new for w, new in zip(weights, step(weights, x), strict=True)]
        momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
        return [w - m for w, m in zip(weights, momenta, strict=True)], momenta

    arguments = ([SHAPE] * LAYERS, [SHAPE] * LAYERS, SHAPE)
    text = jax.jit(momentum_step, donate_argnums=(0, 1)).lower(*arguments).as_text()
    module = parse_bytes(text.encode(), new_context(), "step")
    run_passes(module, [HostOffload(tuple(str(LAYERS + n) for n in range(LAYERS)))])
    with module.context:
        bound_gradients(module, GPUS, operations_of(module.operation))
    module.operation.verify()
    assert any(passed_on(module))


@pytest.mark.parametrize(("cluster", "is_bound"), [("h100:8", True), ("v5p:2x2x2", False)])
def test_a_program_planned_for_gpus_has_such_barriers(cluster: str, is_bound: bool) -> None:
    module = lowered()
    search_module(module, Cluster.parse(cluster), RecursiveProgramming())
    assert any(passed_on(module)) == is_bound


@pytest.mark.parametrize(("cluster", "is_bound"), [("h100:8", True), ("v5p:2x2x2", False)])
def test_so_has_one_whose_batch_is_cut(cluster: str, is_bound: bool) -> None:
    weights = [SHAPE] * LAYERS
    options: dict[str, Any] = {"mode": "data_parallel", "batch_argnums": 1, "donate_argnums": 0}
    plan = autoshard.plan(step, weights, SHAPE, cluster=cluster, **options)
    assert any(passed_on(parse_bytes(plan.bytecode, new_context()))) == is_bound
