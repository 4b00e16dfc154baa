"""What users may write for a mesh, and which devices it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np

from autoshard.cluster import Cluster
from autoshard.cluster.devices import devices_of, numbered_as
from autoshard.errors import PlanError, ShardingError
from autoshard.sharding import Axis, Mesh, Sharding, format_sharding
from autoshard.sharding.strategy import parse_mark

MeshLike = str | Mapping[str, int] | Mesh | jax.sharding.Mesh | jax.sharding.AbstractMesh
"""``"dp=2,tp=4"``, ``{"dp": 2, "tp": 4}``, a mesh of autoshard or of JAX."""


MOST_DEVICES = 1 << 20
"""Most devices of a mesh. They are listed, which takes a second for so many."""


@dataclass(frozen=True)
class Machine:
    """A mesh and the devices that its numbers stand for."""

    mesh: Mesh
    """In the order of the assignment: without ``device_ids``."""
    devices: tuple[Any, ...] | None
    """The program's assignment of ``jax.Device``s; None where there are too few: plans only."""
    numbers: tuple[int, ...] | None = None
    """The number that each device of the assignment has in layouts; None: ``0, 1, 2, ..``."""
    cluster: str | None = None
    """The cluster that the devices would have to be; None: any devices."""
    missing: tuple[int, ...] = ()
    """Ids of devices that a plan file names and that are not here."""
    explicit: frozenset[str] = frozenset()
    """Axes of JAX's type Explicit: types of values say how they are cut along them."""

    @property
    def chosen_ids(self) -> tuple[int, ...] | None:
        """Ids of devices that the user chose; None: those that anyone with the mesh would take."""
        if self.devices is None or self.cluster is not None:
            return None
        if self.devices == machine_of(Mesh(self.mesh.axes, self.numbers)).devices:
            return None
        return tuple(device.id for device in self.devices)

    def with_mesh(self, mesh: Mesh) -> Machine:
        """The same devices under a finer mesh."""
        explicit = self.explicit & frozenset(mesh.axis_names)
        return replace(self, mesh=mesh, explicit=explicit)

    def jax_mesh(self) -> jax.sharding.Mesh | jax.sharding.AbstractMesh:
        """To lower under, and for ``NamedSharding``s; abstract where there are too few devices.

        JAX takes the device assignment from its flat order.

        Raises:
            ShardingError: The plan is for devices that are not here.
        """
        self._check_missing()
        kinds = jax.sharding.AxisType
        types = tuple(
            kinds.Explicit if name in self.explicit else kinds.Auto for name in self.mesh.axis_names
        )
        if self.devices is not None:
            return self.mesh.to_jax(self.devices, types)
        return jax.sharding.AbstractMesh(
            self.mesh.axis_sizes, self.mesh.axis_names, axis_types=types
        )

    def check_mark(self, text: str) -> None:
        """Refuse a layout that means other devices by the names of the mesh.

        Raises:
            ShardingError: An axis has another size, or the axes another order.
        """
        mark = parse_mark(text)
        if not isinstance(mark, Sharding):
            return
        said = dict(zip(mark.mesh.axis_names, mark.mesh.axis_sizes, strict=True))
        sizes = dict(zip(self.mesh.axis_names, self.mesh.axis_sizes, strict=True))
        shared = {name: size for name, size in sizes.items() if name in said}
        in_layout = {name: said[name] for name in said if name in shared}
        if list(shared.items()) != list(in_layout.items()):
            raise ShardingError(
                f"the layout has the device matrix {_matrix(said)}, but the mesh is"
                f" {_matrix(sizes)}: the same names mean other devices. Give the layout's mesh,"
                f' mesh="{_matrix(said)}", or other names.'
            )

    def mark_text(self, text: str) -> str:
        """The text of a mark, its devices numbered as in the assignment."""
        mark = parse_mark(text)
        if self.numbers is None or not isinstance(mark, Sharding):
            return text
        place = {number: place for place, number in enumerate(self.numbers)}
        order = tuple(place[number] for number in mark.mesh.device_order().tolist())
        return format_sharding(replace(mark, mesh=Mesh(mark.mesh.axes, order)), with_mesh=True)

    def needs_devices(self) -> None:
        """Raise ShardingError if there are no such devices, or too few, to run."""
        if self.devices is not None:
            return
        self._check_missing()
        available = cast("list[Any]", jax.devices())
        self.mesh.check_device_count(len(available))
        raise ShardingError(
            f"the plan is for {self.cluster}, but the devices here are"
            f" {available[0].device_kind}. Run it there, or plan for these: cluster="
            f'"{available[0].platform}:{len(available)}".'
        )

    def _check_missing(self) -> None:
        if self.missing:
            here = [device.id for device in cast("list[Any]", jax.devices())]
            raise ShardingError(
                f"the plan is for devices of a mesh of its own, but there are none with the ids"
                f" {_some(self.missing)} here, only {_some(here)}. Use it where those devices are,"
                " or plan again."
            )


def _matrix(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def _some(numbers: Sequence[int]) -> str:
    return ", ".join([*map(str, numbers[:8]), *([".."] if len(numbers) > 8 else [])])


def read_machine(mesh: MeshLike) -> Machine:
    """The mesh that the user means, on the first of ``jax.devices()`` unless it brings its own.

    Raises:
        ParseError: A text of another form.
        ShardingError: A mesh that cannot be, or something that is no mesh.
    """
    if isinstance(mesh, jax.sharding.Mesh):
        devices = list(np.asarray(mesh.devices).flat)
        return Machine(Mesh.from_jax(mesh), tuple(devices), explicit=explicit_axes(mesh))
    return replace(machine_of(_read(mesh)), explicit=explicit_axes(mesh))


def explicit_axes(mesh: MeshLike) -> frozenset[str]:
    """Names of axes of JAX's type Explicit; only meshes of JAX have them."""
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return frozenset()
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(str(name) for name, type_ in types if type_ is jax.sharding.AxisType.Explicit)


def machine_of(mesh: Mesh) -> Machine:
    """``mesh`` on the first of ``jax.devices()``, if there are enough."""
    available = cast("list[Any]", jax.devices())
    devices = None
    if len(available) >= mesh.size:
        devices = tuple(available[number] for number in mesh.device_order().tolist())
    return Machine(Mesh(mesh.axes), devices, mesh.device_ids)


def machine_of_ids(mesh: Mesh, ids: Sequence[int]) -> Machine:
    """``mesh`` on the devices with these ids, in this order, if they are here."""
    available = {device.id: device for device in cast("list[Any]", jax.devices())}
    missing = tuple(number for number in ids if number not in available)
    devices = None if missing else tuple(available[number] for number in ids)
    return Machine(Mesh(mesh.axes), devices, mesh.device_ids, missing=missing)


def machine_of_cluster(cluster: Cluster, mesh: MeshLike) -> Machine:
    """``mesh`` on devices of ``cluster``, if those are here, in the order of its dims.

    Raises:
        ShardingError: The mesh has another number of devices, or is none.
    """
    if isinstance(mesh, jax.sharding.Mesh):
        machine = read_machine(mesh)
    else:
        wanted = _read(mesh)
        available = devices_of(cluster)
        devices = None
        if available is not None and len(available) >= wanted.size:
            devices = tuple(available[number] for number in wanted.device_order().tolist())
        machine = Machine(
            Mesh(wanted.axes),
            devices,
            wanted.device_ids,
            cluster.name,
            explicit=explicit_axes(mesh),
        )
    if machine.mesh.size != cluster.num_devices:
        raise ShardingError(
            f"mesh {machine.mesh} has {machine.mesh.size} devices, the cluster {cluster.name} has"
            f" {cluster.num_devices}. Give a mesh or a cluster of another size."
        )
    return machine


def as_laid(cluster: Cluster, machine: Machine) -> Cluster:
    """The cluster in the order in which a mesh that brings its own devices numbers them."""
    if len(cluster.dims) < 2 or machine.devices is None or machine.cluster is not None:
        return cluster
    return numbered_as(cluster, machine.devices)


def cluster_of(machine: Machine) -> Cluster:
    """The cluster of all devices here, if the machine is on all of them.

    Raises:
        PlanError: It is on some of them only, or on none.
        ClusterError: They are of a kind that nobody knows.
    """
    available = cast("list[Any]", jax.devices())
    if machine.devices is None or len(machine.devices) != len(available):
        raise PlanError(
            f"the automatic mode needs to know the machines behind mesh {machine.mesh}: it has"
            f" {machine.mesh.size} devices, here are {len(available)}"
            f" ({available[0].device_kind}). Give cluster=, such as"
            f' "{available[0].platform}:{machine.mesh.size}" or "v5e:4x4".'
        )
    return Cluster.detect()


def _read(mesh: Any) -> Mesh:
    found = _read_any(mesh)
    if found.size > MOST_DEVICES:
        raise ShardingError(
            f"mesh {found} has {found.size} devices, {MOST_DEVICES} are the most that are planned"
            " for. Make its axes smaller."
        )
    return found


def _read_any(mesh: Any) -> Mesh:
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return Mesh.from_jax(mesh)
    if isinstance(mesh, Mapping):
        sizes = cast("Mapping[str, int]", mesh)
        return Mesh(tuple(Axis(name, size) for name, size in sizes.items()))
    raise ShardingError(
        f'mesh is {mesh!r}. Use a text such as "dp=2,tp=4", a dict such as {{"dp": 2, "tp": 4}},'
        " or a mesh of JAX."
    )


def meshes_of_marks(texts: Sequence[str]) -> list[Mesh]:
    """The meshes of the layouts among marks, each once."""
    said = [parse_mark(text) for text in dict.fromkeys(texts)]
    return list(dict.fromkeys(mark.mesh for mark in said if isinstance(mark, Sharding)))


def mesh_of_marks(texts: Sequence[str], name: str) -> Mesh:
    """The common refinement of the meshes of all layouts in a program.

    Args:
        texts: What the program's marks say.
        name: The function, for errors.

    Raises:
        PlanError: No mark has a mesh.
        ShardingError: The meshes have no common refinement.
    """
    meshes = meshes_of_marks(texts)
    if not meshes:
        raise PlanError(
            f"{name}: no mesh is given, and no Layout in the program has one. Give"
            ' mesh="dp=2,tp=4", or use autoshard.Layout in autoshard.shard.'
        )
    return Mesh.common_refinement(meshes)
