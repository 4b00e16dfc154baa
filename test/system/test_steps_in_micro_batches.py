"""Steps over micro-batches on 8 virtual devices: bit-equal to the whole batch on one."""

import json
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

BATCH, WIDTH = 32, 16
P = jax.sharding.PartitionSpec


def whole_numbers(shape, seed):
    """Small ones as floats: their sums are exact in any order."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def step(params, batch):
    """One step of a network whose layers a scan runs; its gradient is exact on whole numbers."""

    def loss(params):
        hidden = batch["x"] @ params["in"]
        hidden, _ = jax.lax.scan(
            lambda h, w: (h + jnp.maximum(h @ w, 0), None), hidden, params["layers"]
        )
        errors = jnp.sum(hidden @ params["in"].T - batch["x"], 1)
        return jnp.sum(errors * batch["mask"]) / jnp.sum(batch["mask"])

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - g, params, gradients), value


@cache
def arguments(batch=BATCH):
    params = {
        "in": whole_numbers((WIDTH, WIDTH), 0),
        "layers": whole_numbers((2, WIDTH, WIDTH), 1),
    }
    mask = np.repeat(np.array([1, 0], np.float32), batch // 2)
    return params, {"x": whole_numbers((batch, WIDTH), 2), "mask": mask}


@cache
def wanted(batch=BATCH):
    return jax.tree.leaves(jax.jit(step)(*arguments(batch)))


PAIRS = [
    ("auto", 4, None, "marks"),
    ("auto", 2, 3, "auto"),
    ("data_parallel", 4, 1, "none"),
]


@pytest.mark.parametrize(("mode", "count", "level", "recompute"), PAIRS)
def test_a_step_in_micro_batches_is_bit_equal(mode, count, level, recompute):
    jitted = autoshard.jit(
        step,
        cluster="cpu:8",
        mode=mode,
        micro_batches=count,
        optimizer_parallel=level,
        recompute=recompute,
        **({"mesh": "dp=8"} if mode == "data_parallel" else {}),
    )
    for ours, theirs in zip(jax.tree.leaves(jitted(*arguments())), wanted(), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)


SLOW_NETWORK = str(Path(__file__).parent / "slow_network.toml")
"""On which reductions are worth memory."""


def tied_step(params, batch):
    """One step whose embedding is looked up, and is the output matrix, too; no scan."""

    def loss(params):
        hidden = params["embedding"][batch["tokens"]] + params["bias"]
        hidden = hidden + jnp.maximum(hidden @ params["layer"], 0)
        errors = jnp.sum(hidden @ params["embedding"].T, (1, 2))
        return jnp.sum(errors * batch["mask"]) / jnp.sum(batch["mask"])

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - g, params, gradients), value


@cache
def tied_arguments(batch=512):
    params = {
        "embedding": whole_numbers((24, WIDTH), 0),
        "bias": whole_numbers((WIDTH,), 1),
        "layer": whole_numbers((WIDTH, WIDTH), 2),
    }
    mask = np.repeat(np.array([1, 0], np.float32), batch // 2)
    tokens = np.random.default_rng(3).integers(0, 24, (batch, 4)).astype(np.int32)
    return params, {"tokens": tokens, "mask": mask}


STEPS = {"scan": (step, arguments), "tied": (tied_step, tied_arguments)}
CUTS = [
    ("dp=8", None, 4, ("dp",)),
    ("dp=8", 2, 2, ("dp",)),
    ("dp=4,tp=2", 3, 4, ("dp", "tp")),
]


def of_experts(weights, batch):
    """Tokens take two experts each, named by numbers of rows that a scan over layers carries."""
    rows, columns = jnp.arange(batch.shape[0])[:, None], jnp.arange(batch.shape[1])[None]

    def layer(hidden, own):
        router, expert = own
        scores = hidden @ router
        top, at = jax.lax.top_k(scores, 2)
        places = rows[..., None], columns[..., None], at
        share = jnp.zeros_like(scores).at[places].add(top)
        back = share[places].sum(-1, keepdims=True)
        return jnp.sign(hidden + (share @ expert) * back), None

    def loss(weights):
        return (jax.lax.scan(layer, batch, weights)[0] * batch).sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda p, g: p - g, weights, gradients), value


def test_experts_whose_tokens_are_named_by_their_places_are_bit_equal():
    weights = whole_numbers((2, WIDTH, 4), 0), whole_numbers((2, 4, WIDTH), 1)
    batch = whole_numbers((BATCH, 3, WIDTH), 2)
    run = autoshard.jit(of_experts, mesh="d=8", mode="data_parallel", micro_batches=4)
    found, right = run(weights, batch), jax.jit(of_experts)(weights, batch)
    jax.tree.map(np.testing.assert_array_equal, found, right)


def test_a_planner_reduces_gradients_once_in_each_of_its_plans():
    given = tied_arguments(8192)
    cut = {"tokens": P("dp"), "mask": P("dp")}
    planner = autoshard.Planner(
        tied_step, *given, cluster=SLOW_NETWORK, mesh="dp=8", micro_batches=4, batch_argnums=1
    )
    plan = planner.replan(in_shardings=(None, cut))
    once = plan.summary.reduced_once
    assert once is not None
    assert once.axes == ("dp",)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("mesh", "level", "count", "axes"), CUTS)
def test_gradients_that_are_reduced_once_are_bit_equal(name, mesh, level, count, axes):
    function, its_arguments = STEPS[name]
    jitted = autoshard.jit(
        function,
        cluster=SLOW_NETWORK,
        mode="data_parallel",
        mesh=mesh,
        micro_batches=count,
        optimizer_parallel=level,
    )
    given = its_arguments(512)
    plan = jitted.plan(*given)
    once = plan.summary.reduced_once
    assert once is not None
    assert once.count == {"scan": 3, "tied": 4}[name]
    assert once.axes == axes
    assert once.bytes_once < once.bytes_in_trips
    assert f"{once.count} sums of loops are reduced once" in str(plan)
    for ours, theirs in zip(
        jax.tree.leaves(jitted(*given)), jax.tree.leaves(jax.jit(function)(*given)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(ours), theirs)


@pytest.mark.parametrize(
    ("mode", "recompute", "share"),
    [("auto", "marks", 0.2), ("auto", "auto", 0.2), ("data_parallel", "auto", 0.5)],
)
def test_a_step_in_the_number_that_fits_is_bit_equal(mode, recompute, share):
    batch = arguments(16 * BATCH)
    free = autoshard.plan(step, *batch, cluster="cpu:8", mode=mode)
    limit = share * free.peak_bytes
    jitted = autoshard.jit(
        step,
        cluster="cpu:8",
        mode=mode,
        micro_batches="auto",
        recompute=recompute,
        memory_limit=limit,
    )
    plan = jitted.plan(*batch)
    assert plan.batch.micro_batches > 1
    assert plan.peak_bytes <= limit
    for ours, theirs in zip(jax.tree.leaves(jitted(*batch)), wanted(16 * BATCH), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)


@pytest.mark.parametrize("mode", ["auto", "semi_auto"])
def test_a_step_of_floats_is_equal_but_for_the_order_of_sums(mode):
    params, batch = jax.tree.map(
        lambda a: np.random.default_rng(a.size).normal(size=a.shape).astype(np.float32) / 4,
        arguments(),
    )
    jitted = autoshard.jit(
        step,
        cluster="cpu:8",
        mode=mode,
        mesh="dp=4,tp=2",
        in_shardings=({"in": P(None, "tp"), "layers": None}, {"x": P("dp"), "mask": P()}),
        micro_batches=4,
    )
    found = jax.device_get(jitted(params, batch))
    for ours, theirs in zip(
        jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(params, batch)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6 * np.max(np.abs(theirs)))


def test_a_plan_of_micro_batches_is_kept_in_a_file(tmp_path):
    plan = autoshard.plan(step, *arguments(), cluster="cpu:8", mesh="dp=8", micro_batches=4)
    plan.save(tmp_path / "plan.json")
    kept = autoshard.jit(step, plan=tmp_path / "plan.json")
    assert kept.plan(*arguments()).batch.micro_batches == 4
    for ours, theirs in zip(jax.tree.leaves(kept(*arguments())), wanted(), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_a_plan_says_how_many_micro_batches_there_are():
    plan = autoshard.plan(step, *arguments(), cluster="cpu:8", mesh="dp=8", micro_batches=2)
    assert plan.batch is not None
    assert (plan.batch.micro_batches, plan.batch.gradient_accumulation) == (2, 2)
    assert "in 2 rounds of 16 each" in str(plan)
    assert json.loads(plan.summary.to_json())["batch"]["micro_batches"] == 2
    assert autoshard.plan(step, *arguments(), cluster="cpu:8").batch.micro_batches == 1


def test_micro_batches_need_to_know_the_batch():
    with pytest.raises(autoshard.PlanError, match=r"nothing tells the batch.*batch_argnums=1"):
        autoshard.plan(
            lambda w, x: jnp.sum(x @ w),
            *(np.ones((4, 4)), np.ones((8, 4))),
            mesh="dp=2",
            cluster="cpu:2",
            micro_batches=2,
        )


@pytest.mark.parametrize("wrong", [{"micro_batches": 0}, {"per_micro_batch": ("model.py:4",)}])
def test_options_that_say_nothing_are_refused(wrong):
    with pytest.raises(autoshard.PlanError, match="micro_batch"):
        autoshard.jit(step, **wrong)
