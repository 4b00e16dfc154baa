"""``pipeline="auto"``: the fastest of the pipelines that are tried, or no stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.cluster.chips import Constant

BATCH, WIDTH, LAYERS = 64, 32, 4


def step(params: Any, x: Any) -> Any:
    """Gradient descent of layers without rounding on whole numbers."""

    def loss(params: Any) -> Any:
        y = x
        for weights in params:
            y = y + jnp.maximum(y @ weights, 0)
        return y.sum()

    return jax.tree.map(lambda p, g: jnp.sign(p - g), params, jax.grad(loss)(params))


def arguments() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    params = [random.integers(-1, 2, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
    return params, random.integers(-1, 2, (BATCH, WIDTH)).astype(np.float32)


def slowly_joined() -> Cluster:
    """Eight CPU devices between which gradients take longer than all else, by bytes."""
    cluster = Cluster.parse("cpu:8")
    dims = [
        replace(dim, bandwidth=Constant(1e6, "a test"), latency=Constant(1e-9, "a test"))
        for dim in cluster.dims
    ]
    chip = replace(
        cluster.chip,
        launch_seconds=Constant(0.0, "a test"),
        matmul_f32=Constant(1e8, "a test"),
        vector_flops=Constant(1e8, "a test"),
    )
    return replace(cluster, name="slowly joined", dims=tuple(dims), chip=chip)


def structs(count: int, width: int, batch: int) -> tuple[Any, Any]:
    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * count
    return weights, jax.ShapeDtypeStruct((batch, width), jnp.float32)


@pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")
def test_stages_are_taken_where_they_are_faster_and_the_plan_says_what_was_tried() -> None:
    given = structs(16, 4096, 8192)
    options: dict[str, Any] = {"cluster": "h100:4x1", "batch_argnums": 1, "donate_argnums": 0}
    plan = autoshard.plan(step, *given, pipeline="auto", **options)
    assert plan.pipeline is not None
    assert plan.summary is not None
    tried = plan.summary.tried_pipelines
    assert tried[0].stages == 1
    assert {one.stages for one in tried} == {1, 2, 4}
    steps = [one.step_seconds for one in tried if one.step_seconds is not None]
    assert plan.step_seconds == min(steps) < steps[0]
    same = autoshard.plan(step, *given, pipeline=plan.pipeline.asked, **options)
    assert same.step_seconds == plan.step_seconds
    alone = autoshard.plan(step, *given, **options)
    assert alone.step_seconds == tried[0].step_seconds
    text = str(plan)
    assert "pipelines tried (stages × micro-batches): none: " in text
    assert {one.chunks for one in tried} == {1, 2}
    assert "4 × 16 in 2 chunks: " in text
    assert autoshard.plan(step, *given, pipeline="auto", micro_batches=8, **options).pipeline


@pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")
def test_what_was_chosen_runs_bit_equal() -> None:
    params, x = arguments()
    asked: dict[str, Any] = {"pipeline": "auto", "micro_batches": 8, "batch_argnums": 1}
    run = autoshard.jit(step, cluster=slowly_joined(), donate_argnums=0, **asked)
    plan = run.plan(params, x)
    assert plan.pipeline is not None
    expected = jax.jit(step)(params, x)
    found = run(*plan.place(params, x))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), expected)


@pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")
def test_a_scan_over_layers_is_tried_in_stages() -> None:
    params, x = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32), structs(1, 256, 64)[1]
    options: dict[str, Any] = {"cluster": "h100:4x1", "micro_batches": 4, "batch_argnums": 1}
    plan = autoshard.plan(scanned, params, x, pipeline="auto", **options)
    assert plan.summary is not None
    tried = plan.summary.tried_pipelines
    found = {(one.stages, one.outcome) for one in tried if one.execution == "stages"}
    assert found >= {(1, "fits"), (2, "bounded"), (4, "fits")}


def scanned(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        return jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, params)[0].sum()

    return params - jax.grad(loss)(params)


@pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")
def test_a_step_that_has_no_stages_is_planned_without_and_says_why() -> None:
    params, x = jax.ShapeDtypeStruct((7, 256, 256), jnp.float32), structs(1, 256, 64)[1]
    plan = autoshard.plan(scanned, params, x, cluster="h100:4x1", pipeline="auto", batch_argnums=1)
    assert plan.pipeline is None
    assert plan.summary is not None
    refused = [one.reason for one in plan.summary.tried_pipelines if one.outcome == "refused"]
    assert [one for one in refused if "unroll=True" in one]
    assert "not in 4 stages: " in str(plan)

    def decode(params: Any, x: Any) -> Any:
        return x @ params

    given = jax.ShapeDtypeStruct((256, 256), jnp.float32), x
    plan = autoshard.plan(decode, *given, cluster="h100:4x1", pipeline="auto")
    assert plan.pipeline is None


def test_what_does_not_fit_says_what_each_pipeline_needs() -> None:
    with pytest.raises(autoshard.DoesNotFitError, match="Tried as a pipeline, too: 2 stages and"):
        autoshard.plan(
            step,
            *structs(8, 4096, 1024),
            cluster="h100:4x1",
            pipeline="auto",
            batch_argnums=1,
            memory_limit="64MiB",
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mesh": "d=4"}, "stages have fewer devices than the step without them"),
        ({"mode": "semi_auto"}, "is planned by the search, not in mode"),
        ({"host_offload": "auto"}, "host_offload='auto' with pipeline= is not supported"),
        ({"pipeline": "fast"}, r"Give autoshard.Pipeline\(stages=4, micro_batches=16\), or 'auto'"),
    ],
)
def test_what_it_cannot_choose_is_refused(options: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"cluster": "h100:4x1", "pipeline": "auto", **options}
    with pytest.raises(autoshard.PlanError, match=said):
        autoshard.plan(step, *structs(4, 64, 64), **asked)


def test_sweeps_take_what_was_chosen() -> None:
    with pytest.raises(autoshard.PlanError, match=r"chosen by autoshard\.plan and autoshard\.jit"):
        autoshard.sweep(step, *structs(4, 64, 64), clusters=["h100:4x1"], pipeline="auto")
