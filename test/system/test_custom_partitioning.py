"""Functions under ``jax.experimental.custom_partitioning`` are planned by their rule, and run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

import autoshard

ROWS, WIDTH, LAYERS = 32, 64, 3
NO_RULE = "ignore:.*calls of custom_partitioning have no rule:autoshard.AutoshardWarning"

Seen = list[tuple[jax.sharding.Mesh, list[Any]]]
"""The mesh, and the shardings of the operands, of each call of a callback."""


def _by_rows(fn: Callable[..., Any], count: int, seen: Seen, rule: str | None = "rows") -> Any:
    """``fn`` of matrices, which goes row by row, with a callback that says so."""

    def sharding(mesh: Any, operands: Any, _: Any) -> NamedSharding:
        seen.append((mesh, [operand.sharding for operand in operands]))
        return NamedSharding(mesh, PartitionSpec(operands[0].sharding.spec[0], None))

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        found = sharding(mesh, operands, result)
        return mesh, fn, found, (found,) * count

    wrapped = custom_partitioning(fn)
    options: dict[str, Any] = {}
    if rule is not None:
        options["sharding_rule"] = ", ".join(["rows columns"] * count) + " -> rows columns"
        options["need_replication_factors"] = ("columns",)
        options["infer_sharding_from_operands"] = sharding
    wrapped.def_partition(partition=partition, **options)
    return wrapped


def _step(seen: Seen) -> Callable[..., Any]:
    """Layers in a scan; both halves of the derivative go through a callback."""
    forward = _by_rows(lambda x: jax.nn.softmax(x, -1), 1, seen)
    backward = _by_rows(lambda y, g: y * (g - (g * y).sum(-1, keepdims=True)), 2, seen)
    softmax = jax.custom_vjp(lambda x: forward(x))
    softmax.defvjp(lambda x: (forward(x),) * 2, lambda y, g: (backward(y, g),))

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            last, _ = jax.lax.scan(lambda x, w: (x + softmax(x @ w), None), x, weights)
            return jnp.mean(last**2)

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 0.5 * gradient, value

    return step


def _arguments() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    weights = random.normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32)
    return weights, random.normal(size=(ROWS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"cluster": "cpu:8"},
        {
            "mesh": "dp=2,tp=4",
            "in_shardings": (PartitionSpec(None, None, "tp"), PartitionSpec("dp")),
        },
        {
            "mesh": "data=8",
            "mode": "data_parallel",
            "batch_argnums": 1,
            "cluster": "cpu:8",
            "optimizer_parallel": autoshard.OptimizerParallel(level=3, threshold_kb=0),
        },
    ],
    ids=["search", "pins", "spread"],
)
@pytest.mark.filterwarnings("ignore::autoshard.PlanMismatchWarning", NO_RULE)
def test_steps_equal_the_unsharded_run(partitioner: bool, options: dict[str, Any]) -> None:
    seen: Seen = []
    step, arguments = _step(seen), _arguments()
    run = autoshard.jit(step, **options)
    found = jax.device_get(run(*arguments))
    assert_equal(found, jax.device_get(jax.jit(step)(*arguments)), 1e-5)
    plan = run.plan(*arguments)
    assert {mesh for mesh, _ in seen} == {plan.jax_mesh}
    shardings = [sharding for _, operands in seen for sharding in operands]
    assert all(isinstance(sharding, NamedSharding) for sharding in shardings)
    assert all(len(sharding.spec) == 2 for sharding in shardings)
    if partitioner:
        assert all(sharding.spec[0] is not None for sharding in shardings)


def test_a_function_without_a_rule_is_whole_on_every_device() -> None:
    seen: Seen = []
    double = _by_rows(lambda x: 2 * x, 1, seen, rule=None)
    run = autoshard.jit(lambda x: double(x), mesh="d=8", in_shardings=(PartitionSpec("d"),))
    said = r"test_custom_partitioning.py:\d+:\d+: 1 calls of custom_partitioning have no rule"
    x = _arguments()[1]
    with pytest.warns(autoshard.AutoshardWarning, match=said):
        run.plan(x)
    np.testing.assert_array_equal(run(x), 2 * x)
    assert {tuple(sharding.spec) for _, operands in seen for sharding in operands} == {(None, None)}


@pytest.mark.filterwarnings(NO_RULE)
def test_a_callback_that_fails_is_told_with_the_line_of_the_call(partitioner: bool) -> None:
    double = custom_partitioning(lambda x: 2 * x)

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        raise KeyError(f"no axis for {operands[0].shape}")

    double.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
        sharding_rule="rows columns -> rows columns",
    )
    said = r"_partitioning.py:\d+:\d+: <lambda>: the partition callback .* 'no axis for \(32, 64\)'"
    with pytest.raises(autoshard.CompileError, match=said) as failure:
        autoshard.jit(lambda x: double(x), mesh="d=8", in_shardings=(PartitionSpec("d"),))(
            _arguments()[1]
        )
    assert isinstance(failure.value.__cause__, KeyError)


def test_callbacks_are_not_known_where_a_plan_is_verified() -> None:
    double = _by_rows(lambda x: 2 * x, 1, [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = autoshard.plan(lambda x: double(x), _arguments()[1], cluster="cpu:8")
    said = r"_partitioning.py:\d+:\d+: a call of jax.experimental.custom_partitioning cannot be"
    with pytest.raises(autoshard.CompileError, match=said):
        plan.verify()
