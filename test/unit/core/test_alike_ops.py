"""Ops that are alike, against a dict of tuples."""

from __future__ import annotations

import random
from collections import defaultdict
from math import inf

import numpy as np
import pytest
from plan_cases import block_module, imported

from autoshard import _core
from autoshard.cluster import Cluster


def planned(name: str) -> tuple[_core.Program, _core.CorePlan]:
    cluster = Cluster.parse("v5e:2x4")
    program = imported(block_module(name), cluster.level_mesh())
    plan = _core.recursive_programming(
        program.program, cluster.to_core(program.mesh), mem_coeff=None, memory_limit=inf
    )
    return program.program, plan


@pytest.mark.parametrize("name", ["mlp gradient", "gated mlp"])
def test_groups_are_those_of_equal_tuples(name: str) -> None:
    program, plan = planned(name)
    chance = random.Random(name)
    kinds, places, spots = (
        np.array([chance.randrange(3) for _ in range(program.num_ops)], np.int32) for _ in range(3)
    )
    groups: defaultdict[tuple[float, ...], list[int]] = defaultdict(list)
    rows = zip(kinds, places, plan.op_strategy, plan.op_seconds, program.op_trips, strict=True)
    for number, row in enumerate(rows):
        groups[row].append(number)
    found = _core.alike_ops(program, plan, kinds=kinds, places=places, spots=spots)
    members = list(groups.values())
    assert len(members) < program.num_ops
    assert found.first == [group[0] for group in members]
    assert found.count == list(map(len, members))
    assert found.occurrence == [sum(spots[:first] == spots[first]) for first, *_ in members]
    assert [members[group].count(op) for op, group in enumerate(found.group_of)] == [
        1
    ] * program.num_ops


def test_columns_of_another_length_are_refused() -> None:
    program, plan = planned("mlp gradient")
    column = np.zeros(program.num_ops, np.int32)
    with pytest.raises(ValueError, match="alike_ops: columns differ in length"):
        _core.alike_ops(program, plan, kinds=column, places=column, spots=column[1:])


def test_values_know_the_op_that_makes_them() -> None:
    program, _ = planned("mlp gradient")
    makers = program.makers
    assert len(makers) == program.num_values
    made = [value for value, op in enumerate(makers) if op >= 0]
    assert {int(makers[value]) for value in made} <= set(range(program.num_ops))
    read = {value for op in range(program.num_ops) for value in program.operands_of(op)}
    entered = {argument.value for argument in program.arguments}
    assert {value for value in read if value >= 0 and makers[value] < 0} <= entered
