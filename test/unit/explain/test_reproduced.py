"""What comes back of a plan: collectives by what they move, and operands that are held."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard import _core
from autoshard.explain.question import Subject, subject_of
from autoshard.explain.reproduced import collectives_of, compared, propagated, together
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.pins import DimPin, Pin, Pinned


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    turned = jnp.tanh(w.T)
    return x @ turned.T


@cache
def subject() -> Subject:
    plan = autoshard.plan(
        product, array(8192, 512), array(512, 1024), cluster="v5e:2x4", mesh="a=8"
    )
    return subject_of(plan)


def held(value: int, *dims: tuple[int, ...]) -> Pinned:
    return Pinned(value, Pin(tuple(map(DimPin, dims))), None, "here")


def values() -> tuple[int, int, int, int]:
    """Numbers of ``x``, ``w``, ``tanh`` and the result."""
    imported = subject().imported
    main = imported.functions[-1]
    (tanh,) = (made[0] for op, made in imported.result_values if op.name.endswith(".tanh"))
    return *main.arguments, tanh, *main.results


def test_what_is_gathered_is_one_thing_before_and_behind_a_transpose() -> None:
    """``tanh`` of a transpose of ``w`` has the bytes of ``w``."""
    x, w, tanh, result = values()
    ends = [held(x, (0,), ()), held(result, (0,), ()), held(w, (0,), ())]
    early = propagated(subject(), [*ends, held(tanh, (), ())])
    late = propagated(subject(), [*ends, held(tanh, (), (0,))])
    assert early.sent == late.sent == {("all-gather", ("a",), "w"): 7 * 512 * 1024 * 2 / 8}


def test_an_operand_is_read_as_it_is_held_and_the_value_lies_as_it_did() -> None:
    x, w, *_ = values()
    program = subject().imported.program
    (reader,) = (
        (op, operand)
        for op in range(program.num_ops)
        for operand, value in enumerate(program.operands_of(op))
        if value == x
    )
    copy = program.num_values
    pins = [held(x, (0,), ()), held(w, (), ()), held(copy, (), (0,))]
    found = propagated(subject(), pins, [[reader]])
    rows = found.plan.shardings
    operands, _ = found.plan.strategies[found.plan.op_strategy[reader[0]]]
    assert rows[operands[reader[1]]] == [[], [0]]
    assert rows[found.plan.value_sharding[x]] == [[0], []]
    assert {kind for kind, _, what in found.sent if what == "x"} == {"all-to-all"}


def test_what_reads_nothing_or_other_values_cannot_be_held() -> None:
    program = subject().imported.program
    sizes = [axis.size for axis in subject().mesh.axes]
    product = max(range(program.num_ops), key=lambda op: len(program.operands_of(op)))
    assert NO_VALUE not in program.operands_of(product)
    for readers, message in (([], "empty"), ([(product, 0), (product, 1)], "several values")):
        with pytest.raises(ValueError, match=message):
            program.changed(axis_sizes=sizes, pins=[], held_operands=[readers])
    assert isinstance(program.changed(axis_sizes=sizes, pins=[]), _core.Program)


def test_a_plan_sends_what_its_collectives_send() -> None:
    asked = subject()
    sent = together(collectives_of(asked.imported, asked.plan))
    rows = asked.summary.collectives
    assert sum(sent.values()) == pytest.approx(sum(one.times * one.bytes for one in rows))


def test_memory_that_lacks_is_counted_from_the_limit_of_the_plan() -> None:
    asked = subject()
    x, w, tanh, result = values()
    found = propagated(asked, [held(value, (), ()) for value in (x, w, tanh, result)])
    peak = found.plan.peak_bytes
    assert compared(asked, {}, found).lacking_bytes == 0
    limit = asked.plan.peak_bytes + 1000
    assert peak > limit
    tight = replace(asked, summary=replace(asked.summary, memory_limit=limit), known={})
    assert compared(tight, {}, found).lacking_bytes == pytest.approx(peak - limit)
