"""Odd inputs to the public functions: what comes back is a result, or an error of autoshard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import autoshard
from autoshard.frontend.request import PlanOptions

ODD: dict[str, Any] = {
    "nothing": None,
    "yes": True,
    "empty text": "",
    "text": "x",
    "bytes": b"d=8",
    "negative": -1,
    "zero": 0,
    "fraction": 2.5,
    "huge": 10**20,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "list": [],
    "dict": {},
    "dict of text": {"d": "8"},
    "dict of numbers": {1: 8},
    "dict of nothing": {"d": 0},
    "dict of a truth": {"d": True},
    "object": object(),
    "numpy": np.float32(0.5),
    "array": np.zeros(2),
    "type": int,
}


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _matmul(x: Any, w: Any) -> Any:
    return x @ w


MATRICES = (_array(16, 8), _array(8, 16))
BASES: dict[str, dict[str, Any]] = {
    "auto": {"mode": "auto", "cluster": "cpu:8"},
    "semi_auto": {"mode": "semi_auto", "mesh": "d=8", "in_shardings": PartitionSpec("d")},
    "data_parallel": {"mode": "data_parallel", "mesh": "d=8", "batch_argnums": 0},
}


def _refusal(call: Callable[[], Any]) -> str | None:
    """What autoshard says against it; another error is one of the test."""
    try:
        call()
    except autoshard.AutoshardError as error:
        return str(error)
    return None


def _planned_or_refused(call: Callable[[], autoshard.Plan]) -> None:
    said = _refusal(lambda: str(call()))
    assert said is None or len(said) > 20


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("option", sorted(PlanOptions.__annotations__))
@pytest.mark.filterwarnings("ignore::autoshard.AutoshardWarning")
def test_odd_options_are_taken_or_refused(option: str, base: str) -> None:
    for value in ODD.values():
        options = {**BASES[base], option: value}
        _planned_or_refused(lambda o=options: autoshard.plan(_matmul, *MATRICES, **o))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("fn", "types"),
    [
        (lambda: jnp.ones(8), ()),
        (lambda x: None, (_array(8),)),
        (lambda x: {}, (_array(8),)),
        (lambda x: x, ({},)),
        (lambda x: x, (None,)),
        (lambda x: x, (_array(),)),
        (lambda x: x, (True,)),
        (lambda x: 3, (_array(8),)),
        (lambda x: x + 1, (_array(*[1] * 30),)),
        (lambda x: x.sum(), (_array(*[2] * 12),)),
        (lambda x: x.sum(), (_array(2**31, 2**31, 2**10),)),
    ],
    ids=[
        *("no argument", "no result", "empty result", "empty argument", "None", "scalar", "bool"),
        *("constant", "rank 30", "rank 12", "larger than memory"),
    ],
)
@pytest.mark.filterwarnings("ignore::autoshard.AutoshardWarning")
def test_odd_functions_are_planned_or_refused(
    fn: Callable[..., Any], types: tuple[Any, ...], base: str
) -> None:
    options = BASES[base] | {"in_shardings": None}
    _planned_or_refused(lambda: autoshard.plan(fn, *types, **options))
    one_device = {"mesh": "d=1"} if "mesh" in options else {"cluster": "cpu:1"}
    _planned_or_refused(lambda: autoshard.plan(fn, *types, **{**options, **one_device}))


ENTRIES = st.sampled_from([None, "a", "b", "c", ("a", "b"), ("b", "b"), (), 3])
SPECS = st.none() | st.lists(ENTRIES, max_size=4).map(lambda dims: PartitionSpec(*dims))


@given(st.lists(SPECS, max_size=3).map(tuple), SPECS)
@settings(deadline=None, max_examples=60)
def test_odd_pins_are_kept_or_refused(ins: Any, out: Any) -> None:
    types = (_array(6, 8), _array(8, 6))
    options: dict[str, Any] = {"mesh": "a=2,b=4", "mode": "semi_auto"}

    def plan() -> autoshard.Plan:
        return autoshard.plan(_matmul, *types, in_shardings=ins, out_shardings=out, **options)

    _planned_or_refused(plan)


SMALL = (
    st.none() | st.booleans() | st.integers(-2, 4) | st.floats(-1, 3) | st.text("ab,=N", max_size=2)
)
ODD_TUPLES = st.recursive(SMALL, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


@given(ODD_TUPLES, ODD_TUPLES, ODD_TUPLES)
@settings(deadline=None, max_examples=150)
def test_odd_layouts_are_made_or_refused(sizes: Any, names: Any, entries: Any) -> None:
    layout = autoshard.Layout((2, 4), ("a", "b"))
    for call in (
        lambda: autoshard.Layout(sizes, names),
        lambda: layout(*entries) if isinstance(entries, tuple) else layout(entries),
    ):
        said = _refusal(call)
        assert said is None or "test_odd_inputs.py" in said


@given(ODD_TUPLES, ODD_TUPLES)
@settings(deadline=None, max_examples=60)
def test_odd_marks_are_taken_or_refused(in_strategy: Any, out_strategy: Any) -> None:
    def marked(x: Any, w: Any) -> Any:
        options: Any = {"in_strategy": in_strategy, "out_strategy": out_strategy}
        return autoshard.shard(_matmul, **options)(x, w)

    _planned_or_refused(lambda: autoshard.plan(marked, *MATRICES, mesh="a=2,b=4", mode="semi_auto"))


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_odd_options_of_passes_are_taken_or_refused(value: Any) -> None:
    for kind in (autoshard.OptimizerParallel, autoshard.Recompute):
        for field in fields(kind):
            said = _refusal(lambda k=kind, name=field.name: k(**{name: value}))
            assert said is None or field.name.replace("_", "-") in said


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
@pytest.mark.filterwarnings("ignore::autoshard.AutoshardWarning")
def test_a_planner_takes_or_refuses_odd_pins(value: Any, planner: autoshard.Planner) -> None:
    _planned_or_refused(lambda: planner.replan(in_shardings=value))
    _planned_or_refused(lambda: planner.replan(out_shardings=value))


@pytest.fixture(scope="module")
def planner() -> autoshard.Planner:
    return autoshard.Planner(_matmul, *MATRICES, cluster="cpu:8", mesh="a=2,b=4")
