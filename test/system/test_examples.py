"""The examples run, and the ops that they leave unconfigured get the expected strategies.

What is expected is what the guide configures by hand for the same ops without propagation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from equivalence import assert_equal, searched, shardy, unsharded

import autoshard
from autoshard.verify.collective import total_bytes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import byte_transformer  # noqa: E402
import core_attention  # noqa: E402
import digits  # noqa: E402
import flash_attention  # noqa: E402
import llama  # noqa: E402
import row_parallel_linear  # noqa: E402
import two_tower  # noqa: E402


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
    expected, alone, _ = two_tower.train("replicated", 2, sharded=False)
    held: dict[str, int] = {}
    sent: dict[str, float] = {}
    ways: tuple[two_tower.How, ...] = ("replicated", "rows", "uneven")
    for how in ways:
        losses, parameters, plan = two_tower.train(how, 2)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        assert_equal(parameters, jax.device_get(alone), 1e-4)
        held[how] = two_tower.held_bytes(plan)
        sent[how] = total_bytes(plan.collectives)
    # 15,600 rows of 32 floats, and the two moments of Adam
    assert held == {
        "replicated": 3 * 15_600 * 32 * 4,
        "rows": 3 * 15_600 // 4 * 32 * 4,
        "uneven": 3 * 9_000 * 32 * 4,
    }
    assert 4 * sent["uneven"] < sent["rows"] < sent["replicated"]


def test_byte_transformer_trains_as_on_one_device() -> None:
    config = byte_transformer.Config(features=32, layers=1, tokens=16, batch=4)
    text = np.arange(1000, dtype=np.uint8)
    start = byte_transformer.training(config)
    step = autoshard.jit(start.step, mesh=byte_transformer.MESH)
    (batch,) = byte_transformer.batches(text, config, 1)
    args = (start.parameters, start.state, batch)
    shardings = {value.name: str(value.sharding) for value in step.plan(*args).arguments}
    block = "parameters['blocks'][0]"
    assert shardings["parameters['embedding']['embedding'].value"] == "[{tp}, {}]"
    assert shardings[f"{block}['widen']['kernel'].value"] == "[{}, {tp}]"
    assert shardings[f"{block}['widen']['bias'].value"] == "[{tp}]"
    assert_equal(jax.device_get(step(*args)[0]), unsharded(start.step, args)[0], 1e-5)


def test_byte_transformer_without_a_mark_trains_as_on_one_device() -> None:
    config = byte_transformer.Config(features=32, layers=1, tokens=16, batch=8)
    text = np.arange(1000, dtype=np.uint8)
    start = byte_transformer.training(config, byte_transformer.UNMARKED)
    (batch,) = byte_transformer.batches(text, config, 1)
    args = (start.parameters, start.state, batch)
    found, plan = searched(start.step, args), autoshard.plan(start.step, *args, cluster="cpu:8")
    assert plan.mode == "auto"
    assert plan.summary is not None
    assert plan.summary.collectives
    assert_equal(found[0], unsharded(start.step, args)[0], 1e-5)
