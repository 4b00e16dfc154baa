"""300 random records come back from their JSON, older ones too; 300 random diffs are mirrored."""

from __future__ import annotations

import json
import random
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from explained_plans import layers_plan

from autoshard.errors import ParseError
from autoshard.explain.diff import Side, diff, side_of
from autoshard.explain.record import Record, without_collectives
from autoshard.explain.timeline import Drawn, Timeline
from autoshard.planned.summary import PlanSummary

TEXTS = ("", "w", "params['layers'][3]['w']", 'ü "q" \\ \n\t</script>', "a" * 300, "\u2028")
NUMBERS = (0, 1, -1, 7, 2**40)
REALS = (0.0, -2.0, 1.5, 1e-300, 1e300, 3.3e-6)


def made(kind: Any, chance: random.Random) -> Any:
    """Something of a type that rows of records have."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return made(chance.choice(inner), chance)
    if origin is Literal:
        return chance.choice(inner)
    if origin is tuple:
        return tuple(made(inner[0], chance) for _ in range(chance.randrange(4)))
    if origin is Mapping:
        return {chance.choice(TEXTS): made(inner[1], chance) for _ in range(chance.randrange(3))}
    if kind is Timeline:
        drawn = made(Drawn, chance)
        return Timeline(drawn.bars, drawn.repeats)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{one.name: made(hints[one.name], chance) for one in fields(kind)})
    values = {
        str: TEXTS,
        int: NUMBERS,
        float: REALS,
        bool: (False, True),
        types.NoneType: (None,),
    }
    return chance.choice(values[kind])


def random_record(chance: random.Random) -> Record:
    record: Record = made(Record, chance)
    if record.summary is None:
        return record
    # A record has its mesh once, and choices level by level, those of an op at one line.
    summary = replace(without_collectives(record.summary), mesh=record.mesh)
    if summary.symbolic_costs is not None:
        choices = sorted(summary.symbolic_costs.choices, key=lambda choice: choice.level)
        choices = [replace(one, op=f"dot_general_{n}") for n, one in enumerate(choices)]
        costs = replace(summary.symbolic_costs, choices=tuple(choices))
        summary = replace(summary, symbolic_costs=costs)
    return replace(record, summary=summary)


@pytest.mark.parametrize("seed", range(300))
def test_a_random_record_comes_back_as_it_was(seed: int) -> None:
    record = random_record(random.Random(seed))
    text = record.to_json()
    assert Record.from_json(text) == record
    assert Record.from_json(text).to_json() == text


@pytest.mark.parametrize("seed", range(300))
def test_an_older_record_loads_or_says_why_not(seed: int) -> None:
    chance = random.Random(seed)
    read = json.loads(random_record(chance).to_json())
    version = read["autoshard_record"] = chance.randrange(4)
    for one in read["collectives"]:
        del one["exposed_seconds"], one["slack_seconds"]
    if version < 3:
        for op in read["ops"]:
            del op["reads"]
        for one in read["collectives"]:
            del one["ops"], one["is_operand"]
    if version < 2:
        del read["bars"], read["repeats"]
    if version < 1:
        del read["missing"]
    if chance.random() < 0.3:
        del read[chance.choice(list(read))]
    try:
        loaded = Record.from_json(json.dumps(read))
        assert loaded.missing or version == 3
        assert all(one.exposed_seconds is None for one in loaded.collectives)
    except ParseError as error:
        assert "the record is damaged: " in str(error)  # noqa: PT017


def random_side(side: Side, chance: random.Random) -> Side:
    """The same program, cut at random, with random costs and collectives."""
    dims = tuple(
        tuple((0,) if axes and chance.random() < 0.5 else axes for axes in one)
        if chance.random() < 0.3
        else tuple(() for _ in one)
        for one in side.dims
    )
    assert side.summary is not None
    names = (*side.mesh.axis_names, "irregular groups")
    collectives = tuple(
        (
            chance.choice(("all-gather", "all-reduce")),
            (chance.choice(names),),
            chance.choice((None, "mlp.py:4", "mlp.py:9")),
            chance.choice(REALS[:3]),
            float(chance.choice(NUMBERS[:2])),
        )
        for _ in range(chance.randrange(5))
    )
    summary: PlanSummary = replace(
        side.summary,
        step_seconds=chance.choice((1.0, 2.0)),
        peak_bytes_per_device=chance.choice((0.0, 3.0)),
        peak_values=tuple(chance.sample(side.summary.peak_values, chance.randrange(3))),
    )
    return replace(side, dims=dims, summary=summary, collectives=collectives)


@pytest.mark.parametrize("seed", range(300))
def test_a_random_diff_is_that_of_the_other_way_mirrored(seed: int) -> None:
    chance = random.Random(seed)
    side = side_of(layers_plan().subject)
    one, two = random_side(side, chance), random_side(side, chance)
    there, back = diff(one, two), diff(two, one)
    changed = [
        value
        for value, (was, is_now) in enumerate(zip(one.dims, two.dims, strict=True))
        if was != is_now and not side.imported.value_is_free[value]
    ]
    assert sum(row.count for row in there.values) == len(changed)
    assert {(row.name, row.before, row.after, row.count) for row in there.values} == {
        (row.name, row.after, row.before, row.count) for row in back.values
    }
    assert {(t.name, t.before, t.after) for t in there.terms} == {
        (t.name, t.after, t.before) for t in back.terms
    }
    for mine, others in ((there.collectives, back.collectives), (there.memory, back.memory)):
        assert len(mine) == len(others)
    assert {
        (c.kind, c.axes, c.location, c.before_bytes, c.after_bytes) for c in there.collectives
    } == {(c.kind, c.axes, c.location, c.after_bytes, c.before_bytes) for c in back.collectives}
    assert json.loads(json.dumps(there.to_json()))["before"] == there.before
    assert there.to_markdown()
    assert diff(one, one).is_same
