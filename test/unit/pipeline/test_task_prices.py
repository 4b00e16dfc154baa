"""Tasks that are priced before they are written, beside the same ones as they are written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.cluster.stages import cluster_of_a_stage
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.attributes import RESHARDED
from autoshard.ir.module import operations_of
from autoshard.pipeline.order import StagedStep, staged_steps, step_by_rule
from autoshard.pipeline.task_prices import Machinery
from autoshard.planned.given_plan import cost_of_module
from autoshard.rewrites.stage_tasks.program import Call

CLUSTER = Cluster.of("h100:4")
LAYERS, WIDTH, BATCH = 8, 64, 16


def step(params: Any, batch: Any) -> Any:
    """A step of equal layers; one stage reads labels, all a sum of the whole batch."""

    def loss(params: Any) -> Any:
        hidden = batch["x"] @ params["ends"]
        for weights in params["layers"]:
            hidden = hidden + jnp.tanh(hidden @ weights)
        return (hidden @ params["ends"].T * batch["y"] * batch["mask"]).sum() / batch["mask"].sum()

    value, gradients = jax.value_and_grad(loss)(params)
    norm = sum((gradient**2).sum() for gradient in jax.tree.leaves(gradients))
    return jax.tree.map(lambda p, g: p - g / norm, params, gradients), value


def planned(pipeline: autoshard.Pipeline) -> Any:
    matrix = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    rows = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    params = {"ends": matrix, "layers": [matrix] * LAYERS}
    return autoshard.plan(
        step,
        params,
        {"x": rows, "y": rows, "mask": rows},
        cluster=CLUSTER,
        pipeline=pipeline,
        batch_argnums=1,
        donate_argnums=0,
    )


@pytest.mark.parametrize("chunks", [1, 2])
def test_tasks_are_priced_as_they_are_written(chunks: int) -> None:
    pipeline = autoshard.Pipeline(2, 4, schedule="auto", chunks=chunks)
    bytecode = planned(pipeline).bytecode
    machinery = Machinery(cluster_of_a_stage(CLUSTER, 2), CLUSTER)
    donated = {argument: argument for argument in range(1 + LAYERS)}
    module = parse_bytes(bytecode, new_context())
    found = staged_steps(module, pipeline, machinery, donated)
    assert {one.rule for one in found} == set(pipeline.rules)
    for one in found:
        other = step_by_rule(parse_bytes(bytecode, new_context()), one.rule, machinery, donated)
        assert said_of(one) == said_of(other)
        assert one.step_seconds == other.step_seconds
        assert one.peak_bytes == other.peak_bytes
        assert {n: str(m) for n, m in one.modules.items()} == {
            n: str(m) for n, m in other.modules.items()
        }


def said_of(one: StagedStep) -> Any:
    return one.program, one.costs, one.values, one.sent_seconds, one.donations


def test_old_moments_are_scaled_in_the_update_that_waits_for_the_norm() -> None:
    """They are not kept scaled, beside themselves, while the squares of all stages meet."""

    def clipped(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = batch["x"]
            for weights in params:
                hidden = hidden + jnp.tanh(hidden @ weights)
            return (hidden * batch["y"]).sum()

        gradients = jax.grad(loss)(state[0])
        norm = sum((gradient**2).sum() for gradient in gradients)
        pairs = zip(state[1], gradients, strict=True)
        moments = [0.9 * moment + gradient / norm for moment, gradient in pairs]
        return [p - moment for p, moment in zip(state[0], moments, strict=True)], moments

    matrices = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    rows = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    plan = autoshard.plan(
        clipped,
        (matrices, matrices),
        {"x": rows, "y": rows},
        cluster=CLUSTER,
        pipeline=autoshard.Pipeline(2, 4),
        batch_argnums=1,
        donate_argnums=0,
    )
    assert plan.pipeline is not None
    found = plan.pipeline.step
    squares = next(one for one in found.program.after if isinstance(one, Call))
    assert {found.values[value].shape for value in squares.results} == {()}


HELD = """
module @task attributes {autoshard.mesh = "fsdp=4", mhlo.num_partitions = 4 : i32} {
  func.func public @main(
    %weight: tensor<4096x4096xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}
  ) -> (tensor<4096x4096xf32> {mhlo.sharding = "{replicated}"}) {
    %held = stablehlo.optimization_barrier {RESHARDED mhlo.sharding = "{replicated}"} %weight
      : tensor<4096x4096xf32>
    return %held : tensor<4096x4096xf32>
  }
}
"""


def test_what_is_split_otherwise_before_the_loop_takes_seconds() -> None:
    """A weight that all micro-batches read whole is gathered once."""

    def sent(text: str) -> float:
        module = parse_bytes(text.encode(), new_context(), "task")
        return cost_of_module(module, CLUSTER).plan.communication_seconds

    gathered = 3 / 4 * 4 * 4096**2 / CLUSTER.dims[-1].bandwidth.value
    assert sent(HELD.replace("RESHARDED", "autoshard.resharded,")) > gathered / 4
    assert sent(HELD.replace("RESHARDED", "")) == 0


def test_what_micro_batches_read_split_otherwise_is_marked_as_resharded() -> None:
    tasks = planned(autoshard.Pipeline(2, 4)).pipeline.step.modules.values()
    ops = [op for task in tasks for op in operations_of(task.operation)]
    held = [op for op in ops if op.name == "stablehlo.optimization_barrier"]
    assert held
    assert all(RESHARDED in op.attributes for op in held)
