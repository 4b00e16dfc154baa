"""Grouped matmuls of megablox, in interpret mode: cut by rows, by experts and by features."""

from __future__ import annotations

import importlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxlib.mlir.passmanager import PassManager

import autoshard
from autoshard.ir import local_functions, new_context, parse_bytes
from autoshard.passes.pipeline import run_passes
from autoshard.planned.given_plan import summary_on

GMM: Any = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.ops").gmm
DOT_GENERAL: Any = jax.lax.dot_general
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


@pytest.mark.parametrize("form", ["shardy", "gspmd"])
def test_kernels_in_files_are_cut_as_those_of_functions(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = struct(16, 1024, 4096), struct(16384, 1024), struct(16, dtype=jnp.int32)
    text = lowered_for_tpus(_step((512,) * 3), *given)
    module = parse_bytes(text.encode(), new_context())
    run_passes(module, ["autoshard-recursive-programming{cluster=v5e:2x2}"])
    found = summary_on(module)
    assert found is not None
    plan = autoshard.plan(_step((512,) * 3), *given, cluster="v5e:2x2")
    assert found.step_seconds == pytest.approx(plan.step_seconds, rel=0.02)
    monkeypatch.setattr(local_functions, "_functions", {})  # as in another process
    run_passes(module, [f"autoshard-export-{form}"])
    with module.context:
        PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
    calls = re.findall(r"custom_call @tpu_custom_call\(.*-> (tensor<[^>]*>)", str(module))
    assert len(calls) == 2  # of one device's part each, and none of the whole
    assert not {"tensor<16384x4096xbf16>", "tensor<16x1024x4096xbf16>"} & set(calls)


@pytest.mark.parametrize(
    ("tile", "changed"),
    [(1024, lambda dot: 2 * dot), (256, lambda dot: dot + 1.0)],
    ids=["scaled", "shifted"],
)
def test_a_kernel_that_does_more_than_multiply_stays_whole(
    tile: int, changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = struct(16, 1024, 4096), struct(16384, 1024), struct(16, dtype=jnp.int32)
    monkeypatch.setattr(jax.lax, "dot_general", lambda *a, **k: changed(DOT_GENERAL(*a, **k)))
    # No other test has such blocks: JAX keeps what it traced.
    text = lowered_for_tpus(_step((tile,) * 3), *given)
    monkeypatch.undo()
    module = parse_bytes(text.encode(), new_context())
    with pytest.warns(autoshard.AutoshardWarning, match="1 kernels run whole .* known only when"):
        run_passes(module, ["autoshard-recursive-programming{cluster=v5e:2x2}"])


def test_kernels_for_tpus_are_cut_by_propagation_too() -> None:
    given = struct(16, 1024, 4096), struct(16384, 1024), struct(16, dtype=jnp.int32)
    plan = autoshard.plan(
        _step((512,) * 3),
        *given,
        mesh="d=4",
        mode="semi_auto",
        cluster="v5e:2x2",
        in_shardings=(P(None, None, "d"), P(), P()),
    )
    ops = {op.name: op.strategy or "" for op in plan.ops}
    assert "{d}" in ops["gmm"]
    assert "{d}" in ops["tgmm"]


def test_a_kernel_in_a_function_of_a_shard_map_stays_as_it_is() -> None:
    given = struct(16, 1024, 4096), struct(16384, 1024), struct(16, dtype=jnp.int32)

    def mapped(matrices: Any, rows: Any, sizes: Any) -> Any:
        body = jax.shard_map(
            jax.jit(_step((512,) * 3)),
            in_specs=(P(None, None, "d"), P(), P()),
            out_specs=P(None, None, "d"),
            check_vma=False,
        )
        return body(matrices, rows, sizes)

    plan = autoshard.plan(mapped, *given, mesh="d=4", mode="auto", cluster="v5e:2x2")
    planned = parse_bytes(plan.bytecode, new_context())
    assert "autoshard.kernel" not in str(planned)
    whole = 2 * 2 * 16384 * 1024 * 4096 / 197e12
    assert whole / 4 < plan.compute_seconds < whole


def lowered_for_tpus(fn: Any, *given: Any) -> str:
    device = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(fn).trace(*given)
        return traced.lower(lowering_platforms=("tpu",)).as_text(debug_info=True)


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
