"""How large the batch is, and how a plan works through it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.planned.summary import PlanSummary

Params = dict[str, jax.Array]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gradient_accumulation_steps": 5}, 2 * 8 * 3 * 5),
        ({"gradient_accumulation_steps": 5, "full_batch": True}, 2 * 4 * 3 * 5),
        ({"pipeline": True, "micro_batch_num": 7}, 2 * 8 * 3 * 7),
        ({"pipeline": True, "micro_batch_num": 7, "full_batch": True}, 2 * 4 * 3 * 7),
    ],
)
def test_global_batch_size(options: dict[str, Any], expected: int) -> None:
    found = autoshard.global_batch_size(
        2, device_num=8, data_parallel=4, micro_batch_interleave_num=3, **options
    )
    assert found == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "device_num, which is not given"),
        ({"full_batch": True, "device_num": 8}, "data_parallel, which is not given"),
        ({"device_num": 8, "micro_batch_num": 2}, "micro_batch_num=2 counts only with pipeline"),
        (
            {"device_num": 8, "pipeline": True, "gradient_accumulation_steps": 2},
            "gradient_accumulation_steps=2 counts only with pipeline=False",
        ),
        ({"device_num": 0}, "device_num=0. Give 1 or more"),
    ],
)
def test_a_batch_size_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(autoshard.PlanError, match=message):
        autoshard.global_batch_size(2, **options)


def loss(params: Params, x: jax.Array) -> jax.Array:
    return jnp.mean((x @ params["w"] + params["b"]) ** 2)


def updated(params: Params, gradients: Params) -> Params:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def plain_step(params: Params, x: jax.Array) -> Params:
    return updated(params, jax.grad(loss)(params, x))


def accumulating_step(params: Params, x: jax.Array) -> Params:
    parts = x.reshape(4, -1, x.shape[1])

    def add(total: Params, part: jax.Array) -> tuple[Params, None]:
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None

    gradients, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
    return updated(params, gradients)


def strided_step(params: Params, x: jax.Array) -> Params:
    """Every part has rows of all pieces, so that none has to move."""
    parts = x.reshape(-1, 4, x.shape[1]).swapaxes(0, 1)
    gradients = jax.lax.map(lambda part: jax.grad(loss)(params, part), parts)
    return updated(params, jax.tree.map(lambda g: g.sum(0), gradients))


def recurrent_step(params: Params, x: jax.Array) -> Params:
    """A loop over dim 1 of the batch: time, not parts of the batch."""

    def total(params: Params) -> jax.Array:
        def turn(state: jax.Array, now: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(state @ params["w"] + now[:, None] * params["b"]), None

        last, _ = jax.lax.scan(turn, jnp.zeros((x.shape[0], 8)), x.T)
        return jnp.mean(last)

    return updated(params, jax.grad(total)(params))


def arguments() -> tuple[Any, jax.ShapeDtypeStruct]:
    params = {
        "w": jax.ShapeDtypeStruct((8, 8), "float32"),
        "b": jax.ShapeDtypeStruct((8,), "float32"),
    }
    return params, jax.ShapeDtypeStruct((64, 8), "float32")


@pytest.mark.parametrize(
    ("step", "rounds"),
    [(plain_step, 1), (accumulating_step, 4), (strided_step, 4), (recurrent_step, 1)],
)
def test_rounds_of_gradient_accumulation_are_those_over_parts_of_the_batch(
    step: Any, rounds: int
) -> None:
    plan = autoshard.plan(step, *arguments(), mesh="dp=8", mode="data_parallel", batch_argnums=1)
    batch = plan.batch
    assert batch is not None
    assert (batch.size, batch.data_parallel, batch.gradient_accumulation) == (64, 8, rounds)
    assert batch.micro_batch == 8 // rounds
    assert batch.size == autoshard.global_batch_size(
        batch.micro_batch,
        full_batch=True,
        data_parallel=batch.data_parallel,
        gradient_accumulation_steps=batch.gradient_accumulation,
    )


def test_the_batch_is_in_the_plan_its_summary_and_its_file(tmp_path: Path) -> None:
    plan = autoshard.plan(accumulating_step, *arguments(), cluster="cpu:8", mode="data_parallel")
    batch = plan.batch
    assert batch is not None
    assert plan.summary is not None
    assert plan.summary.batch == batch
    assert "batch of 64: cut into 8 pieces, in 4 rounds of 2 each" in str(plan)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded.batch == batch
    assert loaded.summary is not None
    assert loaded.summary.batch == batch
    read = json.loads(plan.summary.to_json())["batch"]
    wanted = {"size": 64, "data_parallel": 8, "micro_batch": 2, "gradient_accumulation": 4}
    assert read == {**wanted, "micro_batches": 1, "per_micro_batch": []}
    assert "gradient_accumulation" in plan.to_mlir()


def test_a_batch_that_is_whole_is_said_so() -> None:
    plan = autoshard.plan(accumulating_step, *arguments(), cluster="cpu:1")
    assert "batch of 64: not cut, in 4 rounds of 16 each" in str(plan)


def test_a_function_without_state_has_no_batch() -> None:
    plan = autoshard.plan(loss, *arguments(), cluster="cpu:8")
    assert plan.batch is None
    assert plan.summary is not None
    assert plan.summary.batch is None
    assert PlanSummary.from_json(plan.summary.to_json()).batch is None
