"""``micro_batches="auto"``: the choice among numbers of parts, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cli import opt
from autoshard.planned.summary import PlanSummary
from autoshard.search.micro_batches import Chosen, choose_micro_batches, divisors, free_step

CLUSTER = "h100:4"
WIDTH, WIDE, LAYERS = 64, 256, 2


def type_of(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(params: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        h = x
        for up, down in params:
            h = h + jnp.tanh(h @ up) @ down
        return jnp.mean(h**2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(updated, params, gradients), value


def updated(parameter: jax.Array, gradient: jax.Array) -> jax.Array:
    return parameter - 0.1 * gradient


def normalised(params: jax.Array, x: jax.Array) -> jax.Array:
    """A step with a mean over the batch in its middle, which nobody can cut."""

    def loss(params: jax.Array) -> jax.Array:
        h = x @ params
        return jnp.mean(jnp.tanh(h / jnp.mean(h**2)) @ params.T)

    return updated(params, jax.grad(loss)(params))


PARAMS = [(type_of(WIDTH, WIDE), type_of(WIDE, WIDTH))] * LAYERS


def plan(rows: int, **options: Any) -> autoshard.Plan:
    given: dict[str, Any] = {"cluster": CLUSTER, "donate_argnums": 0} | options
    return autoshard.plan(step, PARAMS, type_of(rows, WIDTH), **given)


# --- the choice alone ---

DEVICES = 2


def summary(seconds: float, peak: float, mem_coeff: float = 0.0) -> PlanSummary:
    return PlanSummary(seconds, seconds, 0.0, peak, "cpu:1", "data=1", 1, mem_coeff)


def choose(
    size: int,
    steps: Mapping[int, float | Exception],
    free: Mapping[int, float],
) -> tuple[Chosen[PlanSummary], list[int], list[int]]:
    """The choice, the numbers that were planned, and those that were planned without a limit.

    Args:
        size: Examples.
        steps: By number, seconds of the plan that fits, or what is raised.
        free: Seconds without a limit; a plan that takes as long is not held back by one.
    """
    planned: list[int] = []
    bounded: list[int] = []

    def made(count: int) -> PlanSummary:
        planned.append(count)
        found = steps[count]
        if isinstance(found, Exception):
            raise found
        return summary(found, 1.0, 0.0 if found == free[count] else 1.0)

    def without_limit(count: int) -> float:
        bounded.append(count)
        return free[count]

    counts, shared = divisors(size), divisors(size, DEVICES)
    return (
        choose_micro_batches(counts, shared, made, lambda it: it, without_limit),
        planned,
        bounded,
    )


def too_much(peak: float) -> autoshard.DoesNotFitError:
    return autoshard.DoesNotFitError("no plan fits.", None, peak, 1.0)


def test_parts_of_a_batch_divide_it_and_fall_into_pieces() -> None:
    assert divisors(24) == [1, 2, 3, 4, 6, 8, 12, 24]
    assert divisors(24, 4) == [1, 2, 3, 6]
    assert divisors(7, 2) == [1]  # it is cut unevenly already
    assert divisors(0) == [1]


def test_a_batch_that_no_limit_holds_back_is_planned_once() -> None:
    found, planned, bounded = choose(64, {1: 1.0}, {1: 1.0})
    assert (found.count, planned, bounded) == (1, [1], [])


def test_more_parts_end_where_they_are_slower_without_a_limit() -> None:
    free = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.6}
    found, planned, bounded = choose(8, {1: 1.5, 2: 1.25}, free)
    assert (found.count, planned, bounded) == (2, [1, 2], [2, 4])
    assert [(it.micro_batches, it.outcome) for it in found.tried] == [
        (1, "fits"),
        (2, "taken"),
        (4, "bounded"),
    ]


def test_numbers_between_the_doublings_are_tried_where_they_can_be_faster() -> None:
    steps = {1: too_much(9.0), 2: too_much(5.0), 12: 9.0, 4: 2.0, 3: 1.5, 6: 1.7}
    free = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.6, 6: 1.65, 12: 9.0}
    found, planned, _ = choose(12, steps, free)
    assert found.count == 3
    assert 3 in planned
    assert 6 not in planned  # its free step is no faster than that of three parts


def test_what_divides_a_number_that_does_not_fit_is_not_tried() -> None:
    steps = {1: too_much(9.0), 2: too_much(8.0), 6: too_much(7.0), 9: too_much(6.0), 18: 1.5}
    found, planned, _ = choose(18, steps, dict.fromkeys(divisors(18), 1.0))
    assert planned == [1, 2, 6, 9, 18]  # not 3, whose parts two devices share as those of 9
    assert found.count == 18


def test_nothing_fits_if_the_most_parts_that_devices_share_do_not() -> None:
    steps = {1: too_much(9.0), 2: too_much(5.0), 4: too_much(3.0), 512: too_much(2.0)}
    with pytest.raises(autoshard.DoesNotFitError) as raised:
        choose(1024, steps | {1024: too_much(4.0)}, {})
    assert raised.value.micro_batches == 512
    assert raised.value.peak_bytes == 2.0
    assert "it needs 9 B with 1, 5 B with 2, 3 B with 4, 2 B with 512, 4 B with 1024." in str(
        raised.value
    )


def test_a_step_that_cannot_be_cut_stays_whole_and_says_why() -> None:
    refused = autoshard.PlanError("a sum is needed in the middle.", "model.py:4")
    found, planned, _ = choose(12, {1: 2.0, 2: refused, 3: refused}, dict.fromkeys((1, 2, 3), 1.0))
    assert (found.count, planned) == (1, [1, 2, 3])
    assert [it.reason for it in found.tried if it.outcome == "refused"] == [
        "model.py:4: a sum is needed in the middle."
    ] * 2


def test_what_is_wrong_with_the_whole_batch_is_raised() -> None:
    with pytest.raises(autoshard.StrategyError, match="pins"):
        choose(4, {1: autoshard.StrategyError("pins")}, {})


# --- small programs, beside every divisor ---


def best_of_all(rows: int, **options: Any) -> tuple[float, int]:
    found: list[tuple[float, int]] = []
    for count in divisors(rows):
        try:
            made = plan(rows, micro_batches=count, **options)
        except autoshard.DoesNotFitError:
            continue
        assert made.summary is not None
        found.append((free_step(made.summary), count))
    return min(found)


@pytest.mark.parametrize(
    ("rows", "share", "options"),
    [
        (192, 1.1, {}),
        (192, 0.8, {}),
        (96, 0.6, {"recompute": "auto"}),
        (96, 0.28, {}),
        (24, 0.7, {"recompute": "auto", "host_offload": "auto"}),
    ],
)
def test_auto_is_as_fast_as_the_best_of_all_divisors(
    rows: int, share: float, options: dict[str, Any]
) -> None:
    limit = share * plan(rows, **options).peak_bytes
    asked = options | {"memory_limit": limit}
    found = plan(rows, micro_batches="auto", **asked)
    assert found.summary is not None
    assert found.batch is not None
    seconds, count = best_of_all(rows, **asked)
    assert free_step(found.summary) <= seconds
    assert found.batch.micro_batches == count
    assert found.peak_bytes <= limit


# --- what a plan and errors say ---


def test_a_plan_says_what_was_tried_and_a_file_keeps_it(tmp_path: Path) -> None:
    limit = 0.3 * plan(384).peak_bytes
    found = plan(384, micro_batches="auto", memory_limit=limit)
    assert found.summary is not None
    tried = found.summary.tried_micro_batches
    assert [it.outcome for it in tried][:2] == ["does not fit", "taken"]
    text = " ".join(str(found).split())
    assert "micro-batches tried: 1: does not fit, " in text
    assert PlanSummary.from_json(found.summary.to_json()).tried_micro_batches == tried
    found.save(tmp_path / "plan.json")
    kept = autoshard.Plan.load(tmp_path / "plan.json")
    assert kept.summary is not None
    assert kept.summary.tried_micro_batches == tried
    assert found.origin is not None
    assert found.origin.request.micro_batches == tried[1].micro_batches


def test_a_plan_says_why_a_step_stays_whole() -> None:
    arguments = type_of(WIDTH, WIDTH), type_of(4096, WIDTH)
    whole = autoshard.plan(normalised, *arguments, cluster=CLUSTER, batch_argnums=1)
    limit = whole.peak_bytes - 1
    found = autoshard.plan(
        normalised,
        *arguments,
        cluster=CLUSTER,
        batch_argnums=1,
        memory_limit=limit,
        micro_batches="auto",
    )
    assert found.batch is not None
    assert found.batch.micro_batches == 1
    text = " ".join(str(found).split())
    assert "not in micro-batches: " in text
    assert "micro_batches=2: reduce adds up over the batch" in text
    assert "test_micro_batches_auto.py:" in text
    with pytest.raises(autoshard.DoesNotFitError) as raised:
        autoshard.plan(
            normalised,
            *arguments,
            cluster=CLUSTER,
            batch_argnums=1,
            memory_limit=1e5,
            micro_batches="auto",
        )
    assert "micro_batches='auto' does not make it fit: it needs" in str(raised.value)
    assert "micro_batches=2: reduce adds up over the batch" in str(raised.value)


def test_a_batch_that_nobody_knows_stays_whole() -> None:
    def forward(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    arguments = type_of(64, 64), type_of(512, 64)
    found = autoshard.plan(forward, *arguments, cluster=CLUSTER, micro_batches="auto")
    assert "not in micro-batches: forward: micro_batches='auto', but no result" in str(found)
    with pytest.raises(autoshard.DoesNotFitError, match="batch_argnums=1"):
        autoshard.plan(forward, *arguments, cluster=CLUSTER, micro_batches="auto", memory_limit=1e3)


def test_switches_are_tried_with_the_number_that_needs_least() -> None:
    with pytest.raises(autoshard.DoesNotFitError) as raised:
        plan(384, micro_batches="auto", memory_limit="20KiB")
    # Two to six examples of each part on four devices.
    assert raised.value.micro_batches in (64, 96, 128, 192)
    said = str(raised.value)
    assert "Of autoshard's own: recompute='auto' needs" in said
    assert "micro_batches=" in said
    assert "micro_batches=768" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"micro_batches": "all"}, "micro_batches='all'. Give 1 or more, or 'auto'"),
        ({"micro_batches": "auto", "cluster": None, "mesh": "a=2"}, "needs a cluster"),
        (
            {
                "micro_batches": "auto",
                "pipeline": autoshard.Pipeline(stages=2, micro_batches=2),
            },
            "micro_batches='auto', but pipeline=",
        ),
    ],
)
def test_what_does_not_go_with_auto_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(autoshard.PlanError, match=said):
        plan(64, **options)


def test_a_planner_and_plans_together_refuse_auto() -> None:
    arguments = PARAMS, type_of(64, WIDTH)
    with pytest.raises(autoshard.PlanError, match="micro_batches='auto' takes several searches"):
        autoshard.Planner(step, *arguments, cluster=CLUSTER, micro_batches="auto")
    with pytest.raises(autoshard.PlanError, match="is not chosen for several programs"):
        autoshard.plan_together(
            [(step, *arguments), (step, *arguments)],
            share="params",
            cluster=CLUSTER,
            micro_batches="auto",
        )


def test_the_whole_sweep_may_choose() -> None:
    arguments = PARAMS, type_of(64, WIDTH)
    found = autoshard.sweep(
        step, *arguments, clusters=[CLUSTER], batch=[64, 384], micro_batches="auto"
    )
    assert [point.fits for point in found.points] == [True, True]


def test_modes_without_a_search_choose_within_the_memory_too() -> None:
    whole = plan(384, mode="data_parallel")
    found = plan(
        384,
        mode="data_parallel",
        memory_limit=whole.peak_bytes - 1,
        micro_batches="auto",
    )
    assert found.batch is not None
    assert found.batch.micro_batches == 2
    assert found.peak_bytes < whole.peak_bytes


def test_parts_are_no_smaller_than_what_pins_cut_them_into() -> None:
    P = jax.sharding.PartitionSpec
    with pytest.raises(autoshard.DoesNotFitError) as raised:
        plan(
            24,
            mesh="a=4",
            in_shardings=(None, P("a")),
            micro_batches="auto",
            memory_limit="20KiB",
        )
    assert " with 6" in str(raised.value)
    assert " with 12" not in str(raised.value)


def test_a_file_is_planned_as_the_function(tmp_path: Path) -> None:
    limit = int(0.3 * plan(384).peak_bytes)
    wanted = plan(384, micro_batches="auto", memory_limit=limit)
    assert wanted.summary is not None
    source, costs = tmp_path / "step.mlir", tmp_path / "costs.json"
    lowered = jax.jit(step, donate_argnums=0).lower(PARAMS, type_of(384, WIDTH))
    source.write_text(lowered.as_text(debug_info=True))
    asked = f"--autoshard-plan=cluster={CLUSTER} micro-batches=auto memory-limit={limit} batch=x"
    planned = tmp_path / "planned.mlir"
    assert opt.main([str(source), asked, f"--plan-json={costs}", "-o", str(planned)]) == 0
    found = json.loads(costs.read_text())
    assert found["step_seconds"] == wanted.step_seconds
    tried = [(it["micro_batches"], it["outcome"]) for it in found["tried_micro_batches"]]
    assert tried == [(it.micro_batches, it.outcome) for it in wanted.summary.tried_micro_batches]
