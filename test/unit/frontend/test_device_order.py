"""The order of devices that is chosen for a mesh without devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.cluster import Cluster
from autoshard.cluster.chips import Constant
from autoshard.cluster.order import order_text, orders_of
from autoshard.sharding import Mesh

Type = jax.ShapeDtypeStruct


def step(params: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        h = x
        for up, down in params:
            h = h + jax.nn.relu(h @ up) @ down
        return jnp.sum((h - y) ** 2) / 2**14

    return jax.tree.map(lambda p, g: p - g / 8, params, jax.grad(loss)(params))


def types_of(width: int, hidden: int, rows: int, layers: int = 2, dtype: Any = jnp.bfloat16) -> Any:
    layer = Type((width, hidden), dtype), Type((hidden, width), dtype)
    return [layer] * layers, Type((rows, width), dtype), Type((rows, width), dtype)


HALVES = types_of(64, 256, 2 * 257, 1, jnp.float32)
"""A batch that two devices can share, and no more."""


MESH_UTILS = {
    "v5e:4x8 data=8,model=4": (("y", 8), ("x", 4)),
    "v5e:4x8 data=2,model=16": (("y", 2), ("x", 4), ("y", 4)),
    "v5p:4x4x4 data=4,model=16": (("z", 4), ("x", 4), ("y", 4)),
    "v5p:4x4x4 data=2,fsdp=8,model=4": (("z", 2), ("y", 4), ("z", 2), ("x", 4)),
}
"""What ``mesh_utils.create_device_mesh`` makes of them; cluster/test_order.py reads it there."""


@pytest.mark.parametrize(("asked", "order"), MESH_UTILS.items())
def test_no_order_of_mesh_utils_is_faster_than_the_one_that_is_chosen(
    asked: str, order: Any
) -> None:
    name, mesh = asked.split()
    cluster, types = Cluster.parse(name), types_of(4096, 16384, 4096)
    chosen = autoshard.plan(step, *types, mesh=mesh, cluster=cluster)
    theirs = autoshard.plan(step, *types, mesh=mesh, cluster=cluster.in_order(order))
    assert chosen.step_seconds <= 1.01 * theirs.step_seconds
    assert theirs.summary is not None
    assert theirs.summary.read_cluster().order == order


def test_the_order_that_is_chosen_is_the_fastest_of_all() -> None:
    cluster, mesh, types = Cluster.parse("v5e:4x8"), "data=8,model=4", types_of(4096, 16384, 4096)
    chosen = autoshard.plan(step, *types, mesh=mesh, cluster=cluster)
    seconds = {
        order_text(order): autoshard.plan(
            step, *types, mesh=mesh, cluster=cluster.in_order(order)
        ).step_seconds
        for order in orders_of(Mesh.parse(mesh), cluster.dims)
    }
    assert chosen.summary is not None
    assert order_text(chosen.summary.read_cluster().order) == min(seconds, key=seconds.__getitem__)
    assert chosen.step_seconds < 0.9 * seconds["x=4, y=8"]
    assert "axis data=8 cuts" in str(chosen)
    assert "on 2 of x, 4 of y" in str(chosen)


def slow_network() -> Cluster:
    cluster = Cluster.parse("cpu:2x4")
    host, cpu = cluster.dims
    slow = replace(host, bandwidth=Constant(host.bandwidth.value / 10, "test"))
    return replace(cluster, dims=(slow, cpu))


@pytest.fixture(scope="module")
def turned() -> Any:
    """``model`` within hosts, although it comes first in the mesh."""
    return autoshard.jit(step, mesh="model=4,data=2", cluster=slow_network()), HALVES


def test_the_mesh_of_jax_has_the_devices_in_the_order(turned: Any) -> None:
    planned, types = turned
    plan = planned.plan(*types)
    assert order_text(plan.summary.read_cluster().order) == "cpu=4, host=2"
    mesh = plan.machine.jax_mesh()
    assert [[device.id for device in row] for row in mesh.devices] == [
        [0, 4], [1, 5], [2, 6], [3, 7],
    ]  # fmt: skip


def test_what_is_computed_in_an_order_is_what_one_device_computes(turned: Any) -> None:
    planned, types = turned
    chance = np.random.default_rng(0)
    args = jax.tree.map(lambda one: chance.integers(-1, 2, one.shape).astype("float32"), types)
    found, expected = planned(*args), jax.jit(step)(*args)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    ((up, _),) = found
    assert {device.id for device in up.sharding.device_set} == set(range(8))


def test_a_plan_that_is_saved_keeps_the_order(turned: Any, tmp_path: Any) -> None:
    planned, types = turned
    plan = planned.plan(*types)
    plan.save(tmp_path / "plan.json")
    again = autoshard.Plan.load(tmp_path / "plan.json")
    assert again.machine == plan.machine
    assert again.summary == plan.summary


def test_a_mesh_with_devices_is_costed_as_its_devices_lie() -> None:
    devices = np.array(jax.devices())
    across = jax.sharding.Mesh(devices.reshape(4, 2), ("model", "data"))
    within = jax.sharding.Mesh(devices.reshape(2, 4).T, ("model", "data"))
    slow, fast = (
        autoshard.plan(step, *HALVES, mesh=mesh, cluster=slow_network(), mode="auto")
        for mesh in (across, within)
    )
    assert fast.step_seconds < slow.step_seconds
    assert fast.machine.devices == tuple(within.devices.flat)
    assert slow.machine.devices == tuple(across.devices.flat)


def test_devices_in_no_order_on_a_torus_are_warned_of() -> None:
    types = types_of(64, 256, 512)
    devices = np.array(jax.devices())[[0, 1, 2, 3, 7, 6, 5, 4]]
    with pytest.warns(autoshard.AutoshardWarning, match="in no order of rows over the dims of"):
        autoshard.plan(step, *types, mesh=jax.sharding.Mesh(devices, ("data",)), cluster="v5e:2x4")


def test_a_mesh_that_fits_the_dims_in_another_order_only_is_planned() -> None:
    plan = autoshard.plan(step, *types_of(96, 384, 96), mesh="a=4,b=6", cluster="h100:3x8")
    assert plan.summary is not None
    assert order_text(plan.summary.read_cluster().order) == "gpu=4, node=3, gpu=2"


def test_a_plan_that_is_kept_is_run_in_its_order(turned: Any, tmp_path: Any) -> None:
    planned, types = turned
    planned.plan(*types).save(tmp_path / "plan.json")
    again = autoshard.jit(step, plan=tmp_path / "plan.json")
    args = jax.tree.map(lambda one: jnp.ones(one.shape, one.dtype), types)
    jax.tree.map(np.testing.assert_array_equal, again(*args), jax.jit(step)(*args))


def test_within_another_program_a_plan_has_its_order(turned: Any) -> None:
    planned, types = turned
    args = jax.tree.map(lambda one: jnp.ones(one.shape, one.dtype), types)
    found = jax.jit(lambda *args: planned(*args))(*args)
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(step)(*args))
    order = planned.plan(*types).machine.devices
    ((up, _),) = found
    assert tuple(up.sharding.mesh.devices.flat) == order


def test_under_a_time_limit_other_orders_have_what_the_first_search_leaves() -> None:
    options: Any = {"mesh": "model=4,data=2", "cluster": slow_network(), "mode": "auto"}
    plenty = autoshard.plan(step, *HALVES, **options, time_limit=300)
    nothing = autoshard.plan(step, *HALVES, **options, time_limit=1e-6)
    assert plenty.summary is not None
    assert nothing.summary is not None
    assert order_text(plenty.summary.read_cluster().order) == "cpu=4, host=2"
    assert nothing.summary.read_cluster().parts == slow_network().parts


def test_a_planner_has_the_order_that_is_chosen_for_its_first_plan(turned: Any) -> None:
    planned, types = turned
    planner = autoshard.Planner(step, *types, mesh="model=4,data=2", cluster=slow_network())
    expected = planned.plan(*types)
    assert planner.plan.summary is not None
    assert planner.plan.summary.read_cluster() == expected.summary.read_cluster()
    assert planner.plan.step_seconds == expected.step_seconds
    spec = jax.sharding.PartitionSpec
    again = planner.replan(in_shardings=(None, spec("data"), None))
    assert again.machine.devices == planner.plan.machine.devices
    assert again.summary is not None
    assert again.summary.read_cluster() == planner.plan.summary.read_cluster()
    assert str(again.arguments[2].sharding) == "[{data}, {}]"


def test_what_follows_from_pins_is_laid_where_it_costs_least() -> None:
    spec = jax.sharding.PartitionSpec
    pins = [(spec(None, "model"), spec("model"))], spec("data"), spec("data")
    planned = autoshard.jit(
        step,
        mesh="model=4,data=2",
        cluster=slow_network(),
        mode="semi_auto",
        in_shardings=pins,
    )
    plan = planned.plan(*HALVES)
    assert plan.summary is not None
    assert order_text(plan.summary.read_cluster().order) == "cpu=4, host=2"
    args = jax.tree.map(lambda one: jnp.ones(one.shape, one.dtype), HALVES)
    jax.tree.map(np.testing.assert_array_equal, planned(*args), jax.jit(step)(*args))
