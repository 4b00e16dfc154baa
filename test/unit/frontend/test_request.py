"""Options that would say nothing are refused, and what a limit says holds in every mode."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Any, cast, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.frontend.request import PlanOptions, Request


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def train_step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        return jnp.square(jnp.tanh(x @ params["up"]) @ params["down"]).sum()

    return jax.tree.map(jnp.subtract, params, jax.grad(loss)(params))


STEP = ({"up": struct(64, 256), "down": struct(256, 64)}, struct(128, 64))
DATA: dict[str, Any] = {"mode": "data_parallel", "cluster": "v5e:2x4"}


def planned(**options: Any) -> autoshard.Plan:
    return autoshard.plan(train_step, *STEP, **options)


@pytest.mark.parametrize(
    ("option", "value"), [("mem_coeff", 0.1), ("cost_model", "symbolic")], ids=lambda x: str(x)
)
def test_what_is_said_to_the_search_needs_one(option: str, value: Any) -> None:
    with pytest.raises(autoshard.PlanError, match=rf"{option}=.* mode 'data_parallel' does not"):
        planned(**DATA, **{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("memory_limit", "1GiB"),
        ("overlap", 0.5),
        ("host_offload", "auto"),
        ("recompute", "auto"),
        ("recompute", autoshard.Recompute()),
    ],
)
def test_what_is_said_of_memory_and_seconds_needs_a_cluster(option: str, value: Any) -> None:
    with pytest.raises(autoshard.PlanError, match=rf"{option}=.* needs a cluster"):
        planned(mode="data_parallel", mesh="data=8", **{option: value})


def test_options_of_recompute_name_no_other_cluster() -> None:
    options = autoshard.Recompute(cluster="v5p:2x2x1")
    with pytest.raises(autoshard.PlanError, match="Give cluster= beside recompute="):
        planned(cluster="v5e:2x4", recompute=options)


@pytest.mark.parametrize("number", [1, np.int64(1), np.array([1]), -1])
def test_the_batch_is_said_by_number(number: Any) -> None:
    plan = planned(**DATA, batch_argnums=number)
    assert plan.arguments[-1].local_shape == (16, 64)
    assert plan.batch is not None


@pytest.mark.parametrize("number", ["x", 1.0, True])
def test_what_is_no_number_holds_no_batch(number: Any) -> None:
    with pytest.raises(autoshard.PlanError, match=r"batch_argnums=.* has not the numbers of pos"):
        planned(**DATA, batch_argnums=number)


def step_with_state(params: Any, unused: Any, momentum: Any, x: Any) -> Any:
    momentum = 0.5 * momentum + jax.grad(lambda params: jnp.square(x @ params).sum())(params)
    return params - momentum, momentum


def spread(**said: Any) -> list[str]:
    """Shardings of params and momentum where states, and what is said to be one, are spread."""
    square = struct(64, 64)
    plan = autoshard.plan(
        step_with_state,
        *(square, square, square, struct(16, 64)),
        mesh="d=8",
        mode="data_parallel",
        batch_argnums=3,
        optimizer_parallel=autoshard.OptimizerParallel(threshold_kb=0, **said),
    )
    return [str(plan.arguments[number].sharding) for number in (0, 2)]


@pytest.mark.parametrize(
    "number", [2, "2", "momentum", (2,), ("momentum",), [np.int64(2)]], ids=repr
)
def test_parameters_and_states_are_called_as_in_the_plan(number: Any) -> None:
    assert spread() == ["[{}, {}]", "[{d}, {}]"]
    assert spread(parameters=number) == ["[{}, {}]", "[{}, {}]"]


@pytest.mark.parametrize("number", [1, "unused"])
def test_an_argument_that_is_not_used_is_no_state(number: Any) -> None:
    assert spread(parameters=number, states=number) == spread()


@pytest.mark.parametrize("number", [4, -1, "moment"])
def test_a_state_that_is_no_argument_is_an_error(number: Any) -> None:
    with pytest.raises(autoshard.PlanError, match=f"no argument is called {number}; there are 4: "):
        spread(states=number)


def test_recompute_chooses_what_is_known() -> None:
    with pytest.raises(autoshard.AutoshardError, match=r"choose=Auto is not known. Give auto or"):
        autoshard.Recompute(choose=cast(Any, "Auto"))


def test_a_limit_holds_where_nothing_is_searched() -> None:
    peak = planned(**DATA).peak_bytes
    assert planned(**DATA, memory_limit=peak).peak_bytes == peak
    with pytest.raises(autoshard.DoesNotFitError, match=r"in mode 'data_parallel' .* dot_general"):
        planned(**DATA, memory_limit=peak - 1)


def test_a_limit_holds_for_the_symbolic_cost() -> None:
    options: dict[str, Any] = {"cluster": "v5e:2x4", "cost_model": "symbolic"}
    peak = planned(**options).peak_bytes
    with pytest.raises(autoshard.DoesNotFitError, match='give optimizer_parallel=3, recompute="au'):
        planned(**options, memory_limit=peak - 1)


def test_jit_plan_and_request_know_the_same_options() -> None:
    wanted = {field.name: field.default for field in fields(Request)}
    assert PlanOptions.__annotations__.keys() == wanted.keys()
    for function in (autoshard.plan, autoshard.jit):
        named = signature(function).parameters
        assert {name: named[name].default for name in wanted} == wanted
    types = get_type_hints(PlanOptions)
    assert {name: get_type_hints(Request)[name] for name in wanted} == types


def test_an_option_that_nobody_knows_is_a_type_error() -> None:
    options: dict[str, Any] = {"clutser": "v5e:2x4"}
    with pytest.raises(TypeError, match="jit has no option clutser"):
        autoshard.jit(train_step, **options)
