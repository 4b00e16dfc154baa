"""A record is read as it was written, of older versions too, and says why if it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from explained_plans import layers_plan
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard
from autoshard.errors import AutoshardWarning, ParseError
from autoshard.explain.record import (
    MemoryPoint,
    Record,
    RecordedCollective,
    RecordedOp,
    RecordedValue,
)
from autoshard.explain.record_build import record_of_module
from autoshard.explain.timeline import Timeline, TimelineBar, TimelineRepeat
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.locations import Frame
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import RecursiveProgramming
from autoshard.planned.summary import PlanSummary

finite = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, finite)


def rows(kind):
    return st.lists(st.from_type(kind), max_size=3).map(tuple)


@st.composite
def records(draw) -> Record:
    mesh = draw(st.text())
    summary = st.builds(
        PlanSummary, mesh=st.just(mesh), collectives=st.just(()), symbolic_costs=st.none()
    )
    return Record(
        name=draw(st.text()),
        mode=draw(st.none() | st.text()),
        mesh=mesh,
        summary=draw(st.none() | summary),
        resharded_bytes=draw(st.none() | finite),
        missing=draw(st.none() | st.text()),
        arguments=draw(rows(RecordedValue)),
        results=draw(rows(RecordedValue)),
        frames=draw(rows(Frame)),
        ops=draw(rows(RecordedOp)),
        collectives=draw(rows(RecordedCollective)),
        memory=draw(rows(MemoryPoint)),
        timeline=Timeline(draw(rows(TimelineBar)), draw(rows(TimelineRepeat))),
    )


@settings(max_examples=60, deadline=None)
@given(records())
def test_what_is_written_is_read(record):
    assert Record.from_json(record.to_json()) == record


def test_the_record_of_a_plan_is_read_as_it_was_written():
    record = layers_plan().record
    assert Record.from_json(record.to_json()) == record


def test_equal_layers_are_one_row():
    """The plan cuts the first layer otherwise than the others, which stay together."""
    record = layers_plan("v5e:4x2").record
    arguments = {one.id: one.count for one in record.arguments}
    assert arguments["layers[*]['up']"] == 5
    assert sum(arguments.values()) == 6 * 2 + 1
    products = [op for op in record.ops if op.op == "dot_general"]
    assert sum(op.count for op in products) == 6 * 2 * 3 - 1
    assert len(products) < 16


def test_a_row_of_collectives_has_the_rows_of_all_ops_that_ask_for_them():
    record = layers_plan().record
    several = [one for one in record.collectives if len(one.ops) > 1]
    assert several
    for one in several:
        asking = [record.ops[row] for row in one.ops]
        assert {op.op for op in asking} == {one.of.rpartition(" of ")[2]}
        assert sum(op.count for op in asking) >= one.count


def test_ids_say_the_scope_the_op_the_line_and_which_one():
    found = [op.id for op in layers_plan().record.ops if op.op == "dot_general"]
    assert found[0].startswith("dot_general@explained_plans.py:")
    assert found[0].endswith("#0")
    assert len(set(found)) == len(found)


def test_seconds_of_ops_and_collectives_are_those_of_the_plan():
    plan, record = layers_plan(), layers_plan().record
    assert sum(op.seconds or 0 for op in record.ops) == pytest.approx(
        plan.compute_seconds, rel=0.02
    )
    sent = sum(one.seconds or 0 for one in record.collectives)
    assert sent == pytest.approx(plan.communication_seconds)
    assert all((op.roofline_seconds or 0) <= (op.seconds or 0) for op in record.ops)


def test_the_fullest_point_of_the_memory_is_the_peak():
    record = layers_plan().record
    assert max(point.bytes for point in record.memory) == pytest.approx(
        layers_plan().peak_bytes, rel=0.2
    )
    assert [point.op for point in record.memory] == sorted(point.op for point in record.memory)


def test_a_summary_from_before_records_is_a_record_without_ops():
    summary = layers_plan().summary
    assert summary is not None
    record = Record.from_json(summary.to_json())
    assert record.summary is not None
    assert record.summary.step_seconds == summary.step_seconds
    assert [one.kind for one in record.collectives] == [one.kind for one in summary.collectives]
    assert record.missing is not None
    assert "before version 1" in record.missing


def without_edges(read):
    """JSON as it was before rows had edges."""
    for op in read["ops"]:
        del op["reads"]
    for one in read["collectives"]:
        del one["ops"], one["is_operand"]


def loose(record: Record) -> Record:
    """The same without edges."""
    ops = tuple(replace(op, reads=()) for op in record.ops)
    collectives = tuple(replace(one, ops=(), is_operand=False) for one in record.collectives)
    return replace(record, ops=ops, collectives=collectives)


def test_a_record_of_version_1_has_no_timeline_and_says_so():
    record = layers_plan().record
    read = json.loads(record.to_json())
    read["autoshard_record"] = 1
    del read["bars"], read["repeats"]
    without_edges(read)
    older = Record.from_json(json.dumps(read))
    assert older.missing == "the record was written before version 2: it has no timeline"
    assert older == replace(loose(record), missing=older.missing, timeline=Timeline())


def test_a_record_of_version_2_does_not_say_which_op_reads_which():
    record = layers_plan().record
    read = json.loads(record.to_json())
    read["autoshard_record"] = 2
    without_edges(read)
    older = Record.from_json(json.dumps(read))
    said = "the record was written before version 3: it does not say which op reads which"
    assert older.missing == said
    assert older == replace(loose(record), missing=said)
    assert any(op.reads for op in record.ops)
    assert any(one.ops for one in record.collectives)


def test_a_record_of_version_3_does_not_say_what_of_a_collective_is_exposed():
    record = layers_plan().record
    read = json.loads(record.to_json())
    read["autoshard_record"] = 3
    del read["scheduled_seconds"], read["all_hidden_seconds"]
    for one in read["collectives"]:
        del one["exposed_seconds"], one["slack_seconds"]
    older = Record.from_json(json.dumps(read))
    assert older.summary is not None
    assert older.summary.scheduled_seconds is None
    assert older.collectives == tuple(
        replace(one, exposed_seconds=None, slack_seconds=None) for one in record.collectives
    )


def test_rows_of_collectives_add_up_to_what_the_step_waits():
    record = layers_plan().record
    summary = record.summary
    assert summary is not None
    assert summary.scheduled_seconds is not None
    exposed = sum(one.exposed_seconds or 0.0 for one in record.collectives)
    assert exposed > 0
    assert exposed <= summary.scheduled_seconds - summary.compute_seconds + 1e-12
    assert exposed == pytest.approx(
        sum(one.exposed_seconds or 0.0 for one in layers_plan().summary.collectives)
    )


def test_scalars_have_no_edges_between_ops():
    def step(x, y):
        total = x.sum()
        largest = y.max()
        return jnp.sin(x) * total, largest

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    ops = autoshard.plan(step, x, x, cluster="cpu:2", mesh="a=2").record.ops
    reduces = [op for op in ops if op.op == "reduce"]
    assert len(reduces) == 2
    assert [op.reads for op in reduces] == [(), ()]
    (product,) = (op for op in ops if op.op == "multiply")
    assert {ops[row].op for row in product.reads} == {"sine", "broadcast_in_dim"}


def test_a_plan_that_was_priced_otherwise_says_so():
    """A loop of unknown length: planned for 5 trips, a module says nothing of that."""
    text = """
    func.func public @main(%x: tensor<4096x4096xf32>, %n: tensor<i32>) -> tensor<4096x4096xf32> {
      %r:2 = stablehlo.while(%a = %x, %i = %n) : tensor<4096x4096xf32>, tensor<i32>
        cond {
          %zero = stablehlo.constant dense<0> : tensor<i32>
          %c = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        } do {
          %b = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] :
            (tensor<4096x4096xf32>, tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
          %two = stablehlo.constant dense<2> : tensor<i32>
          %d = stablehlo.divide %i, %two : tensor<i32>
          stablehlo.return %b, %d : tensor<4096x4096xf32>, tensor<i32>
        }
      return %r#0 : tensor<4096x4096xf32>
    }"""
    found = []
    for trips in (5, 100):
        module = parse_bytes(text.encode(), new_context())
        with pytest.warns(AutoshardWarning, match="loops? without a known trip count"):
            run_passes(module, [RecursiveProgramming(cluster="cpu:2", trip_count=trips)])
        found.append(record_of_module(module).missing)
    assert found[0] is not None
    assert "priced otherwise than when it was planned: compute" in found[0]
    assert found[1] is None


def test_a_newer_version_is_refused():
    text = layers_plan().record.to_json().replace('"autoshard_record": 4', '"autoshard_record": 5')
    with pytest.raises(ParseError, match=r"a\.json: the record has version 5, written by autosha"):
        Record.from_json(text, "a.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_what_is_no_record_is_refused(text):
    with pytest.raises(ParseError, match=r"no record can be read|the record is damaged"):
        Record.from_json(text)


def test_a_damaged_record_is_refused():
    read = json.loads(layers_plan().record.to_json())
    del read["ops"][0]["strategy"]
    with pytest.raises(ParseError, match=r"the record is damaged: .*strategy"):
        Record.from_json(json.dumps(read))
    read["ops"][0]["strategy"], read["ops"][0]["colour"] = "", "red"
    with pytest.raises(ParseError, match=r"the record is damaged: .*colour"):
        Record.from_json(json.dumps(read))


def test_the_page_of_the_schema_names_every_key():
    page = (Path(__file__).parents[3] / "docs/design/record.md").read_text()
    read = json.loads(layers_plan().record.to_json())
    tables = [entry for entry in read.values() if isinstance(entry, list) and entry]
    rows = [entry[0] for entry in tables if isinstance(entry[0], dict)]
    assert len(rows) >= 8
    for key in {key for entry in (read, *rows) for key in entry}:
        assert f"`{key}`" in page, key
