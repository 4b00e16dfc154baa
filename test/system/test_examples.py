"""The examples run, and the ops that they leave unconfigured get the expected strategies.

What is expected is what the guide configures by hand for the same ops without propagation.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from equivalence import assert_equal, shardy, unsharded

import autoshard
from autoshard.planned.collective import total_bytes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import byte_transformer  # noqa: E402
import core_attention  # noqa: E402
import digits  # noqa: E402
import flash_attention  # noqa: E402
import language_model  # noqa: E402
import llama  # noqa: E402
import pipeline  # noqa: E402
import row_parallel_linear  # noqa: E402
import two_tower  # noqa: E402

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install autoshard[tpu]"
)


def strategies(plan: autoshard.Plan, op: str, shape: str) -> set[str | None]:
    """Strategies of all ops called ``op`` that give one tensor of ``shape``, such as ``4x16``."""
    return {
        found.strategy
        for found in plan.ops
        if found.name == op and re.match(rf"tensor<{shape}x[a-z]", found.types[0])
    }


def line_of(module: ModuleType, text: str) -> int:
    """Number of the only line of a module's source that holds ``text``."""
    lines = Path(str(module.__file__)).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return number


def check_run(fn: Callable[..., Any], args: tuple[Any, ...], mesh: str, **pins: Any) -> None:
    found = jax.device_get(autoshard.jit(fn, mesh=mesh, **pins)(*args))
    assert_equal(found, unsharded(fn, args), 1e-5)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_transformer_in_stages_has_the_losses_of_the_unsplit_step(stacked: bool) -> None:
    data, layers = list(pipeline.batches(3)), 2
    expected = pipeline.losses_of(jax.jit(pipeline.train_step), data, layers, stacked=stacked)
    step = autoshard.jit(
        pipeline.train_step,
        cluster=pipeline.CLUSTER,
        mesh="data=2,model=2",
        pipeline=autoshard.Pipeline(stages=2, micro_batches=4),
        donate_argnums=(0, 1),
    )
    losses = pipeline.losses_of(step, data, layers, stacked=stacked)
    np.testing.assert_allclose(losses, expected, rtol=pipeline.TOLERANCE)
    params = pipeline.parameters(layers, stacked=stacked)
    plan = step.plan(params, pipeline.OPTIMIZER.init(params), data[0])
    assert plan.pipeline is not None
    chart = plan.pipeline.gantt(110).splitlines()[1]
    assert chart.split("keeps")[0].rstrip() in str(plan)
    assert plan.pipeline.argument_stages[0] == ((0, 1) if stacked else (0,))
    assert plan.peak_bytes == max(plan.pipeline.peak_bytes)


def test_bias_of_row_parallel_linear_follows_the_matmul() -> None:
    fn, args = row_parallel_linear.row_parallel_linear, row_parallel_linear.arguments()
    plan = autoshard.plan(fn, *args, mesh=row_parallel_linear.MESH)
    # add.shard(((dp * cp, tp), (tp,)))
    cut = "[{dp, cp}, {tp}]"
    assert strategies(plan, "add", "64x16") == {f"{cut}, {cut} -> {cut}"}
    assert str(plan.arguments[2].sharding) == "[{tp}]"
    check_run(fn, args, row_parallel_linear.MESH)


@pytest.mark.parametrize("op", ["multiply", "select", "exponential", "divide", "subtract"])
def test_ops_between_the_matmuls_of_core_attention_follow(op: str) -> None:
    fn, args = core_attention.core_attention, core_attention.arguments()
    plan = autoshard.plan(fn, *args, mesh=core_attention.MESH)
    # mul.shard(((dp, tp, cp, 1), ())), dropout.shard(((dp, tp, cp, 1),))
    cut = "[{dp}, {tp}, {cp}, {}]"
    found = strategies(plan, op, "4x4x16x16")
    assert found
    assert {side for text in found for side in re.findall(r"\[.*?\](?=,|$| )", text)} == {cut}


def test_core_attention_equals_one_device() -> None:
    check_run(core_attention.core_attention, core_attention.arguments(), core_attention.MESH)


def test_mask_of_flash_attention_follows_the_fused_op() -> None:
    fn, args = flash_attention.alibi_attention, flash_attention.arguments()
    plan = autoshard.plan(fn, *args, mesh=flash_attention.MESH)
    # alibi_rescale_mul.shard(((dp, mp, cp, 1), (1,)))
    cut = "[{dp}, {mp}, {cp}, {}]"
    (multiply,) = (op for op in plan.ops if op.name == "multiply" and op.strategy)
    assert multiply.strategy == f"{cut}, {cut} -> {cut}"
    assert str(plan.arguments[4].sharding) == "[{}]"
    (fused,) = (op for op in plan.ops if op.name == "composite")
    keys = "[{dp}, {mp}, {}, {}]"
    assert fused.strategy == f"{cut}, {keys}, {keys}, {cut} -> {cut}"
    check_run(fn, args, flash_attention.MESH)


def test_ops_around_llama_follow_its_matmuls() -> None:
    config = llama.Config()
    fn, args = partial(llama.causal_lm_loss, config=config), llama.arguments(config)
    plan = autoshard.plan(fn, *args, mesh=llama.MESH, in_shardings=llama.PINS)
    # slice.shard(((dp, 1),)), not_equal.shard(((dp, 1), ())), mul.shard(((dp, 1), (dp, 1)))
    cut = "[{dp}, {}]"
    assert strategies(plan, "slice", "4x16") == {f"{cut} -> {cut}"}
    assert strategies(plan, "compare", "4x16") == {f"{cut}, {cut} -> {cut}"}
    place = f"{llama.__file__}:{line_of(llama, 'jnp.not_equal(')}:"
    (mul,) = (op for op in plan.ops if op.name == "multiply" and place in str(op.location))
    assert mul.strategy == f"{cut}, {cut} -> {cut}"
    check_run(fn, args, llama.MESH, in_shardings=llama.PINS)


@pytest.mark.parametrize("active", [True, False], ids=["shardy", "gspmd"])
def test_digits_are_learnt_on_two_layouts_as_on_one_device(active: bool) -> None:
    with shardy(active):
        step = autoshard.jit(digits.train_step)
        found, parameters = digits.train(step, epochs=2)
    plan = step.plan(digits.initial_parameters(), *next(digits.batches(0)))
    planned = " ".join(map(str, strategies(plan, "dot_general", "32x512")))
    assert "[{mp}, {sp, dp}], [{sp, dp}, {}]" in planned
    assert "[{}, {dp, sp, mp}], [{dp, sp, mp}, {}]" in planned
    losses = np.array(found).ravel()
    assert losses[0] == pytest.approx(np.log(10), abs=0.01)
    assert losses[:100].min() < digits.TARGET
    expected, alone = digits.train(jax.jit(digits.train_step), epochs=2)
    np.testing.assert_allclose(losses, np.array(expected).ravel(), rtol=1e-5)
    assert_equal(jax.device_get(parameters), jax.device_get(alone), 1e-4)


def test_the_towers_learn_the_same_however_their_table_is_held() -> None:
    expected, alone = two_tower.train("replicated", 2, sharded=False)
    held: dict[str, two_tower.Held] = {}
    sent: dict[str, float] = {}
    ways: tuple[two_tower.How, ...] = ("replicated", "rows", "uneven", "host")
    for how in ways:
        losses, parameters = two_tower.train(how, 2)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        assert_equal(parameters, jax.device_get(alone), 1e-4)
        plan = two_tower.plan_of(how)
        held[how] = two_tower.held_bytes(plan)
        sent[how] = total_bytes(plan.collectives)
    # 15,600 rows of 32 floats, and the two moments of Adam
    row = 3 * 32 * 4
    assert held == {
        "replicated": two_tower.Held(15_600 * row, 0),
        "rows": two_tower.Held(15_600 * row // 4, 0),
        "uneven": two_tower.Held(9_000 * row, 0),
        "host": two_tower.Held(0, 15_600 * row // 8),
    }
    assert 4 * sent["uneven"] < sent["rows"] < sent["replicated"]


@needs_libtpu
def test_tpu_compiler_keeps_the_table_of_the_towers_on_the_host() -> None:
    plan = two_tower.plan_of("host", two_tower.COMPILED_FOR)
    program = plan.verify().program
    held = two_tower.held_bytes(plan)
    # libtpu takes whole KiB of the host for each of the three arrays.
    assert 0 <= (program.host_argument_bytes or 0) - held.on_host < 3 * 1024
    assert (program.argument_bytes or 0) < held.on_host


def test_a_language_model_trains_the_same_with_each_memory_technique() -> None:
    config = language_model.SMALL
    expected = language_model.train(jax.jit(language_model.train_step(config)), config, 3)
    found = {way.name: language_model.trained(way, config, 3) for way in language_model.WAYS}
    for _, losses in found.values():
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
    peaks = {name: plan.peak_bytes for name, (plan, _) in found.items()}
    assert peaks["host"] < peaks["recompute"] < peaks["optimizer"] < peaks["data"]
    summaries = {name: plan.summary for name, (plan, _) in found.items()}
    computed_again = {name for name, found in summaries.items() if found and found.recomputed}
    assert computed_again == {"recompute", "host"}
    values = found["host"][0].arguments
    on_host = {value.name for value in values if value.is_on_host}
    assert on_host == {
        value.name for value in values if value.name.startswith("state") and value.shape
    }


def test_the_language_model_that_does_not_fit_says_by_how_much() -> None:
    config = language_model.Config(layers=8)
    ways = {way.name: way for way in language_model.WAYS}
    with pytest.raises(autoshard.DoesNotFitError, match="in mode 'data_parallel' the plan needs"):
        language_model.planned(ways["data"], config, "v5e:4x4", "14GiB")
    with pytest.raises(autoshard.DoesNotFitError, match=r"one device: .*p\['layers'\]"):
        language_model.planned(ways["recompute"], config, "v5e:4x4", "1GiB")
    fits = language_model.planned(ways["optimizer"], config, "v5e:4x4", "14GiB")
    assert fits.peak_bytes < 14 * 2**30


@pytest.mark.parametrize(("most", "found"), [(7, 0), (8, 8), (37, 32), (64, 64)])
def test_the_largest_size_is_found_by_bisection(most: int, found: int) -> None:
    assert language_model.largest(lambda number: number <= most, 8) == found


@pytest.fixture(scope="module")
def byte_step() -> Any:
    """Arguments of one step of a small byte transformer, and what one device makes of them."""
    config = byte_transformer.Config(features=32, layers=1, tokens=16, batch=8)
    start = byte_transformer.training(config, byte_transformer.UNMARKED)
    (batch,) = byte_transformer.batches(np.arange(1000, dtype=np.uint8), config, 1)
    args = (start.parameters, start.state, batch)
    return config, args, unsharded(start.step, args)[0]


def test_byte_transformer_trains_as_on_one_device(byte_step: Any) -> None:
    config, args, expected = byte_step
    step = autoshard.jit(byte_transformer.training(config).step, mesh=byte_transformer.MESH)
    shardings = {value.name: str(value.sharding) for value in step.plan(*args).arguments}
    block = "parameters['blocks'][0]"
    assert shardings["parameters['embedding']['embedding'].value"] == "[{tp}, {}]"
    assert shardings[f"{block}['widen']['kernel'].value"] == "[{}, {tp}]"
    assert shardings[f"{block}['widen']['bias'].value"] == "[{tp}]"
    assert_equal(jax.device_get(step(*args)[0]), expected, 1e-5)


def test_byte_transformer_without_a_mark_trains_as_on_one_device(byte_step: Any) -> None:
    config, args, expected = byte_step
    start = byte_transformer.training(config, byte_transformer.UNMARKED)
    step = autoshard.jit(start.step, cluster="cpu:8")
    plan = step.plan(*args)
    assert plan.mode == "auto"
    assert plan.summary is not None
    assert plan.summary.collectives
    with warnings.catch_warnings():
        # Whether XLA moves as little as planned is not what is asked here.
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        found = jax.device_get(step(*args)[0])
    assert_equal(found, expected, 1e-5)
