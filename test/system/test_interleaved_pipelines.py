"""Pipelines with several parts of the model a stage: bit-equal on whole numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tied_ends import tied_loss

import autoshard

pytestmark = pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")

BATCH, WIDTH = 24, 8


ZERO: Any = {
    "mesh": "data=4",
    "in_shardings": (None, jax.sharding.PartitionSpec("data")),
    "optimizer_parallel": autoshard.OptimizerParallel(level=3, threshold_kb=0),
}


def step(carried: Any, batch: jax.Array) -> Any:
    """Tied ends around layers, a state a weight, and a norm of all gradients."""
    params, state = carried
    value, gradients = jax.value_and_grad(tied_loss)(params, batch)
    norm = sum(jnp.sum(jnp.sign(g) ** 2) for g in jax.tree.leaves(gradients))
    state = jax.tree.map(lambda s, g: s + jnp.sign(g) * (norm > 0), state, gradients)
    params = jax.tree.map(lambda p, s: p * (1 - 2 * (s > 0)), params, state)
    return (params, state), value


def matrices(count: int, seed: int = 1) -> list[np.ndarray]:
    """With one number a row, so that what goes through many layers stays exact."""
    random = np.random.default_rng(seed)
    ones = np.broadcast_to(np.eye(WIDTH), (count, WIDTH, WIDTH))
    signs = random.integers(-1, 2, (count, 1, WIDTH))
    return list((random.permuted(ones, axis=-1) * signs).astype(np.float32))


def arguments(layers: int = 4) -> tuple[Any, np.ndarray]:
    ends, *others = matrices(layers + 1)
    params = {"ends": ends, "layers": others}
    batch = np.random.default_rng(0).integers(-1, 2, (BATCH, WIDTH)).astype(np.float32)
    return (params, jax.tree.map(np.zeros_like, params)), batch


def pipelined(
    stages: int, micro_batches: int, schedule: Any, chunks: int, fn: Any = step, **options: Any
) -> Any:
    pipeline = autoshard.Pipeline(stages, micro_batches, schedule, chunks=chunks)
    return autoshard.jit(fn, cluster="cpu:8", pipeline=pipeline, batch_argnums=1, **options)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "schedule", "chunks", "options"),
    [
        (2, 4, "1f1b", 2, {}),
        (2, 2, "gpipe", 3, {}),
        (2, 6, "zero_bubble", 2, ZERO),
        (4, 4, "1f1b", 2, {}),
    ],
)
def test_parts_in_turn_are_bit_equal_and_their_state_is_fed_back(
    stages: int, micro_batches: int, schedule: Any, chunks: int, options: Any
) -> None:
    run = pipelined(stages, micro_batches, schedule, chunks, donate_argnums=0, **options)
    layers = stages * chunks
    carried, batch = arguments(layers)
    plan = run.plan(carried, batch)
    expected, found = carried, carried
    for _ in range(2):
        before = jax.tree.leaves(found)
        found, value = run(found, batch)
        expected, wanted = jax.jit(step)(expected, batch)
        jax.tree.map(np.testing.assert_array_equal, (found, value), (expected, wanted))
    assert all(leaf.is_deleted() for leaf in before), "the first result was donated to the second"
    assert [leaf.sharding for leaf in jax.tree.leaves(found)] == list(
        jax.tree.leaves(plan.in_shardings[0])
    ), "the state lies where the next step reads it"
    pipeline = plan.pipeline
    assert pipeline.schedule == schedule
    homes = [on for (on,) in pipeline.argument_stages]
    assert homes[1 : 1 + layers] == homes[-1 - layers : -1], "states lie with their weights"
    turns = [on for n, on in enumerate(homes[1 : 1 + layers]) if not n or homes[n] != on]
    assert len(turns) >= layers - 1, "parts that follow one another are on different stages"


def marked(weights: Any, x: jax.Array) -> Any:
    """A step with a layer in each part, computed again for its gradients."""

    def loss(weights: Any) -> jax.Array:
        hidden = x
        for part, own in enumerate(weights):
            layer = jax.checkpoint(lambda h, w: h + jnp.maximum(h @ w, 0))
            hidden = autoshard.pipeline_stage(layer, part)(hidden, own)
        return hidden.sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w * (1 - 2 * (g > 0)) for w, g in zip(weights, gradients, strict=True)], value


def test_marks_are_numbers_of_parts_and_equal_parts_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    compiled: list[Any] = []
    compile_one = jax.stages.Lowered.compile

    def counted(lowered: Any, **options: Any) -> Any:
        compiled.append(lowered)
        return compile_one(lowered, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    weights, x = matrices(6), arguments()[1]
    run = pipelined(2, 4, "1f1b", 3, marked)
    plan = run.plan(weights, x)
    found, right = run(weights, x), jax.jit(marked)(weights, x)
    jax.tree.map(np.testing.assert_array_equal, found, right)
    pipeline = plan.pipeline
    assert pipeline.argument_stages[:6] == ((0,), (1,)) * 3
    assert len(pipeline.step.program.tasks) == 2 + 11 + 2
    # Of the loop the first part, those between, the last one both ways; those between and the first
    # one back.
    assert len(compiled) == 2 + 5 + 1
    assert "a step of 2 stages, 3 parts of the model each, in 4 micro-batches takes" in str(plan)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.pipeline is not None
    assert loaded.pipeline.asked.chunks == 3
    assert loaded.pipeline.gantt() == pipeline.gantt()
    again = autoshard.jit(marked, plan=loaded)(*plan.place(weights, x))
    jax.tree.map(np.testing.assert_array_equal, again, right)


def test_loops_over_layers_that_fall_on_no_such_parts_are_refused() -> None:
    def scanned(weights: Any, x: jax.Array) -> Any:
        def loss(weights: Any) -> jax.Array:
            return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0].sum()

        return weights - jax.grad(loss)(weights)

    said = r"stages=2 chunks=4: a loop .* 4 a stage, and 6 trips fall into 2, 6 of them only"
    with pytest.raises(autoshard.PlanError, match=said):
        pipelined(2, 4, "auto", 4, scanned).plan(np.stack(matrices(6)), arguments()[1])


def test_labels_wait_for_the_stage_that_reads_them() -> None:
    """A task of their own at the front would be one more that other stages wait for."""

    def step(weights: Any, x: jax.Array, labels: jax.Array) -> Any:
        wanted = jnp.eye(x.shape[1])[labels] * 2 - 1  # before the layers, for the loss alone

        def loss(weights: Any) -> jax.Array:
            hidden = x
            for one in weights:
                hidden = hidden + jnp.maximum(hidden @ one, 0)
            return (hidden * wanted).sum()

        return [w - g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]

    weights, x = list(matrices(8)), arguments()[1]
    labels = np.arange(len(x)) % x.shape[1]
    asked = autoshard.Pipeline(2, 4, schedule="1f1b", chunks=2)
    run = autoshard.jit(step, cluster="cpu:2", pipeline=asked, batch_argnums=(1, 2))
    plan = run.plan(weights, x, labels)
    assert len(plan.pipeline.step.program.calls) == 2 * 4 - 1
    found, right = run(*plan.place(weights, x, labels)), jax.jit(step)(weights, x, labels)
    jax.tree.map(np.testing.assert_array_equal, found, right)
