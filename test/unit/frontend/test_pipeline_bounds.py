"""What the cut into stages alone tells of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.cluster.chips import Constant
from autoshard.frontend.pipeline_bounds import (
    Known,
    PipelineBounds,
    StepTimes,
    filled_seconds,
    in_more_parts,
    interleaved_seconds,
    pipeline_bounds,
    seconds_by_chunks,
)
from autoshard.frontend.planning import traced_for
from autoshard.frontend.request import Request
from autoshard.rewrites.stages import Parts
from autoshard.schedule.rules import pipeline_schedule
from autoshard.schedule.work import StageSeconds, training_works

LAYERS, WIDTH, BATCH = 12, 1024, 8192
WAYS = StageSeconds(1 / 3, 1 / 3, 1 / 3)


def step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        y = x
        for weights in params:
            y = jnp.tanh(y @ weights)
        return (y * y).sum()

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))


def scanned(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        return (jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0] ** 2).sum()

    return weights - jax.grad(loss)(weights)


def told_by(parts: Any) -> Any:
    """Times of steps that have such parts, and no loops."""
    step = SimpleNamespace(micro_batches=16)
    return SimpleNamespace(of=lambda *_: step, parts=parts, moving_seconds=lambda *_: 0.0)


def source_and_request(
    stages: int, count: int, chunks: int = 1, fn: Any = step
) -> tuple[Any, Request]:
    given: Any = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    if fn is scanned:
        given = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    traced = traced_for(fn, ((given, x), {}), static=(None, None), donate=(0, None))
    pipeline = autoshard.Pipeline(stages, count, chunks=chunks)
    request = Request(cluster="h100:8", pipeline=pipeline, micro_batches=count, batch_argnums=1)
    return traced.source(request), request


@pytest.mark.parametrize("stages", [2, 4])
def test_no_plan_is_faster_than_its_bound(stages: int) -> None:
    source, fewest = source_and_request(stages, stages)
    bounds = pipeline_bounds(source, fewest, StepTimes())
    assert bounds.devices == 8 // stages
    for count in (stages, 16):
        request = replace(fewest, pipeline=autoshard.Pipeline(stages, count), micro_batches=count)
        plan = autoshard.plan(
            step,
            [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS,
            jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32),
            cluster="h100:8",
            pipeline=request.stages,
            batch_argnums=1,
            donate_argnums=0,
        )
        assert 0 < bounds.seconds(count) <= plan.step_seconds


def bounds_of(stages: int) -> PipelineBounds:
    """The bounds of stages of one device, with a second for each of three works."""
    works = training_works([StageSeconds(1, 1, 1)] * stages, stages)
    return PipelineBounds(stages, works, 1)


def test_with_more_micro_batches_a_step_waits_less() -> None:
    bounds = bounds_of(4)
    assert bounds.seconds(4) == 3 * 4 + 3 * 3
    assert bounds.seconds(16) == pytest.approx(3 * 4 + 3 * 3 / 4)


def test_a_step_takes_its_share_of_one_stage_that_does_all() -> None:
    bounds = bounds_of(2)
    assert bounds.share(8) == pytest.approx((8 * 3 + 3) / (2 * 8 * 3))
    zero_bubble = replace(
        bounds,
        works=training_works([StageSeconds(1, 1, 1)] * 2, 2, splits_gradients=True),
        rules=("1f1b", "zero_bubble"),
    )
    assert zero_bubble.share(8) == pytest.approx((8 * 3 + 1) / (2 * 8 * 3))


def test_what_plans_take_besides_is_no_less_with_more_micro_batches() -> None:
    bounds = bounds_of(4)
    assert bounds.least_whole(8) == bounds.least_whole(16) == 4 * 3 * 4, "computing alone"
    known = replace(bounds, known={8: Known(60, is_held_back=False)})
    assert known.least_whole(8) == known.least_whole(16) == 60
    held_back = replace(bounds, known={8: Known(60, is_held_back=True)})
    assert held_back.least_whole(16) == 48


def test_with_half_as_many_micro_batches_half_of_it_may_be_left() -> None:
    known = replace(bounds_of(4), known={8: Known(60, is_held_back=False)})
    assert known.least_whole(4) == 48 + (60 - 48) / 2


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (2, 3), (4, 2)])
def test_a_filled_pipeline_takes_as_long_as_its_schedule(stages: int, chunks: int) -> None:
    parts = [StageSeconds(1, 1, 1)] * (stages * chunks)
    found = filled_seconds([3.0] * len(parts), stages, 4 * stages)
    assert found == pipeline_schedule("1f1b", parts, stages, 4 * stages).seconds


def test_numbers_of_parts_that_are_no_power_of_two_are_told_from_one_cut() -> None:
    source, request = source_and_request(4, 8, chunks=2)
    free = Cluster.parse("h100:8").dims[0]
    free = replace(free, bandwidth=Constant(1e18, "a test"), latency=Constant(1e-12, "a test"))
    found = seconds_by_chunks(source, request, 6, 4.0, WAYS, free, StepTimes())
    assert set(found) == {1, 2, 3}, "twelve layers have no 16 parts"
    assert 1 < min(found[2], found[3]) < found[1] < 11 / 8, "some of the waiting is filled"


@pytest.mark.parametrize(("even", "most"), [({1, 2, 5}, 9), ({1, 2, 5, 9}, 13), ({1}, 5)])
def test_parts_far_finer_than_the_last_that_wait_less_are_not_looked_at(
    even: set[int], most: int
) -> None:
    def parts(_step: Any, stages: int, count: int, *, is_exact: bool = True) -> Parts:
        first = 1 if count in even else 3
        return Parts((first / count, *[1 / count] * (stages * count - 1)), 0.0)

    source, request = source_and_request(4, 16, chunks=2)
    times = told_by(parts)
    link = Cluster.parse("h100:8").dims[0]
    found = seconds_by_chunks(source, request, 40, 1.0, WAYS, link, times)
    assert max(found) == most


def test_the_fastest_number_of_parts_is_cut_exactly_and_no_other() -> None:
    exact = dict[int, bool]()

    def parts(_step: Any, stages: int, count: int, *, is_exact: bool = True) -> Parts:
        exact[count] = is_exact
        slowest = 2 if is_exact and count == 4 else 1  # its line promises too much
        seconds = [1 / count] * (stages * count)
        return Parts((slowest / count, *seconds[1:]), 0.0)

    source, request = source_and_request(4, 16, chunks=2)
    times = told_by(parts)
    free = Cluster.parse("h100:8").dims[0]
    free = replace(free, bandwidth=Constant(1e18, "a test"), latency=Constant(1e-12, "a test"))
    found = seconds_by_chunks(source, request, 4, 1.0, WAYS, free, times)
    assert exact == {1: False, 2: False, 3: True, 4: True}
    assert min(found, key=lambda count: found[count]) == 3


def test_loops_over_layers_are_cut_into_equal_parts_beside_what_ends_have_besides() -> None:
    found = in_more_parts(Parts((5.0, 4.0, 7.0), 8.0), 2)
    assert found == Parts((3.0, 2.0, 2.0, 2.0, 2.0, 5.0), 8.0)


def test_of_loops_over_layers_only_numbers_of_parts_are_looked_at_by_which_they_fall() -> None:
    source, request = source_and_request(2, 8, chunks=2, fn=scanned)
    link = Cluster.parse("h100:8").dims[0]
    times = StepTimes()
    found = seconds_by_chunks(source, request, 6, 4.0, WAYS, link, times)
    assert times.is_cut
    assert set(found) == {1, 2, 3, 6}, "twelve layers on two stages"
    assert 0 < times.moving_seconds(2, 4, link) < min(found.values())
    slow = replace(link, bandwidth=Constant(1e6, "a test"))
    moving = times.moving_seconds(2, 4, slow)
    size = 2 * LAYERS * WIDTH * WIDTH * 4  # an argument and a result
    assert moving == pytest.approx(2 * link.latency.value + size / 4 / 2 / 2 / 1e6)


def test_a_slow_link_between_stages_speaks_against_several_parts() -> None:
    source, request = source_and_request(4, 16, chunks=2)
    link = Cluster.parse("h100:8").dims[0]
    slow = replace(link, bandwidth=Constant(1e6, "a test"))
    assert seconds_by_chunks(source, request, 3, 4.0, WAYS, slow, StepTimes())[3] > 1.3


def test_parts_whose_slowest_stage_alone_takes_too_long_are_of_no_use() -> None:
    source, request = source_and_request(4, 8, chunks=2)
    link = Cluster.parse("h100:8").dims[0]
    assert seconds_by_chunks(source, request, 2, 4.0, WAYS, link, StepTimes(), useful=0.99) == {}


def test_gradients_of_weights_fill_gaps_of_several_parts_too() -> None:
    source, request = source_and_request(4, 8, chunks=2)
    link = Cluster.parse("h100:8").dims[0]
    free = replace(link, bandwidth=Constant(1e18, "a test"), latency=Constant(1e-12, "a test"))
    asked = replace(request, pipeline=autoshard.Pipeline(4, 8, chunks=2, schedule="1f1b"))
    alone, both = (
        seconds_by_chunks(source, one, 2, 4.0, WAYS, free, StepTimes()) for one in (asked, request)
    )
    assert both[2] < alone[2]


def test_the_ways_of_a_stage_are_shares_of_what_it_does() -> None:
    works = training_works([StageSeconds(1, 2, 3)] * 2, 2, splits_gradients=True)
    assert PipelineBounds(2, works, 1).ways == StageSeconds(1 / 6, 2 / 6, 3 / 6)


def test_steps_of_many_micro_batches_are_told_from_few() -> None:
    parts = [StageSeconds(1, 1, 1)] * 8
    whole = pipeline_schedule("1f1b", [StageSeconds(1, 1, 1)] * 8, 2, 64, transfer_seconds=0.1)
    assert interleaved_seconds(parts, 2, 64, 0.1) == pytest.approx(whole.seconds, rel=1e-3)
