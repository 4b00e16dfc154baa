"""``indivisible``: dims that do not fall into equal parts are refused or padded, not replicated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import assert_equal, shardy, unsharded

import autoshard

P = jax.sharding.PartitionSpec
ROWS = 250
MESH = "d=7"


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


X, W = integers(ROWS, 64), integers(64, 30)
by_rows = autoshard.shard(jnp.matmul, in_strategy=((7, 1), (1, 1)))
layout = autoshard.Layout((7,), ("d",))
by_layout = autoshard.shard(jnp.matmul, in_strategy=(layout("d", "None"), layout("None", "None")))


def uneven(plan: autoshard.Plan) -> list[str]:
    """Ops with a result that is cut in parts of different size."""
    found: list[str] = []
    for op in plan.ops:
        for sharding, text in zip(op.shardings, op.types, strict=True):
            shape = text.removeprefix("tensor<").split("x")[:-1]
            if sharding and any(
                int(size) % pieces for size, pieces in zip(shape, sharding.tile, strict=True)
            ):
                found.append(op.name)
    return found


@pytest.mark.parametrize("matmul", [by_rows, by_layout], ids=["cuts", "layout"])
def test_a_mark_on_an_indivisible_dim_is_refused(matmul: Any) -> None:
    with pytest.raises(autoshard.AutoshardError, match="250 % 7 = 5"):
        autoshard.plan(matmul, X, W, mesh=MESH)


def test_the_error_says_that_it_can_be_padded() -> None:
    with pytest.raises(autoshard.StrategyError, match="Or plan with indivisible='pad'") as raised:
        autoshard.plan(lambda x, w: by_rows(x, w), X, W, mesh=MESH)
    assert __file__ in str(raised.value)


@pytest.mark.parametrize("active", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("matmul", [by_rows, by_layout], ids=["cuts", "layout"])
def test_a_marked_op_is_cut_unevenly_inside_and_the_interface_stays_whole(
    matmul: Any, active: bool
) -> None:
    def fn(x: Any, w: Any) -> Any:
        return 2 * matmul(x, w) + 1

    with shardy(active):
        step = autoshard.jit(fn, mesh=MESH, indivisible="pad")
        plan = step.plan(X, W)
        (dot,) = (op for op in plan.ops if op.name == "dot_general")
        assert dot.strategy == "[{d}, {}], [{}, {}] -> [{d}, {}]"
        assert [str(v.sharding) for v in (*plan.arguments, *plan.results)] == ["[{}, {}]"] * 3
        assert_equal(jax.device_get(step(X, W)), np.asarray(2 * (X @ W) + 1), 0)
        text = step.lower(X, W).compile().as_text() or ""
        assert "f32[36,30]" in text  # 252 rows on 7 devices
        assert step.eval_shape(X, W).shape == (ROWS, 30)


@pytest.mark.parametrize("side", ["in_shardings", "out_shardings"])
def test_arguments_and_results_are_not_padded(side: str) -> None:
    pins: dict[str, Any] = {side: (P("d"), None) if side == "in_shardings" else P("d")}
    with pytest.raises(autoshard.ShardingError, match=r"250 % 7 = 5.*pad the dim to 252"):
        autoshard.plan(jnp.matmul, X, W, mesh=MESH, indivisible="pad", **pins)


def test_a_dim_smaller_than_the_mesh_is_refused_still() -> None:
    with pytest.raises(autoshard.StrategyError, match="6 % 7 = 6"):
        autoshard.plan(by_rows, X[:6], W, mesh=MESH, indivisible="pad")


def test_an_option_of_another_name_is_refused() -> None:
    with pytest.raises(autoshard.PlanError, match="Use 'refuse' or 'pad'"):
        autoshard.plan(by_rows, X, W, mesh=MESH, indivisible="replicate")  # type: ignore[arg-type]


ROW_NUMBERS = np.random.default_rng(0).integers(0, ROWS, ROWS)
CUT: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(0),
    "max": lambda x: x.max(0),
    "mean": lambda x: x.mean(0),
    "prod": lambda x: jnp.prod(x, 0),
    "any": lambda x: jnp.any(x == 0, 0),
    "argmax": lambda x: jnp.argmax(x, 0),
    "softmax": lambda x: jax.nn.softmax(x, 0),
    "matmul": lambda x: x.T @ x,
    "gather": lambda x: x[ROW_NUMBERS],
    "scatter": lambda x: jnp.zeros_like(x).at[ROW_NUMBERS].add(x),
    "transpose": lambda x: x.T + 1,
    "sort of the other dim": lambda x: jnp.sort(x, 1),
    "concatenate the other dim": lambda x: jnp.concatenate([x, x], 1),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c * 2 + c.sum(0), x),
}
WHOLE: dict[str, Callable[[Any], Any]] = {
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "sort": lambda x: jnp.sort(x, 0),
    "slice": lambda x: x[3:240:2],
    "pad": lambda x: jnp.pad(x, ((1, 2), (0, 0))),
    "roll": lambda x: jnp.roll(x, 3, 0),
    "reverse": lambda x: jnp.flip(x, 0),
    "reshape": lambda x: x.reshape(10, 25, -1) + 1,
}


@pytest.mark.parametrize("active", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("name", CUT)
def test_no_op_sees_the_padding(name: str, active: bool) -> None:
    fn, x = CUT[name], integers(ROWS, 8)
    marked = autoshard.shard(fn, in_strategy=((7, 1),))
    with shardy(active), warnings.catch_warnings():
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        step = autoshard.jit(lambda x: marked(x), mesh=MESH, indivisible="pad")
        assert uneven(step.plan(x))
        assert_equal(jax.device_get(step(x)), unsharded(fn, (x,)), 1e-6)


@pytest.mark.parametrize("name", WHOLE)
def test_ops_that_would_see_the_padding_are_refused(name: str) -> None:
    marked = autoshard.shard(WHOLE[name], in_strategy=((7, 1),))
    x = integers(ROWS, 8)
    with pytest.raises(autoshard.StrategyError, match="element by element or reduce it"):
        autoshard.plan(lambda x: marked(x), x, mesh=MESH, indivisible="pad")


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_uneven_is_gathered_for_ops_that_would_see_the_padding(name: str) -> None:
    before = autoshard.shard(lambda x: x * 2, in_strategy=((7, 1),), out_strategy=((7, 1),))
    fn, x = WHOLE[name], integers(ROWS, 8)
    step = autoshard.jit(lambda x: fn(before(x)), mesh=MESH, indivisible="pad")
    assert uneven(step.plan(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        found = jax.device_get(step(x))
    assert_equal(found, unsharded(lambda x: fn(x * 2), (x,)), 1e-6)


def train_step(params: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        return jnp.mean((jax.nn.relu(x @ params["a"]) @ params["b"] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)


def scanned(x: Any, w: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        carry = jnp.tanh(carry @ w) + row.sum()
        return carry, carry.mean(1)

    return jax.lax.scan(body, x, x.T)


PARAMS = {"a": integers(64, 130) / 8, "b": integers(130, 30) / 8}
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "train step": (train_step, (PARAMS, X, integers(ROWS, 30))),
    "scan": (scanned, (X, integers(64, 64) / 16)),
}


@pytest.mark.parametrize("active", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("devices", [6, 7, 8])
@pytest.mark.parametrize("name", CASES)
def test_the_search_cuts_what_is_indivisible(name: str, devices: int, active: bool) -> None:
    fn, args = CASES[name]
    with shardy(active), warnings.catch_warnings():
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        step = autoshard.jit(fn, cluster=f"cpu:{devices}", indivisible="pad")
        plan = step.plan(*args)
        assert uneven(plan)
        found = jax.device_get(step(*args))
    assert_equal(found, unsharded(fn, args), 1e-5)
    for value in (*plan.arguments, *plan.results):
        value.sharding.check(value.shape)


def test_data_parallelism_of_an_indivisible_batch() -> None:
    args = CASES["train step"][1]
    options: dict[str, Any] = {"mesh": MESH, "mode": "data_parallel"}
    with pytest.raises(autoshard.PlanError, match="or indivisible='pad'"):
        autoshard.plan(train_step, *args, **options)
    step = autoshard.jit(train_step, indivisible="pad", **options)
    plan = step.plan(*args)
    dots = [op.strategy for op in plan.ops if op.name == "dot_general"]
    assert all("{d}" in (strategy or "") for strategy in dots)
    assert [str(value.sharding) for value in plan.arguments[2:]] == ["[{}, {}]"] * 2
    assert_equal(jax.device_get(step(*args)), unsharded(train_step, args), 1e-5)


def test_devices_that_cannot_be_used_are_said() -> None:
    args = (jax.ShapeDtypeStruct((ROWS, 64), "float32"), jax.ShapeDtypeStruct((64, 30), "float32"))
    with pytest.warns(
        autoshard.AutoshardWarning, match="no dim of the arguments has 7 equal parts"
    ):
        autoshard.plan(jnp.matmul, *args, cluster="cpu:7")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autoshard.plan(jnp.matmul, *args, cluster="cpu:7", indivisible="pad")
