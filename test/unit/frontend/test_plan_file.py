"""Files of plans: what is read is what was written, whole, of this version, and nothing else."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard

PartitionSpec = jax.sharding.PartitionSpec
layout = autoshard.Layout((2, 4), ("dp", "tp"))
columns = autoshard.shard(jnp.matmul, in_strategy=(layout("dp", "None"), layout("None", "tp")))
MESH = "dp=2,tp=4"


def mlp(weights, x):
    return {"y": jnp.tanh(columns(x, weights["up"]))}


WEIGHTS = {"up": jax.ShapeDtypeStruct((8, 32), jnp.float32)}
X = jax.ShapeDtypeStruct((16, 8), jnp.float32)


def test_a_saved_plan_is_the_same(tmp_path):
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.in_shardings == plan.in_shardings
    assert loaded.out_shardings == plan.out_shardings
    assert loaded.ops == plan.ops
    assert loaded.to_mlir() == plan.to_mlir()
    assert json.loads((tmp_path / "plan.json").read_text())["mesh"] == MESH


def test_a_plan_that_another_jaxlib_saved_is_read_as_text(tmp_path):
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    plan.save(tmp_path / "plan.json")
    saved = json.loads((tmp_path / "plan.json").read_text())
    saved |= {"jaxlib": "0.10.1", "module": "bytecode that this one cannot read"}
    (tmp_path / "plan.json").write_text(json.dumps(saved))
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded.in_shardings == plan.in_shardings
    assert loaded.ops == plan.ops
    assert loaded.to_mlir(debug_info=True) == plan.to_mlir(debug_info=True)


def test_a_saved_plan_keeps_the_device_order(tmp_path):
    other = autoshard.Layout((2, 4), ("dp", "tp"), (0, 2, 4, 6, 1, 3, 5, 7))
    fn = autoshard.shard(jnp.matmul, (other("dp", "None"), other("None", "tp")))
    plan = autoshard.plan(lambda x, w: fn(x, w), X, WEIGHTS["up"])
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded.in_shardings == plan.in_shardings
    assert [d.id for d in loaded.jax_mesh.devices.flat] == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("order", [[7, 6, 5, 4, 3, 2, 1, 0], [4, 5, 6, 7]])
def test_a_saved_plan_keeps_the_devices_of_a_mesh_of_jax(tmp_path, order):
    mesh = jax.sharding.Mesh(np.array(jax.devices())[order], ("d",))
    rows = PartitionSpec("d")
    plan = autoshard.plan(jnp.matmul, X, WEIGHTS["up"], mesh=mesh, in_shardings=(rows, None))
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded.jax_mesh == plan.jax_mesh
    placed = jax.device_put(jnp.zeros((16, 8)), loaded.in_shardings[0])
    assert placed.sharding.is_equivalent_to(jax.NamedSharding(mesh, rows), 2)


def test_a_saved_plan_for_devices_that_are_not_here_says_so(tmp_path):
    path = tmp_path / "plan.json"
    mesh = jax.sharding.Mesh(jax.devices()[4:], ("d",))
    autoshard.plan(jnp.tanh, X, mesh=mesh, in_shardings=PartitionSpec("d")).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device_ids": [6, 7, 8, 9]}))
    loaded = autoshard.Plan.load(path)
    assert "tanh" in str(loaded)
    with pytest.raises(autoshard.ShardingError, match=r"none with the ids 8, 9 here, only 0, 1, "):
        _ = loaded.in_shardings


def test_a_saved_plan_stays_for_its_cluster(tmp_path):
    plan = autoshard.plan(jnp.matmul, X, WEIGHTS["up"], cluster="v5e:2x4")
    assert isinstance(plan.jax_mesh, jax.sharding.AbstractMesh)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded.jax_mesh == plan.jax_mesh
    with pytest.raises(autoshard.ShardingError, match=r"the plan is for v5e:2x4, but the devices"):
        loaded.machine.needs_devices()


def test_a_plan_is_pickled_and_copied():
    plan = autoshard.plan(mlp, WEIGHTS, X, cluster="cpu:8")
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.in_shardings == plan.in_shardings
    assert copy.deepcopy({"plan": plan})["plan"] is plan


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    plan = autoshard.plan(mlp, WEIGHTS, X, mesh=MESH)
    plan.save(path)
    before = path.read_text()

    def stopped(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(autoshard.AutoshardError, match=r"plan\.json: cannot write: No space left"):
        plan.save(path)
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


class Pair(NamedTuple):
    left: Any
    right: Any


class Own:
    def __init__(self, x, scale):
        self.x, self.scale = x, scale


jax.tree_util.register_pytree_node(
    Own, lambda own: ((own.x,), ("scale", own.scale)), lambda kept, xs: Own(*xs, kept[1])
)


def test_named_tuples_and_types_of_the_users_own_survive(tmp_path):
    def both(pair, own):
        return Pair(mlp({"up": pair.left}, pair.right), own.x * own.scale)

    plan = autoshard.plan(both, Pair(WEIGHTS["up"], X), Own(X, 2), mesh=MESH)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert isinstance(loaded.in_shardings[0], Pair)
    assert loaded.in_shardings[1].scale == 2
    assert isinstance(loaded.out_shardings, Pair)


def test_a_type_that_is_not_imported_is_named_and_not_imported(tmp_path):
    path = tmp_path / "plan.json"
    autoshard.plan(lambda pair: mlp(WEIGHTS_ONES, pair.left), Pair(X, X), mesh=MESH).save(path)
    path.write_text(path.read_text().replace(f"{__name__}:Pair", "antigravity:Pair"))
    loaded = autoshard.Plan.load(path)
    with pytest.raises(autoshard.PlanError, match=r"type antigravity\.Pair, which is not imported"):
        _ = loaded.in_shardings
    assert loaded.arguments[0].name == "pair.left"


def test_a_type_that_keeps_functions_has_no_structure_in_a_file(tmp_path):
    plan = autoshard.plan(lambda own: mlp(WEIGHTS_ONES, own.x), Own(X, jnp.tanh), mesh=MESH)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.Plan.load(tmp_path / "plan.json")
    with pytest.raises(autoshard.PlanError, match=r"Own, which keeps what a file cannot"):
        _ = loaded.in_shardings
    placed = loaded.place(Own(np.ones((16, 8), np.float32), jnp.tanh))
    assert placed[0].x.sharding == plan.in_shardings[0].x


WEIGHTS_ONES = {"up": np.ones((8, 32), np.float32)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"plan\.json: no plan can be read"),
        ("{}", "no plan can be read"),
        ('{"autoshard_plan": 2}', "version 2, .* 3: it does not say for which program .* Plan ag"),
        (
            '{"autoshard_plan": 99, "written_by": "7.1"}',
            r"has version 99, .* newer ones mean\. It was written by autoshard 7\.1",
        ),
        ('{"autoshard_plan": 3}', "the plan is damaged: 'mesh'"),
    ],
)
def test_files_that_are_no_plan(tmp_path, text, said):
    path = tmp_path / "plan.json"
    with pytest.raises(autoshard.AutoshardError, match="no plan can be read"):
        autoshard.Plan.load(path)
    path.write_text(text)
    with pytest.raises(autoshard.AutoshardError, match=said):
        autoshard.Plan.load(path)


def test_a_structure_with_another_number_of_arrays_is_damaged(tmp_path):
    path = tmp_path / "plan.json"
    autoshard.plan(mlp, WEIGHTS, X, mesh=MESH).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"in_tree": {"tuple": ["*"]}}))
    with pytest.raises(autoshard.AutoshardError, match="structure of 1 arrays has 2 of them"):
        autoshard.Plan.load(path)


def test_files_with_something_changed_are_read_or_refused(tmp_path):
    path = tmp_path / "plan.json"
    autoshard.plan(mlp, WEIGHTS, X, mesh=MESH).save(path)
    whole = json.loads(path.read_text())
    chance = random.Random(5)
    strange = [None, -1, 1e300, "x", [], {}, [[1]], {"a": None}, True, "dp=0", "*"]
    refused = 0
    for _ in range(200):
        changed = json.loads(json.dumps(whole))
        at = changed
        for _ in range(3):
            key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if isinstance(at[key], dict | list) and at[key] and chance.random() < 0.7:
                at = at[key]
                continue
            at[key] = chance.choice(strange)
            break
        path.write_text(json.dumps(changed))
        try:
            autoshard.Plan.load(path)
        except autoshard.AutoshardError:
            refused += 1
    assert refused > 50
