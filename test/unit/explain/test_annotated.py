"""Lines of annotations, written into a program in place of its plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from small_step import PARAMS, rows, step_with

import autoshard
from autoshard.explain.annotated import annotated_module
from autoshard.explain.annotations import annotated_values
from autoshard.explain.line_candidates import Candidate
from autoshard.explain.line_weights import MADE
from autoshard.explain.propagated_lines import ByShardy
from autoshard.explain.question import Subject
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, SDY_SHARDING
from autoshard.ir.boundary import attributes_at, main_function
from autoshard.ir.module import operations_of
from autoshard.verify.shardy_collectives import shardy_collectives

CONSTRAINT = "sdy.sharding_constraint"


STEP = step_with(lambda made: jax.lax.with_sharding_constraint(jnp.tanh(made), P(None, None)))


@cache
def subject() -> Subject:
    mesh = jax.sharding.AbstractMesh((8,), ("a",))
    with jax.sharding.use_abstract_mesh(mesh):
        return autoshard.plan(STEP, PARAMS, rows(4096), cluster="v5e:2x4", mesh="a=8").subject


def line(**changes: Any) -> Candidate:
    _, lines = annotated_values(subject(), 1)
    return replace(lines[0], **changes)


def ops(module: mlir.Module, name: str) -> list[mlir.Operation]:
    return [op for op in operations_of(module.operation) if op.name == name]


def test_without_lines_nothing_is_left_of_the_plan_and_of_the_users_constraints() -> None:
    assert ops(subject().module, CONSTRAINT)
    module = annotated_module(subject(), [])
    assert not ops(module, CONSTRAINT)
    text = str(module)
    assert "autoshard." not in text
    assert SDY_SHARDING not in text
    assert MHLO_SHARDING not in text


def test_an_argument_says_how_it_lies_and_what_is_made_is_constrained() -> None:
    asked = subject()
    argument = asked.imported.functions[-1].arguments[0]
    (product, values), *_ = [
        (op, values) for op, values in asked.imported.result_values if op.name.endswith("tanh")
    ]
    lines = [
        line(values=(argument,), dims=((), (0,)), readers=()),
        line(values=(values[0],), dims=((0,), ()), readers=()),
    ]
    module = annotated_module(asked, lines)
    said = attributes_at(main_function(module), "arg_attrs")[0]
    assert str(said[SDY_SHARDING]).endswith('[{}, {"a"}]>')
    (held,) = ops(module, CONSTRAINT)
    assert '[{"a"}, {}]' in str(held.attributes["sharding"])
    made = held.operands[0].owner
    assert isinstance(made, mlir.OpView)
    assert made.operation.name == product.name
    readers = {use.owner.operation.name for use in held.operands[0].uses}
    assert readers == {CONSTRAINT}


def test_an_operand_is_constrained_for_its_reader_alone() -> None:
    asked = subject()
    program = asked.imported.program
    argument = asked.imported.functions[-1].arguments[2]
    readers = program.readers_of([argument])
    assert len(readers) > 1
    held = line(values=(argument,), dims=((0,), ()), readers=((readers[0],),))
    module = annotated_module(asked, [held])
    (constraint,) = ops(module, CONSTRAINT)
    (use,) = constraint.results[0].uses
    assert use.operand_number == readers[0][1]


def test_what_is_made_is_constrained_before_what_is_held() -> None:
    asked = subject()
    op, value = next(
        (number, values[0])
        for number, made in enumerate(asked.imported.core_ops)
        for one, values in asked.imported.result_values
        if one == made and one.name.endswith("tanh")
    )
    made = line(values=(value,), dims=((0,), ()), readers=(((op, MADE),),))
    held = line(values=(value,), dims=((), ()), readers=())
    for lines in ([made, held], [held, made]):
        module = annotated_module(asked, lines)
        inner, outer = ops(module, CONSTRAINT)
        assert '[{"a"}, {}]' in str(inner.attributes["sharding"])
        assert "[{}, {}]" in str(outer.attributes["sharding"])
        assert outer.operands[0] == inner.results[0]
        # To all that read the value it is held, whatever it is when it is made.
        plan = ByShardy(asked)(lines).plan
        assert plan.shardings[plan.value_sharding[value]] == [[], []]
    alone = ByShardy(asked)([made]).plan
    assert alone.shardings[alone.value_sharding[value]] == [[0], []]


def test_what_shardy_makes_of_the_lines_is_what_the_plan_sends() -> None:
    asked = subject()
    _, lines = annotated_values(asked)
    collectives = shardy_collectives(annotated_module(asked, lines))
    planned = sum(one.times * one.bytes for one in asked.summary.collectives)
    assert 0 < sum(one.total_bytes for one in collectives) < 1.1 * planned
