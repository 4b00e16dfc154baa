"""Experts without a capacity: ``jax.lax.ragged_dot`` is cut by rows, by experts and by features."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal

import autoshard

EXPERTS, ROWS, FEATURES, HIDDEN = 8, 64, 16, 32
P = jax.sharding.PartitionSpec


def experts(weights: Any, x: Any) -> Any:
    """A dropless layer of experts: rows are sorted by expert, and taken back into their order."""
    up, down, router = weights
    scores = jax.nn.softmax(x @ router)
    chosen = jnp.argmax(scores, -1)
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=router.shape[1])
    hidden = jax.nn.relu(jax.lax.ragged_dot(x[order], up, sizes))
    made = jax.lax.ragged_dot(hidden, down, sizes)
    kept = jnp.take_along_axis(scores, chosen[:, None], 1)
    return jnp.zeros_like(made).at[order].set(made) * kept


def step(weights: Any, x: Any) -> Any:
    """Loss and gradients."""
    return jax.value_and_grad(lambda weights: jnp.mean(experts(weights, x) ** 2))(weights)


def arguments() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    shapes = (EXPERTS, FEATURES, HIDDEN), (EXPERTS, HIDDEN, FEATURES), (FEATURES, EXPERTS)
    weights = tuple(random.normal(size=shape).astype(np.float32) / 4 for shape in shapes)
    return weights, random.normal(size=(ROWS, FEATURES)).astype(np.float32)


@pytest.mark.parametrize("cluster", ["cpu:8", "cpu:2x4"])
@pytest.mark.filterwarnings("ignore::autoshard.PlanMismatchWarning")
def test_a_searched_step_equals_the_unsharded_one(partitioner: bool, cluster: str) -> None:
    given = arguments()
    run = autoshard.jit(step, cluster=cluster)
    assert_equal(jax.device_get(run(*given)), jax.device_get(jax.jit(step)(*given)), 1e-5)


CUTS = [
    (P("d"), P(), P(), "rows"),
    (P(), P("d"), P(), "experts"),
    (P(), P(None, None, "d"), P(), "columns"),
    (P(None, "d"), P(None, "d"), P(), "contracted"),
    (P("d"), P("e"), P(), "rows and experts"),
    (P("d", "e"), P(None, "e"), P(), "rows and contracted"),
]


@pytest.mark.parametrize(("x", "weights", "sizes", "name"), CUTS, ids=[it[-1] for it in CUTS])
def test_every_cut_is_right(partitioner: bool, x: Any, weights: Any, sizes: Any, name: str) -> None:
    random = np.random.default_rng(4)
    total = ROWS - 9  # the rows behind are of no expert
    rows = random.integers(-3, 4, (ROWS, FEATURES)).astype(np.float32)
    matrices = random.integers(-3, 4, (EXPERTS, FEATURES, HIDDEN)).astype(np.float32)
    ends = np.sort(random.integers(0, total + 1, EXPERTS - 1))
    counts = np.diff([0, *ends, total]).astype(np.int32)

    def both(rows: Any, matrices: Any, counts: Any) -> Any:
        def loss(rows: Any, matrices: Any) -> Any:
            made = jax.lax.ragged_dot(rows, matrices, counts)
            return jnp.sum(made * jnp.arange(HIDDEN) % 5), made

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(rows, matrices)

    run = autoshard.jit(
        both, mesh="d=4,e=2", mode="auto", in_shardings=(x, weights, sizes), cluster="cpu:8"
    )
    expected = jax.device_get(jax.jit(both)(rows, matrices, counts))
    assert_equal(jax.device_get(run(rows, matrices, counts)), expected, 0)
    assert "ragged_dot" in {op.name for op in run.plan(rows, matrices, counts).ops}


def test_experts_are_cut_on_machines_that_have_the_op() -> None:
    def struct(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    weights = struct(64, 4096, 1024), struct(64, 1024, 4096), struct(4096, 64)
    for cluster, peak in (("v5p:2x2x2", 459e12), ("h100:8", 989e12)):
        plan = autoshard.plan(step, weights, struct(65536, 4096), cluster=cluster)
        calls = [op for op in plan.ops if op.name == "ragged_dot"]
        assert len(calls) == 5
        assert all(op.strategy != "[{}, {}], [{}, {}, {}], [{}], [{}] -> [{}, {}]" for op in calls)
        at_peak = 5 * 2 * 65536 * 4096 * 1024 / 8 / peak
        assert at_peak < plan.compute_seconds < 8 * at_peak
        text = str(plan.exported("autoshard-export-shardy"))
        assert text.count("chlo.ragged_dot") >= 5
