"""Scans over layers on the stages of a pipeline: bit-equal on whole numbers, rows where they are
read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
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
    stacked,
    turned,
    whole_numbers,
)

import autoshard
from autoshard.frontend import planning
from autoshard.sharding import parse_sharding

pytestmark = pytest.mark.filterwarnings("ignore:.*the arrays of the batch are cut unlike")


def pipelined(fn: Step, stages: int, micro_batches: int, *, chunks: int = 1, **options: Any) -> Any:
    pipeline = autoshard.Pipeline(stages, micro_batches, chunks=chunks)
    return autoshard.jit(fn, cluster="cpu:8", pipeline=pipeline, batch_argnums=1, **options)


@pytest.mark.parametrize(
    ("stages", "chunks", "checkpoint"), [(2, 1, True), (4, 1, False), (2, 2, True), (2, 2, False)]
)
def test_a_scan_in_stages_is_bit_equal_and_each_stage_has_its_own_layers(
    stages: int, chunks: int, checkpoint: bool
) -> None:
    step = network(recomputed if checkpoint else scanned)
    run = pipelined(step, stages, 4, chunks=chunks, donate_argnums=0)
    carried, batch = arguments()
    plan = run.plan(carried, batch)
    on_all = tuple(range(stages))
    assert plan.pipeline.argument_stages[1] == plan.pipeline.argument_stages[3] == on_all
    found, batch_there = plan.place(carried, batch)
    expected = carried
    for _ in range(2):
        before = found
        found, value = run(found, batch_there)
        expected, wanted = jax.jit(step)(expected, batch)
        jax.tree.map(np.testing.assert_array_equal, (found, value), (expected, wanted))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before)), "donated"
    for tree in found:
        rows = tree["layers"]
        assert len(rows.sharding.device_set) == 8
        assert {shard.data.shape[0] for shard in rows.addressable_shards} == {LAYERS // stages}
    assert [leaf.sharding for leaf in jax.tree.leaves(found)] == list(
        jax.tree.leaves(plan.in_shardings[0])
    ), "the state lies where the next step reads it"
    assert plan.arguments[1].local_shape[0] == LAYERS // stages


@pytest.mark.parametrize("chunks", [1, 2])
def test_what_is_not_donated_is_kept_and_a_saved_plan_runs_alike(
    tmp_path: Any, chunks: int
) -> None:
    step = network(scanned)
    carried, batch = arguments()
    plan = pipelined(step, 2, 2, chunks=chunks).plan(carried, batch)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.pipeline is not None
    assert loaded.pipeline.argument_stages == plan.pipeline.argument_stages
    assert loaded.pipeline.peak_bytes == plan.pipeline.peak_bytes
    placed = plan.place(carried, batch)
    found, right = autoshard.jit(step, plan=loaded)(*placed), jax.jit(step)(carried, batch)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(placed))
    jax.tree.map(np.testing.assert_array_equal, found, right)


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (4, 1), (2, 2)])
def test_two_scans_of_as_many_layers_are_cut_apart(stages: int, chunks: int) -> None:
    """Though both read the same zeros, and the same numbers of an optimizer."""

    def forward(params: Any, hidden: jax.Array) -> jax.Array:
        return recomputed({"layers": params["more"]}, scanned(params, hidden))

    (params, _), batch = arguments()
    params["more"] = stacked(seed=3)
    carried = (params, jax.tree.map(np.zeros_like, params))
    step = network(forward)
    run = pipelined(step, stages, 4, chunks=chunks, donate_argnums=0)
    plan = run.plan(carried, batch)
    on = [stages for stages in plan.pipeline.argument_stages if len(stages) > 1]
    if chunks == 1:
        assert on == ([(0, 1), (2, 3)] * 2 if stages == 4 else [])
    found, right = run(*plan.place(carried, batch)), jax.jit(step)(carried, batch)
    jax.tree.map(np.testing.assert_array_equal, found, right)


def test_moving_rows_takes_seconds_and_memory() -> None:
    """Both stages have one of two layers of each array elsewhere, in parts as large as a layer."""
    step, (carried, batch) = network(scanned), arguments()
    donated, kept = (
        pipelined(step, 2, 4, chunks=2, donate_argnums=argnums).plan(carried, batch).pipeline
        for argnums in (0, ())
    )
    link = donated.cluster.dims[0]
    layer = WIDTH * WIDTH * 4 / np.prod(donated.machines[0].mesh.axis_sizes)
    moves = donated.step.moves
    assert moves.seconds >= 2 * (link.latency.value + 2 * layer / link.bandwidth.value)
    still = replace(donated.step, moves=type(moves)())
    assert donated.step_seconds == pytest.approx(still.step_seconds + moves.seconds)
    assert moves.kept_bytes == (0, 0)
    assert min(kept.step.moves.kept_bytes) >= 4 * layer, "two layers of two arrays"
    unmoved = replace(kept.step, moves=type(moves)())
    for task in kept.step.program.tasks:
        more = kept.step.beside_bytes(task.name) - unmoved.beside_bytes(task.name)
        assert more == kept.step.moves.kept_bytes[task.stage], "verify() reserves it"
    assert min(moves.moving_bytes) >= 12 * layer, "as they lie, cut, and as a step has them"


def test_options_name_arrays_of_the_step_and_not_their_parts() -> None:
    carried, batch = arguments()
    spread = [
        autoshard.OptimizerParallel(level=1, threshold_kb=0, parameters=said, states=(2, 3))
        for said in ((0, 1), ("carried[0]",))
    ]
    options: dict[str, Any] = {"mesh": "a=2,b=2", "in_shardings": ((P(), None), None)}
    first, second = (
        pipelined(network(scanned), 2, 4, optimizer_parallel=asked, **options).plan(carried, batch)
        for asked in spread
    )
    assert (first.arguments, first.results) == (second.arguments, second.results)
    assert all(np.prod(value.sharding.tile) > 1 for value in first.results[2:4]), "states are cut"
    none = autoshard.OptimizerParallel(parameters=(0, 1), states=(2, 5))  # 5 is one of seven parts
    with pytest.raises(autoshard.PlanError, match="no argument is called 5; there are 5: carried,"):
        pipelined(network(scanned), 2, 4, optimizer_parallel=none).plan(carried, batch)


@pytest.mark.parametrize(
    ("stages", "options"),
    [
        (4, {"mesh": "a=2", "in_shardings": (None, P("a"))}),
        (2, {"mesh": "a=2,b=2"}),
        (2, {}),
        (2, {"mesh": "a=2,b=2", "in_shardings": (None, P("a"))}),
    ],
)
def test_parts_that_the_search_lets_lie_unlike_are_planned_once_more_and_lie_alike(
    monkeypatch: pytest.MonkeyPatch, stages: int, options: dict[str, Any]
) -> None:
    def step(params: Any, batch: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(backwards)(params, batch)
        return turned(params, gradients), value, gradients

    plans: list[autoshard.Plan] = []
    pins: list[set[int]] = []
    gradients = stages + 1
    """Number of the first part of them, among the results."""

    def planned(source: Any, request: Any, **effort: Any) -> autoshard.Plan:
        plan = whole(source, request, **effort)
        pins.append({number for number, _ in source.result_pins})
        if not plans:  # one part of weights, and of gradients, is cut: the first, or all others are
            cut = parse_sharding(f"[{{}}, {{}}, {{{plan.mesh.axes[0].name}}}]", plan.mesh)
            whole_rows = parse_sharding("[{}, {}, {}]", plan.mesh)
            rows = (cut, whole_rows) if stages == 2 else (whole_rows, *[cut] * (stages - 1))
            first, after = plan.results[:gradients], plan.results[gradients:]
            plan = replace(
                plan,
                arguments=(*as_cut(plan.arguments[:stages], rows), *plan.arguments[stages:]),
                results=(*first, *as_cut(after, rows)),
            )
        plans.append(plan)
        return plan

    def as_cut(values: Any, rows: Any) -> list[Any]:
        return [replace(value, sharding=how) for value, how in zip(values, rows, strict=True)]

    whole = planning._planned
    monkeypatch.setattr(planning, "_planned", planned)
    plan = pipelined(step, stages, stages, **options).plan(stacked(), whole_numbers(BATCH, WIDTH))
    assert len(plans) == 2
    assert pins == [set(), {*range(stages), *range(gradients, gradients + stages)}], (
        "also of weights, whose parts could lie unlike then"
    )
    parts = (*plans[1].arguments[:stages], *plans[1].results[gradients:])
    pinned = (*parts, plan.arguments[0], plan.results[2])
    cut = plans[0].arguments[0 if stages == 2 else 1].sharding
    assert {value.sharding for value in pinned} == {cut}, "as most of them, or as the first"


def trained(loss: Callable[[Any, jax.Array], jax.Array]) -> Step:
    def step(params: Any, batch: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return turned(params, gradients), value

    return step


def backwards(params: Any, batch: jax.Array) -> jax.Array:
    """The last row is the first layer."""
    return (jax.lax.scan(layer, batch, params, reverse=True)[0] * batch).sum()


def along_dim_1(params: Any, batch: jax.Array) -> jax.Array:
    """Layers are not in dim 0 of the argument."""
    rows = jnp.moveaxis(params, 1, 0).astype(jnp.bfloat16)

    def body(hidden: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
        return layer(hidden, weights.astype(jnp.float32))

    return (jax.lax.scan(body, batch, rows)[0] * batch).sum()


def by_number(params: Any, batch: jax.Array) -> jax.Array:
    """A layer takes its weights by its number, and reads the next one."""

    def body(carried: Any, _: Any) -> Any:
        hidden, number = carried
        weights = jax.lax.dynamic_index_in_dim(params, number, keepdims=False)
        after = number + 1
        hidden = hidden + jnp.maximum(hidden @ weights, 0) * (after % 3 == 1)
        return (hidden, after), hidden.sum()

    (hidden, _), sums = jax.lax.scan(body, (batch, 0), None, length=LAYERS)
    return (hidden * batch).sum() + sums.sum()


@pytest.mark.parametrize(
    ("loss", "weights", "on"),
    [
        (backwards, stacked(), (1, 0)),
        (along_dim_1, np.ascontiguousarray(np.moveaxis(stacked(), 0, 1)), (0, 1)),
        (by_number, stacked(), (0, 1)),
    ],
)
def test_rows_are_where_their_layers_are(
    loss: Callable[[Any, jax.Array], jax.Array], weights: np.ndarray, on: tuple[int, ...]
) -> None:
    batch = whole_numbers(BATCH, WIDTH)
    run = pipelined(trained(loss), 2, 2)
    assert run.plan(weights, batch).pipeline.argument_stages == (on, (0,))
    found, right = run(weights, batch), jax.jit(trained(loss))(weights, batch)
    jax.tree.map(np.testing.assert_array_equal, found, right)


def test_rows_that_no_loop_changes_and_what_is_not_done_by_rows_are_right() -> None:
    def step(params: Any, batch: jax.Array) -> Any:
        def loss(weights: jax.Array) -> jax.Array:
            both = weights, params["frozen"]

            def body(hidden: jax.Array, own: Any) -> tuple[jax.Array, None]:
                return layer(hidden, own[0] * own[1])

            return (jax.lax.scan(body, batch, both)[0] * batch).sum()

        value, gradients = jax.value_and_grad(loss)(params["weights"])
        flat = gradients.reshape(-1)
        told = jnp.vdot(flat, flat) + jnp.max(gradients) + jnp.cumsum(params["weights"], 0)[-1, 0]
        new = {
            "weights": turned(params["weights"], gradients),
            "frozen": params["frozen"],
            "mean": params["mean"] + params["weights"],
        }
        return new, (value, told, jnp.flip(gradients, 0)[0])

    params = {"weights": stacked(), "frozen": stacked(seed=2) + 1, "mean": stacked(seed=3)}
    batch = whole_numbers(BATCH, WIDTH)
    run = pipelined(step, 2, 2)
    assert run.plan(params, batch).pipeline.argument_stages == (*[(0, 1)] * 3, (0,))
    found, right = run(params, batch), jax.jit(step)(params, batch)
    jax.tree.map(np.testing.assert_array_equal, found, right)


def two_scans(params: Any, batch: jax.Array) -> jax.Array:
    hidden = jax.lax.scan(layer, batch, params["first"])[0]
    hidden = jax.lax.scan(layer, hidden @ params["between"], params["second"])[0]
    return (hidden * batch).sum()


def test_two_scans_share_the_stages() -> None:
    params = {"first": stacked(4), "between": stacked(1)[0], "second": stacked(6, seed=2)}
    batch = whole_numbers(BATCH, WIDTH)
    run = pipelined(trained(two_scans), 4, 4)
    pipeline = run.plan(params, batch).pipeline
    assert pipeline.argument_stages == ((1,), (0, 1), (2, 3), (0,))
    found, right = run(params, batch), jax.jit(trained(two_scans))(params, batch)
    jax.tree.map(np.testing.assert_array_equal, found, right)


def beside_each_other(params: Any, batch: jax.Array) -> jax.Array:
    """A layer takes the weights of another one, too."""

    def body(carried: Any, _: Any) -> Any:
        hidden, number = carried
        own, other = (
            jax.lax.dynamic_index_in_dim(params, row, keepdims=False)
            for row in (number, number // 2)
        )
        return (hidden + jnp.maximum(hidden @ own @ other, 0), number + 1), None

    return (jax.lax.scan(body, (batch, 0), None, length=LAYERS)[0][0] * batch).sum()


def by_array_of_numbers(params: Any, batch: jax.Array) -> jax.Array:
    """Numbers of layers are rows themselves."""

    def body(hidden: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        return layer(hidden, jax.lax.dynamic_index_in_dim(params, number, keepdims=False))

    return (jax.lax.scan(body, batch, jnp.arange(LAYERS))[0] * batch).sum()


@pytest.mark.parametrize("stages", [2, 4])
def test_layers_whose_numbers_are_rows_are_cut_as_well(stages: int) -> None:
    params, batch = stacked(LAYERS), whole_numbers(BATCH, WIDTH)
    step = trained(by_array_of_numbers)
    run = pipelined(step, stages, stages)
    expected = jax.jit(step)(params, batch)
    found = run(*run.plan(params, batch).place(params, batch))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(expected))


def over_the_batch(params: Any, batch: jax.Array) -> jax.Array:
    """Rows are those of steps of time."""

    def body(hidden: jax.Array, column: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(hidden @ params[0] + column), None

    return jax.lax.scan(body, batch[:, :WIDTH], jnp.stack([batch] * LAYERS))[0].sum()


def twice(params: Any, batch: jax.Array) -> jax.Array:
    for _ in range(2):
        batch = jnp.sign(jax.lax.scan(layer, batch, params)[0])
    return batch.sum()


@pytest.mark.parametrize(
    ("loss", "layers", "stages", "said"),
    [
        (backwards, 6, 4, "6 trips fall into 2, 3, 6 of them only"),
        (beside_each_other, LAYERS, 2, r"takes a part of an array of shape .4, 8, 8., not that of"),
        (over_the_batch, LAYERS, 2, "as no argument but the batch has a row for each of its trips"),
        (twice, LAYERS, 2, "goes through the same layers a second time"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_line_of_the_scan(
    loss: Callable[[Any, jax.Array], jax.Array], layers: int, stages: int, said: str
) -> None:
    batch = whole_numbers(BATCH, WIDTH)
    with pytest.raises(
        autoshard.PlanError, match=rf"test_scanned_pipelines.py:\d+.*{said}.*unroll=True"
    ):
        pipelined(trained(loss), stages, stages).plan(stacked(layers), batch)
