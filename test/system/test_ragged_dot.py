"""Experts without a capacity: ``jax.lax.ragged_dot`` is cut by rows, by experts and by features."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal

import autoshard
from autoshard.ir import local_functions, mlir, new_context, parse_bytes
from autoshard.ir.compile import compile_module
from autoshard.passes.pipeline import run_passes

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


@pytest.mark.parametrize("form", ["shardy", "gspmd"])
@pytest.mark.parametrize("lowered_for", ["cuda", "tpu"])
def test_experts_in_files_are_planned_and_run_as_those_of_functions(
    form: str, lowered_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(6)
    rows = random.integers(-3, 4, (8 * 512, FEATURES)).astype(np.float32)
    matrices = random.integers(-3, 4, (EXPERTS, FEATURES, HIDDEN)).astype(np.float32)
    counts = np.array([0, 700, 1, 0, 2000, 299, 512, 500], np.int32)

    def both(rows: Any, matrices: Any, counts: Any) -> Any:
        def loss(rows: Any, matrices: Any) -> Any:
            made = jax.lax.ragged_dot(rows, matrices, counts)
            return jnp.sum(made * (jnp.arange(HIDDEN) % 5)), made

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(rows, matrices)

    given = rows, matrices, counts
    lowered = jax.jit(both).trace(*given).lower(lowering_platforms=(lowered_for,))
    text = lowered.as_text(debug_info=True)
    assert text.count('"chlo.ragged_dot"') == 3
    module = parse_bytes(text.encode(), new_context())
    run_passes(module, ["autoshard-recursive-programming{cluster=cpu:8}"])
    assert str(module).count('stablehlo.composite "autoshard.kernel"') == 3
    monkeypatch.setattr(local_functions, "_functions", {})  # as in another process
    run_passes(module, [f"autoshard-export-{form}"])
    assert "chlo.ragged_dot" not in str(module)
    found = compile_module(module, use_shardy=form == "shardy").run(*given)
    assert_equal(found, jax.tree.leaves(jax.device_get(jax.jit(both)(*given))), 0)


@pytest.mark.filterwarnings("ignore:1 ops have no factor rule:autoshard.AutoshardWarning")
def test_experts_in_files_with_a_strategy_of_their_own_stay() -> None:
    def struct(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    sizes = jax.ShapeDtypeStruct((8,), jnp.int32)
    lowered = jax.jit(jax.lax.ragged_dot).trace(struct(4096, 64), struct(8, 64, 32), sizes)
    text = lowered.lower(lowering_platforms=("cuda",)).as_text("stablehlo")
    strategy = '{autoshard.strategy = "[{}, {}], [{}, {}, {}], [{}] -> [{}, {}]"} : (tensor'
    module = parse_bytes(text.replace(" : (tensor", " " + strategy).encode(), new_context())
    module.operation.attributes["autoshard.mesh"] = mlir.StringAttr.get("gpu=8", module.context)
    run_passes(module, ["autoshard-recursive-programming{cluster=h100:8}"])
    assert "chlo.ragged_dot" in str(module)


def test_loops_inside_of_kernels_cost_what_their_trips_move_and_launch() -> None:
    def product(x: Any, w: Any) -> Any:
        return x @ w, -x @ w

    def by_parts(count: int) -> Any:
        def run(x: Any, w: Any) -> Any:
            size = x.shape[0] // count

            def put(number: Any, made: Any) -> Any:
                part = jax.lax.dynamic_slice_in_dim(x, number * size, size)
                return jax.lax.dynamic_update_slice_in_dim(made, part @ w, number * size, 0)

            made = jax.lax.fori_loop(0, count, put, jnp.zeros((x.shape[0], w.shape[1]), x.dtype))
            return made, -made

        return run

    def seconds(fn: Any) -> float:
        kernel = autoshard.kernel(fn, "r i, i o -> r o, r o", whole=("i",))
        x, w = (jax.ShapeDtypeStruct((rows, 1024), jnp.float32) for rows in (4096, 1024))
        return autoshard.plan(kernel, x, w, cluster="h100:1").compute_seconds

    at_once, few, many = seconds(product), seconds(by_parts(8)), seconds(by_parts(512))
    # Each trip reads the weights again and launches a slice, a product and an update.
    launch = 7e-6
    assert at_once + 3 * 8 * launch < few < many
    assert many > 512 * 3 * launch + 512 * 4 * 1024**2 / 3.35e12


def test_experts_are_cut_on_machines_that_have_the_op() -> None:
    def struct(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    weights = struct(64, 4096, 1024), struct(64, 1024, 4096), struct(4096, 64)
    for cluster, peak in (("v5p:2x2x2", 459e12), ("h100:8", 989e12)):
        plan = autoshard.plan(step, weights, struct(65536, 4096), cluster=cluster)
        calls = [op for op in plan.ops if op.name == "ragged_dot"]
        assert len(calls) == 5
        assert all(op.strategy != "[{}, {}], [{}, {}, {}], [{}], [{}] -> [{}, {}]" for op in calls)
        assert plan.compute_seconds > 5 * 2 * 65536 * 4096 * 1024 / 8 / peak
        text = str(plan.exported("autoshard-export-shardy"))
        # GPUs have no kernel for it, TPUs have none for gradients of weights.
        assert ("chlo.ragged_dot" in text) == (cluster == "v5p:2x2x2")
        assert "tensor<64x65536x" not in text
        assert "tensor<64x8192x" not in text


@pytest.mark.parametrize("sizes", [(0, 700, 0, 1, 299), (1000, 0, 0, 0, 0), (129, 128, 127, 3, 0)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, jnp.bfloat16])
def test_parts_of_experts_rows_are_multiplied_as_the_whole(sizes: Any, dtype: Any) -> None:
    """More rows than one part has, experts without rows, rows without an expert."""
    random = np.random.default_rng(5)
    rows = jnp.asarray(random.integers(-3, 4, (1000, 4)), dtype)
    matrices = jnp.asarray(random.integers(-3, 4, (5, 4, 6)), dtype)
    across = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[],
    )

    def both(rows: Any, matrices: Any, sizes: Any) -> Any:
        made = jax.lax.ragged_dot(rows, matrices, sizes)
        return made, jax.lax.ragged_dot_general(rows, made, sizes, across)

    given = rows, matrices, jnp.asarray(sizes, jnp.int32)
    found = autoshard.jit(both, cluster="cpu:1")(*given)
    assert_equal(jax.device_get(found), jax.device_get(jax.jit(both)(*given)), 0)
