"""Orders of devices: which dims an axis of a mesh lies on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jax.experimental import mesh_utils

from autoshard.cluster import Cluster
from autoshard.cluster.devices import order_of_devices
from autoshard.cluster.order import device_numbers, order_of_numbers, order_text, orders_of
from autoshard.errors import ClusterError
from autoshard.sharding import Mesh


@pytest.mark.parametrize(
    ("cluster", "mesh", "orders"),
    [
        ("v5e:4x8", "data=8,model=4", ["x=4, y=8", "x=2, y=4, x=2, y=2", "y=8, x=4"]),
        ("v5p:4x4x4", "data=4,model=16", ["x=4, y=4, z=4", "x=2, y=2, x=2, y=2, z=4"]),
        ("h100:3x8", "a=4,b=6", ["gpu=4, node=3, gpu=2"]),
        ("cpu:8", "a=2,b=4", ["cpu=8"]),
        ("v5e:4x8", "a=32", ["x=4, y=8"]),
        ("h100:3x8", "a=5,b=5", []),
    ],
)
def test_axes_lie_on_parts_of_dims_in_every_way_that_may_cost_something_else(
    cluster: str, mesh: str, orders: list[str]
) -> None:
    dims = Cluster.parse(cluster).dims
    assert [order_text(order) for order in orders_of(Mesh.parse(mesh), dims)] == orders


@pytest.mark.parametrize("mesh", ["data=16,model=16", "a=2,b=8,c=16", "a=4,b=4,c=4,d=4"])
def test_numbers_of_an_order_tell_the_order(mesh: str) -> None:
    dims = Cluster.parse("v5p:4x4x8*2").dims
    for order in orders_of(Mesh.parse(mesh), dims):
        numbers = device_numbers(order, dims)
        assert sorted(numbers) == list(range(256))
        assert order_of_numbers(numbers, dims) == order


def test_numbers_in_no_rows_over_parts_of_dims_are_no_order() -> None:
    dims = Cluster.parse("v5e:2x4").dims
    for numbers in ([0, 1, 2, 3, 7, 6, 5, 4], [1, 0, 2, 3, 4, 5, 6, 7], [0, 2, 1, 3, 4, 6, 5, 7]):
        assert order_of_numbers(numbers, dims) is None


def test_an_axis_covers_what_the_order_says() -> None:
    cluster, mesh = Cluster.parse("v5e:4x8"), Mesh.parse("data=8,model=4")
    assert cluster.covered_by(mesh) == {"data": "x, 2 of y", "model": "4 of y"}
    turned = cluster.in_order((("y", 8), ("x", 4)))
    assert turned.covered_by(mesh) == {"data": "y", "model": "x"}
    assert str(turned.level_mesh()) == "y0=2,y1=2,y2=2,x0=2,x1=2"
    core = turned.to_core(mesh)
    assert [[(part.dim, part.size) for part in axis] for axis in core.axes] == [[(1, 8)], [(0, 4)]]


def tpus(cluster: Cluster, kind: str) -> list[Any]:
    """Devices as JAX numbers them: x fastest."""
    sizes = [dim.size for dim in cluster.dims]
    places = [tuple(reversed(at)) for at in np.ndindex(*reversed(sizes))]
    return [
        SimpleNamespace(
            id=number,
            platform="tpu",
            device_kind=kind,
            coords=[*place, 0][:3],
            core_on_chip=0,
            process_index=0,
            slice_index=0,
        )
        for number, place in enumerate(places)
    ]


@pytest.mark.parametrize(
    ("name", "kind", "shape", "order"),
    [
        ("v5p:4x4x4", "TPU v5", (4, 16), "z=4, x=4, y=4"),
        ("v5p:4x4x4", "TPU v5", (2, 8, 4), "z=2, y=4, z=2, x=4"),
        ("v5p:4x4x8", "TPU v5", (8, 16), "z=8, x=4, y=4"),
        ("v5e:4x8", "TPU v5 lite", (8, 4), "y=8, x=4"),
    ],
)
def test_the_order_of_a_mesh_of_jaxs_mesh_utils_is_read(
    name: str, kind: str, shape: tuple[int, ...], order: str
) -> None:
    cluster = Cluster.parse(name)
    devices = mesh_utils.create_device_mesh(
        shape, tpus(cluster, kind), allow_split_physical_axes=True
    )
    hashable = [SimpleDevice(**vars(device)) for device in devices.flat]
    found = order_of_devices(cluster, hashable)
    assert found is not None
    assert order_text(found) == order


class SimpleDevice(SimpleNamespace):
    def __hash__(self) -> int:
        return self.id


def test_a_file_says_the_order(tmp_path: Path) -> None:
    path = tmp_path / "turned.toml"
    path.write_text('base = "v5e:4x8"\norder = ["y=8", "x=4"]\n')
    cluster = Cluster.of(path)
    assert cluster.order == (("y", 8), ("x", 4))
    again = tmp_path / "again.toml"
    again.write_text(cluster.to_toml())
    assert Cluster.of(again) == cluster
    assert "devices numbered over y=8, x=4" in cluster.describe()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ('"y=8"', r"it is no order of devices\. Write \[\"y=8\", \"x=4\"\]"),
        ('["y=8", "x"]', "it is no order of devices"),
        ('["y=8", "w=4"]', 'there is no dim "w", only x, y'),
        ('["y=8", "x=2"]', "its parts of dim x make 2 devices, but there are 4"),
        ('["y=8", "x=4", "x=1"]', r"a part of dim x has size 1\. Leave out parts below 2"),
    ],
)
def test_a_bad_order_is_refused(order: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(f'base = "v5e:4x8"\norder = {order}\n')
    with pytest.raises(ClusterError, match=said):
        Cluster.of(path)


def test_parts_of_a_cluster_with_an_order_are_refused() -> None:
    from autoshard.cluster.failures import remaining
    from autoshard.cluster.stages import cluster_of_a_stage
    from autoshard.errors import PlanError

    cluster = replace(Cluster.parse("h100:2x8"), order=(("gpu", 8), ("node", 2)))
    with pytest.raises(PlanError, match=r"the order gpu=8, node=2.* Leave the order out"):
        cluster_of_a_stage(cluster, 2)
    with pytest.raises(ClusterError, match=r"the order gpu=8, node=2.* Leave the order out"):
        list(remaining(cluster, 1))
