"""Pipelines in lockstep, one program of all stages: bit-equal on whole numbers, or refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stacked_layers import (
    BATCH,
    LAYERS,
    WIDTH,
    Step,
    arguments,
    layer,
    network,
    recomputed,
    scanned,
    turned,
)

import autoshard

pytestmark = pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")


def numbered(params: Any, hidden: jax.Array) -> jax.Array:
    """Layers that read their number, and a mask of the batch."""
    is_used = hidden > -2

    def body(hidden: jax.Array, given: Any) -> tuple[jax.Array, None]:
        number, weights = given
        made = jnp.where(is_used, hidden @ weights, 0)
        return hidden + jnp.where(number % 2 == 0, made, -made), None

    count = jnp.arange(params["layers"].shape[0])
    return jax.lax.scan(body, hidden, (count, params["layers"]))[0]


def twice(params: Any, hidden: jax.Array) -> jax.Array:
    """Two scans over the same weights, the second one backwards, with a kept value a layer."""
    hidden, kept = jax.lax.scan(
        lambda h, w: (layer(h, w)[0], jnp.sign(h)), hidden, params["layers"]
    )

    def body(hidden: jax.Array, given: Any) -> tuple[jax.Array, None]:
        weights, own = given
        return jnp.sign(hidden) @ weights + own, None

    return jax.lax.scan(body, hidden, (params["layers"], kept), reverse=True)[0]


def in_lockstep(fn: Step, stages: int, micro_batches: int, **options: Any) -> Any:
    pipeline = autoshard.Pipeline(stages, micro_batches, execution="lockstep")
    return autoshard.jit(fn, cluster="cpu:8", pipeline=pipeline, batch_argnums=1, **options)


@pytest.mark.parametrize(
    ("forward", "stages", "micro_batches", "mesh"),
    [
        (scanned, 2, 4, "data=2,model=2"),
        (scanned, 4, 4, None),
        (recomputed, 4, 8, "data=2"),
        (numbered, 2, 8, "data=4"),
        (numbered, 4, 4, "data=2"),
        (twice, 2, 4, None),
        (twice, 4, 8, "model=2"),
    ],
)
def test_stages_in_lockstep_are_bit_equal_to_the_plain_step(
    forward: Any, stages: int, micro_batches: int, mesh: str | None
) -> None:
    step = network(forward)
    run = in_lockstep(step, stages, micro_batches, mesh=mesh, donate_argnums=0)
    carried, batch = arguments()
    plan = run.plan(carried, batch)
    found, batch_there = plan.place(carried, batch)
    expected = carried
    for _ in range(2):
        found, value = run(found, batch_there)
        expected, wanted = jax.jit(step)(expected, batch)
        jax.tree.map(np.testing.assert_array_equal, (found, value), (expected, wanted))
    for tree in found:
        rows = tree["layers"]
        assert rows.sharding.spec[0] == "stage"
        assert {shard.data.shape[0] for shard in rows.addressable_shards} == {LAYERS // stages}
        assert "stage" not in tree["ends"].sharding.spec


@pytest.mark.parametrize("delay", [1, 2])
def test_a_delay_of_two_turns_is_bit_equal_and_sends_while_layers_compute(
    delay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autoshard.frontend import lockstep_planning

    step = network(scanned)
    of = lockstep_planning.InLockstep.of
    monkeypatch.setattr(
        lockstep_planning.InLockstep, "of", staticmethod(lambda s, r, _: of(s, r, delay))
    )
    carried, batch = arguments()
    run = in_lockstep(step, 4, 4)
    plan = run.plan(carried, batch)
    waits = 3 * delay
    assert plan.pipeline.delay == delay
    assert plan.pipeline.bubble == pytest.approx(waits / (4 + waits))
    jax.tree.map(np.testing.assert_array_equal, run(carried, batch), jax.jit(step)(carried, batch))


def test_a_saved_plan_in_lockstep_runs_alike_and_lowers_to_one_program(tmp_path: Any) -> None:
    step = network(scanned)
    carried, batch = arguments()
    run = in_lockstep(step, 2, 2)
    plan = run.plan(carried, batch)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.step_seconds == plan.step_seconds
    assert loaded.pipeline.gantt() == plan.pipeline.gantt()
    found = autoshard.jit(step, plan=loaded)(*plan.place(carried, batch))
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(step)(carried, batch))
    text = run.lower(carried, batch).as_text()
    assert 'manual_axes={"stage"}' in text
    assert "collective_permute" in text
    assert "lockstep, 2 stages, 2 micro-batches: 3 turns in each of 2 loops" in str(plan)


def test_float32_training_is_within_a_millionth_of_the_plain_step() -> None:
    random = np.random.default_rng(0)
    names = ("mix", "narrow", "widen")
    shapes = ((WIDTH, 3 * WIDTH), (2 * WIDTH, WIDTH), (WIDTH, 2 * WIDTH))
    layers = {
        name: random.normal(0, 0.1, (LAYERS, *shape)).astype(np.float32)
        for name, shape in zip(names, shapes, strict=True)
    }
    params = {"ends": random.normal(0, 0.5, (11, WIDTH)).astype(np.float32), "layers": layers}
    state = jax.tree.map(np.zeros_like, (params, params))

    def block(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        query, key, value = jnp.split(x @ weights["mix"], 3, -1)
        scores = jnp.einsum("bqd,bkd->bqk", query, key)
        x = x + jax.nn.softmax(jnp.where(jnp.tri(6) > 0, scores, -1e9)) @ value
        return x + jax.nn.gelu(x @ weights["widen"]) @ weights["narrow"], None

    def step(carried: Any, batch: Any) -> Any:
        params, (first, second) = carried

        def loss(params: Any) -> jax.Array:
            x, _ = jax.lax.scan(jax.checkpoint(block), params["ends"][batch[0]], params["layers"])
            logits = jax.nn.log_softmax(x @ params["ends"].T)
            return -jnp.take_along_axis(logits, batch[1][..., None], -1).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1), gradients)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, gradients)
        params = jax.tree.map(
            lambda p, m, v: p - 0.01 * m / (jnp.sqrt(v) + 1e-3), params, first, second
        )
        return (params, (first, second)), value

    batch = tuple(random.integers(0, 11, (BATCH, 6)).astype(np.int32) for _ in range(2))
    run = in_lockstep(step, 4, 8)
    found = expected = (params, state)
    for _ in range(3):
        found, value = run(found, batch)
        expected, wanted = jax.jit(step)(expected, batch)
        np.testing.assert_allclose(value, wanted, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


def test_execution_auto_takes_the_faster_and_says_both() -> None:
    carried, batch = arguments()
    pipeline = autoshard.Pipeline(2, 4, execution="auto")
    run = autoshard.jit(network(scanned), cluster="cpu:8", pipeline=pipeline, batch_argnums=1)
    plan = run.plan(carried, batch)
    tried = {one.execution: one.step_seconds for one in plan.summary.tried_pipelines}
    assert set(tried) == {"stages", "lockstep"}
    assert plan.step_seconds == min(tried.values())
    right = jax.jit(network(scanned))(carried, batch)
    jax.tree.map(np.testing.assert_array_equal, run(carried, batch), right)


def unrolled(params: Any, hidden: jax.Array) -> jax.Array:
    for number in range(LAYERS):
        hidden, _ = layer(hidden, params["layers"][number])
    return hidden


def all_rows(params: Any, hidden: jax.Array) -> jax.Array:
    weights = params["layers"]
    return jax.lax.scan(layer, hidden, weights + jnp.cumsum(weights, 0))[0]


def branching(params: Any, hidden: jax.Array) -> jax.Array:
    def body(hidden: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
        made = jax.lax.cond(weights[0, 0] > 0, lambda h: h @ weights, lambda h: h, hidden)
        return made, None

    return jax.lax.scan(body, hidden, params["layers"])[0]


def marked(params: Any, hidden: jax.Array) -> jax.Array:
    return scanned(params, autoshard.pipeline_stage(hidden, 0))


@pytest.mark.parametrize(
    ("forward", "stages", "micro_batches", "said"),
    [
        (unrolled, 2, 4, "the step has no loop over layers. Write layers as a jax.lax.scan"),
        (scanned, 8, 8, r"4 layers does not fall into 8 equal parts. Give stages=2 or 4"),
        (scanned, 4, 6, r"stages=4, micro_batches=6: .*Give a multiple of the stages: 4 or 8"),
        (all_rows, 2, 4, r"test_lockstep_pipelines.py:\d+.*reads all rows of an array of shape"),
        (branching, 2, 4, r"test_lockstep_pipelines.py:\d+.*a branch is taken or not"),
        (marked, 2, 4, r"test_lockstep_pipelines.py:\d+.*autoshard.pipeline_stage says a stage"),
    ],
)
def test_what_cannot_be_in_lockstep_is_refused_with_a_line_and_a_way_out(
    forward: Any, stages: int, micro_batches: int, said: str
) -> None:
    carried, batch = arguments()
    batch = np.concatenate([batch, batch, batch])  # 48 fall into 4, 6 and 8 parts
    with pytest.raises(autoshard.PlanError, match=said):
        in_lockstep(network(forward), stages, micro_batches).plan(carried, batch)


def test_a_result_of_each_example_is_refused_with_its_line() -> None:
    def step(params: Any, batch: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            made = scanned(params, batch @ params["ends"])
            return made.sum(), made

        (_, made), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return turned(params, gradients), made

    (params, _), batch = arguments()
    with pytest.raises(autoshard.PlanError, match="a result has a part for each example"):
        in_lockstep(step, 2, 4).plan(params, batch)
