"""Files for Model Explorer: every node has an id of its own, edges are between nodes that are."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from explained_plans import layers_plan
from jax.sharding import PartitionSpec as P
from small_record import RECORD

import autoshard
from autoshard.cli.main import main
from autoshard.explain.model_explorer import graph_json, node_data_json

NODE = {"id", "label", "namespace", "attrs", "incomingEdges"}
EDGE = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}


def test_a_graph_has_the_form_that_model_explorer_reads():
    record = layers_plan().record
    read = json.loads(graph_json(record))
    assert set(read) == {"label", "graphs"}
    (graph,) = read["graphs"]
    assert graph["id"] == read["label"] == record.name
    ids = [node["id"] for node in graph["nodes"]]
    assert len(set(ids)) == len(ids) == len(record.ops) + len(record.collectives)
    for node in graph["nodes"]:
        assert set(node) == NODE
        assert all(isinstance(node[key], str) for key in ("id", "label", "namespace"))
        assert all(set(one) == {"key", "value"} for one in node["attrs"])
        assert all(isinstance(one["value"], str) for one in node["attrs"])
        for edge in node["incomingEdges"]:
            assert set(edge) == EDGE
            assert edge["sourceNodeId"] in ids


def test_node_data_are_seconds_by_the_ids_of_nodes():
    record = layers_plan().record
    (graph,) = json.loads(graph_json(record))["graphs"]
    ((name, data),) = json.loads(node_data_json(record)).items()
    assert name == graph["id"]
    assert set(data["results"]) == {node["id"] for node in graph["nodes"]}
    values = [one["value"] for one in data["results"].values()]
    assert sum(values) == pytest.approx(
        sum(row.seconds or 0.0 for row in (*record.ops, *record.collectives))
    )
    assert [one["stop"] for one in data["gradient"]] == [0, 1]


def test_what_a_collective_moves_comes_from_an_op_or_goes_to_one():
    (graph,) = json.loads(graph_json(layers_plan().record))["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    read = {edge["sourceNodeId"] for node in nodes.values() for edge in node["incomingEdges"]}
    operands = [name for name in nodes if " for operand " in name]
    results = [name for name in nodes if " for result " in name]
    assert operands
    assert results
    assert all(name in read for name in operands)
    assert all(nodes[name]["incomingEdges"] for name in results)


def test_data_flows_from_op_to_op_and_into_loops():
    def step(w, x):
        def layer(x, _):
            return jnp.sin(x @ w), None

        x, _ = jax.lax.scan(layer, jnp.cos(x), None, length=3)
        return jnp.tanh(x).sum()

    w, x = (jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16) for _ in range(2))
    plan = autoshard.plan(step, w, x, cluster="v5e:2x2", mesh="a=4", in_shardings=(P("a"), P("a")))
    read = json.loads(graph_json(plan.record))
    nodes = {node["label"]: node for node in read["graphs"][0]["nodes"]}
    by_id = {node["id"]: label for label, node in nodes.items()}

    def sources(label):
        return {by_id.get(edge["sourceNodeId"]) for edge in nodes[label]["incomingEdges"]}

    assert "dot_general" in sources("sine")
    assert "cosine" in sources("dot_general")
    assert "sine" in sources("tanh")
    assert sources("all-reduce") == {"reduce"}


def test_a_collective_is_beside_the_op_that_asks_for_it():
    """Two products on one line, of one name but for their number."""

    def step(x, w1, w2):
        return jnp.sin(x) @ w1, jnp.cos(x) @ w2

    x, w1, w2 = (jax.ShapeDtypeStruct((1024, n), jnp.bfloat16) for n in (1024, 1024, 512))
    split = (P("a"),) * 3
    plan = autoshard.plan(
        step, x, w1, w2, cluster="v5e:2x2", mesh="a=4", in_shardings=split, out_shardings=split[:2]
    )
    (graph,) = json.loads(graph_json(plan.record))["graphs"]
    labels = {node["id"]: node["label"] for node in graph["nodes"]}
    products = [node for node in graph["nodes"] if node["label"] == "dot_general"]
    sources = [[edge["sourceNodeId"] for edge in node["incomingEdges"]] for node in products]
    assert [[labels[name] for name in names] for names in sources] == [
        ["sine", "all-gather"],
        ["cosine", "all-gather"],
    ]
    assert ["w1" in sources[0][1], "w2" in sources[1][1]] == [True, True]


def test_what_a_loop_keeps_elsewhere_comes_from_the_op_that_makes_it():
    def step(x, w):
        def layer(y, _):
            return jnp.sin(w @ y), None

        return jax.lax.scan(layer, jnp.cos(x).T, None, length=50)[0]

    x, w = (jax.ShapeDtypeStruct((rows, 4096), jnp.float32) for rows in (512, 4096))
    plan = autoshard.plan(step, x, w, cluster="v5e:2x2", mesh="a=4", in_shardings=(P("a"), P()))
    (graph,) = json.loads(graph_json(plan.record))["graphs"]
    labels = {node["id"]: node["label"] for node in graph["nodes"]}
    (kept,) = (node for node in graph["nodes"] if node["id"].endswith(", kept elsewhere"))
    assert [labels[edge["sourceNodeId"]] for edge in kept["incomingEdges"]] == ["transpose"]


def test_rows_of_one_id_are_told_apart():
    twice = replace(RECORD, ops=(*RECORD.ops, RECORD.ops[0]))
    ids = [node["id"] for node in json.loads(graph_json(twice))["graphs"][0]["nodes"]]
    assert len(set(ids)) == len(ids)
    assert set(json.loads(node_data_json(twice))["step"]["results"]) == set(ids)


@pytest.mark.parametrize("form", ["model-explorer", "node-data"])
def test_a_file_is_written_by_the_command(form, tmp_path):
    path, output = tmp_path / "record.json", tmp_path / "out.json"
    path.write_text(RECORD.to_json())
    assert main(["explain", str(path), "--format", form, "-o", str(output)]) == 0
    found = json.loads(output.read_text())
    assert list(found) == (["label", "graphs"] if form == "model-explorer" else ["step"])
