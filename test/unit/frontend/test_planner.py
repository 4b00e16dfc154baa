"""``autoshard.Planner``: the same program again, with other pins."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.cluster import Cluster
from autoshard.importer.pins import DimPin, Pin, Pinned
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.passes.recursive_programming import (
    RecursiveProgramming,
    replan_module,
    search_module,
)


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def loss(weights: Any, x: Any, y: Any) -> Any:
    for up, down in weights:
        x = x + jnp.tanh(x @ up) @ down
    return jnp.mean((x - y) ** 2)


def train_step(weights: Any, x: Any, y: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def planner(**options: Any) -> autoshard.Planner:
    weights = [(struct(512, 2048), struct(2048, 512))] * 3
    x = struct(4096, 512)
    return autoshard.Planner(
        train_step, weights, x, x, cluster="v5e:2x4", donate_argnums=0, **options
    )


def test_pins_are_kept_and_the_rest_is_planned_again() -> None:
    plans = planner()
    axis = plans.plan.mesh.axis_names[0]
    pins = [(P(None, axis), None), (None, None), (None, None)]
    changed = plans.replan(in_shardings=(pins, None, None))
    assert changed.mesh == plans.plan.mesh
    assert str(changed.arguments[0].sharding) == f"[{{}}, {{{axis}}}]"
    # The weight goes back in the next step: its new value is cut alike.
    assert changed.results[1].sharding == changed.arguments[0].sharding
    assert changed.step_seconds >= plans.plan.lower_bound_seconds


def test_pins_of_one_call_say_nothing_to_the_next() -> None:
    plans = planner()
    axis = plans.plan.mesh.axis_names[0]
    plans.replan(in_shardings=([(P(None, axis), None), (None, None), (None, None)], None, None))
    again = plans.replan(in_shardings=(None, P(axis), None))
    first = autoshard.plan(
        train_step,
        [(struct(512, 2048), struct(2048, 512))] * 3,
        struct(4096, 512),
        struct(4096, 512),
        cluster="v5e:2x4",
        donate_argnums=0,
    )
    assert again.arguments[6].sharding.tile[0] > 1
    assert again.step_seconds == pytest.approx(first.step_seconds, rel=0.05)


def test_results_can_be_pinned() -> None:
    plans = planner()
    axis = plans.plan.mesh.axis_names[0]
    weights = [(None, P(axis)), (None, None), (None, None)]
    changed = plans.replan(out_shardings=(None, weights))
    assert changed.results[2].sharding.tile[0] == plans.plan.mesh.axis_size(axis)


def decayed(state: Any, x: Any) -> Any:
    weight, mean = state
    gradient = jax.grad(lambda weight: jnp.mean(jnp.tanh(x @ weight) ** 2))(weight)
    return (weight - 0.1 * gradient, 0.9 * mean + 0.1 * jnp.mean(x, 0)), jnp.mean(x)


@pytest.mark.parametrize("donated", [(), (0,)])
@pytest.mark.parametrize("first", [None, P("a", "b")])
@pytest.mark.parametrize("before", [None, P("a", "b"), P("b", "a")])
@pytest.mark.parametrize("after", [None, P("b", "a")])
def test_pins_of_state_before_and_after_are_those_of_a_plan(
    donated: tuple[int, ...], first: Any, before: Any, after: Any
) -> None:
    """With any pins that ``autoshard.plan`` takes, whether or not the two are one value."""
    if before is None and after is None:
        return
    arguments = ((struct(512, 256), struct(512)), struct(1024, 512))
    in_turn = autoshard.Cluster.parse("v5e:2x4").in_order((("x", 2), ("y", 4)))
    options: Any = {"cluster": in_turn, "mesh": "a=2,b=4", "donate_argnums": donated}
    plans = autoshard.Planner(decayed, *arguments, **options, in_shardings=((first, None), None))
    again = {"in_shardings": ((before, None), None), "out_shardings": ((after, None), None)}
    if first is not None and before not in (None, first):
        with pytest.raises(autoshard.StrategyError, match="contradict"):
            plans.replan(**again)
        return
    changed = plans.replan(**again)
    again["in_shardings"] = ((before or first, None), None)
    asked = autoshard.plan(decayed, *arguments, **options, mode="auto", **again)
    for found, wanted in zip(
        (*changed.arguments, *changed.results), (*asked.arguments, *asked.results), strict=True
    ):
        assert found.sharding == wanted.sharding
    # XLA reuses the memory of state that is split alike
    is_one = donated and (before or first) in (None, after or before or first)
    assert not is_one or changed.arguments[0].sharding == changed.results[0].sharding


def test_a_pin_that_cannot_be_is_named() -> None:
    plans = planner()
    with pytest.raises(autoshard.AutoshardError, match="nowhere"):
        plans.replan(in_shardings=(None, P("nowhere"), None))
    with pytest.raises(autoshard.PlanError, match="give in_shardings or out_shardings"):
        plans.replan()


def test_what_stands_on_the_module_is_the_last_plan() -> None:
    """Only what changes is written: going there and back must leave nothing behind."""
    plans = planner()
    axis = plans.plan.mesh.axis_names[0]
    columns = [(P(None, axis), None), (None, None), (None, None)]
    rows = [(P(axis), None), (None, None), (None, None)]
    texts = [
        _without_summary(plans.replan(in_shardings=(pins, None, None)))
        for pins in (columns, rows, columns)
    ]
    assert texts[0] == texts[2]
    assert texts[0] != texts[1]


def _without_summary(plan: autoshard.Plan) -> str:
    """The planned module without its summary, which has planning times."""
    return re.sub(r'autoshard\.plan = "(?:[^"\\]|\\.)*"', "", plan.to_mlir(debug_info=False))


def updated(state: Any, x: Any, y: Any) -> Any:
    weights, momentum = state
    gradients = jax.grad(loss)(weights, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum


def test_what_is_spread_is_so_in_every_plan() -> None:
    weights = [(struct(512, 2048), struct(2048, 512))] * 2
    x = struct(64, 512)
    plans = autoshard.Planner(
        updated,
        (weights, weights),
        x,
        x,
        cluster="v5e:2x4",
        mesh="data=8",
        in_shardings=(None, P("data"), P("data")),
        donate_argnums=0,
        optimizer_parallel=1,
    )
    again = plans.replan(in_shardings=(([(P(), P())] * 2, None), None, None))
    assert {str(value.sharding) for value in again.arguments[:4]} == {"[{}, {}]"}
    for plan in (plans.plan, again):
        parts = [
            value.sharding.num_shards(0) * value.sharding.num_shards(1) for value in plan.arguments
        ]
        assert parts[4:8] == [8] * 4


def test_marks_that_keep_results_are_heard() -> None:
    """The copy of the kept sum is gone from the backward half, in the first plan and the next."""

    def step(layers: Any, x: Any) -> Any:
        layer = autoshard.recompute(
            lambda x, w: x + jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) @ w[2], mp_comm_recompute=False
        )

        def loss(layers: Any) -> Any:
            out = x
            for w in layers:
                out = layer(out, w)
            return (out * out).sum()

        return jax.grad(loss)(layers)

    layers = [(struct(32, 64), struct(64, 64), struct(64, 32))] * 2
    pins = [(P(None, "model"), P("model"), P(None, "model"))] * 2
    options: Any = {
        "cluster": "cpu:8",
        "mesh": "model=8",
        "in_shardings": (pins, None),
    }
    plans = autoshard.Planner(step, layers, struct(16, 32), **options)
    kept = autoshard.plan(step, layers, struct(16, 32), **options)
    sent = autoshard.plan(step, layers, struct(16, 32), **options, recompute="none")
    assert kept.communication_seconds < sent.communication_seconds
    again = plans.replan(out_shardings=pins)
    for plan in (plans.plan, again):
        assert plan.communication_seconds == kept.communication_seconds


def test_what_a_plan_knows_is_not_computed_again() -> None:
    """Message passing begins where it ended for the plan before, but for what is pinned."""
    weights = [(struct(512, 8, 64),) * 3 + (struct(8, 64, 512), struct(512, 2048))] * 2

    def attention_loss(weights: Any, x: Any) -> Any:
        for wq, wk, wv, wo, up in weights:
            q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in (wq, wk, wv))
            scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k), -1)
            x = x + jnp.einsum("bhst,bthk,hkd->bsd", scores, v, wo)
            x = x + jax.nn.gelu(x @ up) @ up.T
        return jnp.mean(x * x)

    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(attention_loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    lowered = jax.jit(step, donate_argnums=0).lower(weights, struct(64, 256, 512))
    module = parse_bytes(print_module(lowered.compiler_ir(), "bytecode"), new_context(), "step")
    planned = search_module(module, Cluster.of("v5p:4x4x4"), RecursiveProgramming())
    assert planned.plan.rounds > 300
    pin = Pinned(
        planned.imported.functions[-1].arguments[4], Pin((DimPin((0,)), DimPin())), None, ""
    )
    assert replan_module(planned, []).plan.rounds < 12
    assert replan_module(planned, [pin]).plan.rounds < 40


@pytest.mark.parametrize("option", ["host_offload", "recompute"])
def test_what_takes_several_searches_is_refused(option: str) -> None:
    choice: Any = {option: "auto"}
    with pytest.raises(autoshard.PlanError, match=f"{option}='auto' takes several searches"):
        autoshard.Planner(jnp.add, struct(8), struct(8), cluster="v5e:2x4", **choice)


def test_the_price_of_memory_is_kept_where_the_whole_search_is_made() -> None:
    """Without time for one axis at a time the whole search is made, at the price given."""
    lowered = jax.jit(train_step).lower(
        [(struct(64, 256), struct(256, 64))], *[struct(512, 64)] * 2
    )
    module = parse_bytes(print_module(lowered.compiler_ir(), "bytecode"), new_context(), "step")
    options = RecursiveProgramming(mem_coeff=3.0)
    planned = search_module(module, Cluster.of("v5e:2x4"), options)
    assert planned.summary.mem_coeff == 3.0
    hurried = replace(planned, options=replace(options, time_limit=1e-9))
    assert replan_module(hurried, []).summary.mem_coeff == 3.0
