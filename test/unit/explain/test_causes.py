"""``Plan.why``: causes of collectives and of values, each up to a pin, a limit or a price."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import PlanError
from autoshard.explain.causes import collectives

X = jax.ShapeDtypeStruct((256, 1024), jnp.float32)
WEIGHTS = {
    "up": jax.ShapeDtypeStruct((1024, 8192), jnp.float32),
    "down": jax.ShapeDtypeStruct((8192, 1024), jnp.float32),
}


def loss(weights: Any, x: Any, y: Any) -> Any:
    hidden = jax.nn.relu(x @ weights["up"])
    return jnp.mean((hidden @ weights["down"] - y) ** 2)


def step(weights: Any, x: Any, y: Any) -> Any:
    gradients = jax.grad(loss)(weights, x, y)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


@functools.cache
def planned(pin: Any = None, **options: Any) -> autoshard.Plan:
    options = {"cluster": "v5e:4x2", "mesh": "a=8", "donate_argnums": 0, **options}
    pins = None if pin is None else pin()
    return autoshard.plan(step, WEIGHTS, X, X, in_shardings=pins, **options)


def pinned_batch() -> Any:
    return ({"up": P(None, "a"), "down": None}, P("a"), None)


def test_the_collectives_are_those_of_the_plan_the_dearest_first() -> None:
    plan = planned()
    found = collectives(plan.subject.imported, plan.subject.plan)
    said = [(one.kind, one.axes, one.seconds) for one in plan.summary.collectives]  # type: ignore
    assert [(one.kind.value, one.axes, one.seconds) for one in found] == said


def test_every_collective_ends_in_a_pin_a_limit_or_a_price() -> None:
    plan = planned(pinned_batch)
    count = len(collectives(plan.subject.imported, plan.subject.plan))
    assert count > 2
    for number in range(1, count + 1):
        found = plan.why(number)
        assert found.links
        assert all(link.why for link in found.links)
        assert set(found.ends) <= {"pin", "limit", "price"}


def test_what_a_pin_asks_for_ends_in_that_pin_and_its_price() -> None:
    plan = planned(pinned_batch)
    (found,) = [
        found
        for found in (plan.why(number) for number in (1, 2, 3))
        if "dot_general reads x" in found.what
    ]
    without, as_read = found.links[:2]
    assert (without.end, as_read.end) == ("pin", "pin")
    assert as_read.pins == ("x pinned to [{a}, {}]",)
    assert without.extra_seconds is not None
    assert without.extra_seconds > 0


def test_a_price_is_what_planning_again_without_it_costs() -> None:
    plan = planned()
    summed = "all-reduce over a: dot_general sums in parts"
    asked = (plan.why(number) for number in range(1, len(plan.summary.collectives) + 1))
    found = next(one for one in asked if one.what.startswith(summed))
    (link,) = found.links
    assert link.end == "price"
    assert link.extra_seconds is not None
    assert link.extra_seconds > found.seconds
    assert "communication +" in link.why


def test_a_value_that_would_be_cheaper_whole_ends_in_the_limit_of_memory() -> None:
    """With a batch so large that weights are gathered, whole weights save the gather."""

    def plan_of(limit: float | None) -> autoshard.Plan:
        rows = jax.ShapeDtypeStruct((65536, 1024), jnp.bfloat16)
        weights = {name: jax.ShapeDtypeStruct(w.shape, jnp.bfloat16) for name, w in WEIGHTS.items()}
        pins = (None, P("a"), P("a"))
        return autoshard.plan(
            loss, weights, rows, rows, cluster="v5e:4x2", mesh="a=8", in_shardings=pins,
            memory_limit=limit,
        )  # fmt: skip

    free = plan_of(None)
    assert free.arguments[1].local_shape == free.arguments[1].shape
    plan = plan_of(free.peak_bytes - 2**21)
    cut = next(one for one in plan.arguments[:2] if one.local_shape != one.shape)
    found = plan.why(cut.name)
    assert found.ends == ("limit",)
    (link,) = found.links
    assert link.needed_bytes is not None
    assert link.needed_bytes > free.peak_bytes - 2**21
    assert "allowed" in str(found)


def test_a_pinned_value_names_its_pin_and_a_whole_one_the_cheapest_cut() -> None:
    plan = planned(pinned_batch)
    assert plan.why("weights.up").ends == ("pin",)
    whole = planned(cluster="h100:8").why("x")
    assert whole.what == "x is [{}, {}]"
    extra = [link.extra_seconds for link in whole.links]
    assert extra == sorted(extra)  # type: ignore[type-var]


def test_a_line_is_its_dearest_collective() -> None:
    plan = planned()
    line = plan.summary.collectives[0].location.rpartition("/")[2]  # type: ignore[union-attr]
    assert plan.why(line) == plan.why(1)
    with pytest.raises(PlanError, match="collective 99 of"):
        plan.why(99)
    with pytest.raises(PlanError, match=r"nothing is computed at nowhere\.py:1"):
        plan.why("nowhere.py:1")
