"""``enable_alltoall=False``: no all-to-all in the plan, none in the compiled program."""

from __future__ import annotations

import functools
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal, shardy, unsharded

import autoshard
from autoshard.ir.boundary import allow_all_to_all
from autoshard.ir.compile import compile_module
from autoshard.passes.base import Pass
from autoshard.passes.export_gspmd import ExportGspmd
from autoshard.passes.export_shardy import ExportShardy
from autoshard.planned.collective import CollectiveKind
from planned_text import every_matrix_sharding, planned_module

Run = tuple[Any, tuple[Any, ...]]


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def attention() -> Run:
    """Cut by sequence outside, by heads inside: every head needs all positions."""
    layout = autoshard.Layout((8,), ("sp",))
    by_sequence, by_heads = (
        layout("None", "sp", "None", "None"),
        layout("None", "None", "sp", "None"),
    )
    inside = autoshard.shard(
        lambda q, k: jnp.einsum("bshd,bthd->bhst", q, k),
        in_strategy=(by_heads, by_heads),
        out_strategy=(layout("None", "sp", "None", "None"),),
    )
    outside = autoshard.shard(lambda x: x + 1, in_strategy=(by_sequence,))

    def scores(x: Any) -> Any:
        q = outside(x)
        return inside(q, 2 * q)

    return scores, (integers(2, 16, 8, 4),)


def experts() -> Run:
    """Tokens cut by group where they are dispatched, by expert where these work."""
    layout = autoshard.Layout((8,), ("ep",))
    dispatch = autoshard.shard(
        lambda mask, x: jnp.einsum("gsec,gsm->egcm", mask, x),
        in_strategy=(layout("ep", "None", "None", "None"), layout("ep", "None", "None")),
    )
    feed_forward = autoshard.shard(
        lambda x, w: jnp.einsum("egcm,emh->egch", x, w),
        in_strategy=(layout("ep", "None", "None", "None"), layout("ep", "None", "None")),
    )
    combine = autoshard.shard(
        lambda mask, y: jnp.einsum("gsec,egch->gsh", mask, y),
        in_strategy=(layout("ep", "None", "None", "None"), layout("None", "ep", "None", "None")),
    )

    def layer(x: Any, w: Any, mask: Any) -> Any:
        return combine(mask, feed_forward(dispatch(mask, x), w))

    token, expert = np.arange(16) % 8, np.eye(8, dtype=np.float32)
    mask = np.zeros((8, 16, 8, 2), np.float32)
    for slot in range(2):
        mask[:, 8 * slot : 8 * slot + 8, :, slot] = expert[token[:8]]
    return layer, (integers(8, 16, 4), integers(8, 4, 4), mask)


CASES = {"attention": attention, "experts": experts}


def kinds(plan: autoshard.Plan) -> set[CollectiveKind]:
    return {one.kind for one in plan.collectives}


@pytest.mark.parametrize("active", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["semi_auto", "auto"])
def test_the_switch_decides_in_the_plan_and_in_the_program(
    case: str, mode: Any, active: bool
) -> None:
    fn, args = CASES[case]()
    expected = unsharded(fn, args)
    cluster = "cpu:8" if mode == "auto" else None
    for enabled in (True, False):
        step = autoshard.jit(fn, mode=mode, cluster=cluster, enable_alltoall=enabled)
        with shardy(active):
            plan = step.plan(*args)
            assert (CollectiveKind.ALL_TO_ALL in kinds(plan)) == enabled
            text = step.lower(*args).compile().as_text() or ""
            assert ("all-to-all" in text) == enabled
            assert_equal(jax.device_get(step(*args)), expected, 0)
        if plan.summary is not None:
            planned = {one.kind for one in plan.summary.collectives}
            assert ("all-to-all" in planned) == enabled


def test_a_plan_without_all_to_alls_is_slower() -> None:
    fn, _ = attention()
    args = (jax.ShapeDtypeStruct((8, 2048, 64, 64), "float32"),)
    with_it, without = (
        autoshard.plan(fn, *args, cluster="cpu:8", enable_alltoall=enabled)
        for enabled in (True, False)
    )
    assert with_it.communication_seconds < without.communication_seconds
    assert "autoshard.enable_alltoall = false" in without.to_mlir()
    assert "enable_alltoall" not in with_it.to_mlir()


@functools.cache
def neighbouring_shardings() -> list[str]:
    """Shardings of a matrix on the mesh dp=2,tp=4, in a row where every two are neighbours once."""
    row: list[str] = []
    for before, after in permutations(every_matrix_sharding(), 2):
        row += [before, after]
    return row


@pytest.mark.parametrize("form", [ExportShardy, ExportGspmd], ids=["shardy", "gspmd"])
def test_no_reshard_of_a_matrix_is_compiled_to_an_all_to_all(form: type[Pass]) -> None:
    row = neighbouring_shardings()
    lines = [
        "func.func public @main(%v0: tensor<16x8xf32> $([{}, {}]))"
        " -> (tensor<16x8xf32> $([{}, {}])) {"
    ]
    for number, sharding in enumerate(row):
        lines.append(
            f"%v{number + 1} = stablehlo.negate %v{number} $({sharding} -> {sharding})"
            " : tensor<16x8xf32>"
        )
    lines += [f"return %v{len(row)} : tensor<16x8xf32>", "}"]
    module = planned_module("\n".join(lines))
    with module.context:
        allow_all_to_all(module, False)
    form().run(module)
    compiled = compile_module(module, use_shardy=form is ExportShardy)
    assert "all-to-all" not in compiled.hlo_text()
    x = integers(16, 8)
    np.testing.assert_array_equal(compiled.run(x)[0], x if len(row) % 2 == 0 else -x)
