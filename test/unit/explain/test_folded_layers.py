"""A program of few layers sends, and takes, what the whole one does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard._core import Place
from autoshard.cluster import Cluster
from autoshard.explain.annotations import annotated_values
from autoshard.explain.chosen_lines import ProgramLines
from autoshard.explain.folded_layers import folded
from autoshard.explain.line_candidates import candidates
from autoshard.explain.question import Subject
from autoshard.explain.reproduced import collectives_of, together
from autoshard.ir import new_context, parse_bytes
from autoshard.planned.given_plan import cost_of_module, estimated

P = jax.sharding.PartitionSpec

LAYERS = 7


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def loss(params: Any, x: Any) -> Any:
    for number in range(len(params["layers"])):
        layer = params["layers"][str(number)]
        x = x + jnp.square(x @ layer["up"]) @ layer["down"]
    return jnp.mean((x @ params["head"]) ** 2)


def step(params: Any, state: Any, x: Any, loss: Any = loss) -> Any:
    gradients = jax.grad(loss)(params, x)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
    state = jax.tree.map(lambda m, g: 0.9 * m + g / norm, state, gradients)
    return jax.tree.map(lambda w, m: w - 0.1 * m, params, state), state


def step_with_a_function(params: Any, state: Any, x: Any) -> Any:
    return step(params, state, x, jax.jit(loss))


@cache
def subject(layers: int = LAYERS, step: Any = step) -> Subject:
    # Names of layers in the order of text, as JAX sorts them: 0, 1, 10, 11, 2.
    params = {
        "layers": {
            str(number): {"up": array(1024, 4096), "down": array(4096, 1024)}
            for number in range(layers)
        },
        "head": array(1024, 512),
    }
    return autoshard.plan(
        step, params, params, array(4096, 1024), cluster="v5e:2x4", donate_argnums=(0, 1)
    ).subject


@pytest.mark.parametrize("layers", [LAYERS, 12])
def test_what_is_left_stands_for_all(layers: int) -> None:
    whole = subject(layers)
    few = folded(whole)
    assert few is not None
    assert len(few.subject.imported.core_ops) < 0.65 * len(whole.imported.core_ops)
    assert few.subject.plan.step_seconds == pytest.approx(whole.plan.step_seconds, rel=0.05)
    sent = together(collectives_of(whole.imported, whole.plan))
    found = together(collectives_of(few.subject.imported, few.subject.plan))
    assert found == pytest.approx(sent, rel=1e-6)


def test_layers_of_a_function_are_few_as_well() -> None:
    whole = subject(12, step_with_a_function)
    few = folded(whole)
    assert few is not None
    assert len(few.subject.imported.core_ops) < 0.55 * len(whole.imported.core_ops)
    sent = together(collectives_of(whole.imported, whole.plan))
    found = together(collectives_of(few.subject.imported, few.subject.plan))
    assert found == pytest.approx(sent, rel=1e-6)


def test_what_is_left_is_cut_as_it_was() -> None:
    whole = subject()
    few = folded(whole)
    assert few is not None
    assert all(whole.dims[value] == few.subject.dims[left] for value, left in few.values.items())
    names = [op.name for op in whole.imported.core_ops]
    assert all(
        names[op] == few.subject.imported.core_ops[left].name for op, left in few.ops.items()
    )


def test_lines_of_layers_speak_of_those_that_are_left() -> None:
    whole = subject()
    few = folded(whole)
    assert few is not None
    lines = [line for line in candidates(whole) if "layers" in line.name]
    on_few = [few.line(line) for line in lines]
    assert lines
    for left in on_few:
        assert left is not None
        assert len(left.values) in (3, 4)  # rounds of layers may begin within a layer


def test_lines_that_are_chosen_on_few_layers_reproduce_the_plan_of_all() -> None:
    found, lines = annotated_values(subject())
    assert found.reproduced > 0.95
    assert any(line.annotation.count >= LAYERS for line in lines)


def test_lines_that_are_kept_are_tried_on_few_layers_and_speak_of_all() -> None:
    lines = ProgramLines(subject())
    taken = lines.chosen(20).lines
    some = (*lines.candidates[:3], *(line for line in taken if line not in lines.candidates[:3]))
    found = lines.needed(some, 20, some[:3])
    assert set(some[:3]) <= set(found.lines) <= set(some)
    assert len(lines.needed(some, 3, some[:1]).lines) <= 3
    few = folded(subject())
    assert few is not None
    assert all(few.line(line) is not None for line in lines.candidates)


def test_few_layers_are_left_as_they_are() -> None:
    assert folded(subject(3)) is None


def test_ops_that_hardly_run_are_estimated() -> None:
    """A condition may run an op less than once a step, outside of all loops."""
    whole = subject()
    trips = [0.5 * times for times in whole.imported.program.op_trips]
    rarely = whole.imported.changed(whole.mesh, whole.imported.pins, op_trips=trips)
    costed = estimated(replace(whole.costed, imported=rarely), overlap=whole.summary.overlap)
    assert 0 < costed.plan.step_seconds < whole.plan.step_seconds


def test_what_is_sent_between_constraints_runs_as_often_as_what_it_is_made_of() -> None:
    def step(x: Any) -> Any:
        held = jax.lax.with_sharding_constraint(jnp.sin(x), P("d"))
        return jnp.sort(jax.lax.with_sharding_constraint(held, P(None, "d")), axis=0)

    mesh = jax.make_mesh((8,), ("d",), (jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        plan = autoshard.plan(step, array(1024, 1024), cluster="cpu:8")
    module = parse_bytes(plan.bytecode, new_context())
    costed = cost_of_module(module, Cluster.of("cpu:8"))
    imported = costed.imported
    trips = [5 * each for each in imported.program.op_trips]
    changed = imported.changed(costed.mesh, imported.pins, op_trips=trips)
    for program, runs in ((imported, 1), (changed, 5)):
        reshards = estimated(replace(costed, imported=program)).plan.reshards
        assert list(zip(reshards.place, reshards.trips, strict=True)) == [(Place.JOIN, runs)]
