"""Grouped matmuls of megablox, in interpret mode: cut by rows, by experts and by features."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import autoshard

GMM: Any = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.ops").gmm
EXPERTS, ROWS, FEATURES, HIDDEN = 8, 512, 32, 64
P = jax.sharding.PartitionSpec
CUTS = [
    (P(), P("d"), "rows"),
    (P("d"), P(), "experts"),
    (P(None, None, "d"), P(), "columns"),
    (P(None, "d"), P(None, "d"), "contracted"),
    (P("e"), P("d"), "rows and experts"),
]


@pytest.mark.parametrize("is_transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize(("weights", "x", "name"), CUTS, ids=[it[-1] for it in CUTS])
def test_every_cut_is_right(
    partitioner: bool, weights: Any, x: Any, name: str, is_transposed: bool
) -> None:
    random = np.random.default_rng(7)
    shape = (EXPERTS, FEATURES, HIDDEN)
    if is_transposed:
        weights = P(*weights[:1], *reversed((*weights[1:], None, None)[:2]))
        shape = (EXPERTS, HIDDEN, FEATURES)
    matrices = random.integers(-3, 4, shape).astype(np.float32)
    rows = random.integers(-3, 4, (ROWS, FEATURES)).astype(np.float32)
    sizes = np.array([0, 100, 28, 200, 0, 0, 184, 0], np.int32)

    def both(matrices: Any, rows: Any, sizes: Any) -> Any:
        def loss(matrices: Any, rows: Any) -> Any:
            tiling = (64, 32, 32)
            made = GMM(rows, matrices, sizes, jnp.float32, tiling, None, None, is_transposed, True)
            return jnp.sum(made * (jnp.arange(HIDDEN) % 5)), made

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(matrices, rows)

    run = autoshard.jit(
        both, mesh="d=4,e=2", mode="auto", in_shardings=(weights, x, P()), cluster="cpu:8"
    )
    expected = jax.device_get(jax.jit(both)(matrices, rows, sizes))
    assert_equal(jax.device_get(run(matrices, rows, sizes)), expected, 0)
    ops = {op.name: op.strategy or "" for op in run.plan(matrices, rows, sizes).ops}
    assert "d}" in ops["gmm"]
    assert "}" in ops["tgmm"]


def struct(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _step(tiling: tuple[int, int, int]) -> Any:
    def step(matrices: Any, rows: Any, sizes: Any) -> Any:
        def loss(matrices: Any) -> Any:
            made = GMM(rows, matrices, sizes, jnp.bfloat16, tiling)
            return jnp.mean(made.astype(jnp.float32) ** 2)

        return jax.grad(loss)(matrices)

    return step


def test_kernels_for_tpus_are_cut_and_cost_what_their_blocks_move() -> None:
    given = struct(16, 1024, 4096), struct(16384, 1024), struct(16, dtype=jnp.int32)
    seconds: list[float] = []
    for tile in (128, 512):
        plan = autoshard.plan(_step((tile,) * 3), *given, cluster="v5e:2x2")
        strategies = [op.strategy or "" for op in plan.ops if op.name in ("gmm", "tgmm")]
        assert len(strategies) == 2
        assert all("{x" in it or "{y" in it for it in strategies)
        seconds.append(plan.compute_seconds)
    least = 2 * 2 * 16384 * 1024 * 4096 / 4 / 197e12
    # Of blocks of 128 each operand is read 8 to 128 times: memory limits them.
    assert least < seconds[1] < 3 * least
    assert 2 * seconds[1] < seconds[0]


def test_a_kernel_of_unknown_grid_costs_what_its_author_says() -> None:
    def double(count: Any, x: Any) -> Any:
        def kernel(x: Any, y: Any) -> None:
            y[...] = 2 * x[...]

        spec = pl.BlockSpec((128, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel,
            out_shape=struct(*x.shape),
            grid_spec=pltpu.PrefetchScalarGridSpec(0, (count,), [spec], spec),
            cost_estimate=pl.CostEstimate(flops=10**12, bytes_accessed=10**9, transcendentals=0),
        )(x)

    given = struct(dtype=jnp.int32), struct(1024, 128)
    with pytest.warns(autoshard.AutoshardWarning, match="its grid is known only when it runs"):
        plan = autoshard.plan(double, *given, cluster="v5e:2x2")
    assert plan.compute_seconds == pytest.approx(10**12 / 197e12, rel=0.3)
