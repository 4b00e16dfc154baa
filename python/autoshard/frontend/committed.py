"""Arguments that lie on the plan's mesh already: their shardings are pins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from autoshard.frontend.mesh import Machine
from autoshard.ir.host_memory import DEVICE
from autoshard.ir.lowering import is_traced

CommittedShardings = tuple[tuple[int, jax.sharding.NamedSharding], ...]
"""Numbers of flat arguments with their shardings."""


def committed_shardings(leaves: Sequence[Any], machine: Machine) -> CommittedShardings:
    """The shardings of arguments that were put on the mesh of a machine by its names.

    Arrays that nobody has put anywhere, or that lie on another mesh, on one device or in the memory
    of the host, say nothing.

    Args:
        leaves: Arrays, or ``jax.ShapeDtypeStruct``s with a sharding.
        machine: With the mesh that the user gave.
    """
    found: list[tuple[int, jax.sharding.NamedSharding]] = []
    are_of_mesh: dict[Any, bool] = {}
    for number, leaf in enumerate(leaves):
        sharding = _committed_sharding(leaf)
        if not isinstance(sharding, jax.sharding.NamedSharding) or not leaf.shape:
            continue
        mesh = sharding.mesh
        if mesh not in are_of_mesh:
            are_of_mesh[mesh] = _is_mesh_of(machine, mesh)
        if are_of_mesh[mesh] and sharding.memory_kind in (None, DEVICE, _default_memory(mesh)):
            found.append((number, sharding))
    return tuple(found)


def _committed_sharding(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding
    is_put = isinstance(leaf, jax.Array) and not is_traced(leaf) and leaf.committed
    return leaf.sharding if is_put else None


def _is_mesh_of(machine: Machine, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> bool:
    if (mesh.axis_names, mesh.axis_sizes) != (machine.mesh.axis_names, machine.mesh.axis_sizes):
        return False
    if machine.devices is None or isinstance(mesh, jax.sharding.AbstractMesh):
        return True
    return tuple(mesh.devices.flat) == machine.devices


def _default_memory(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> str | None:
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return None
    device: Any = mesh.devices.flat[0]
    return device.default_memory().kind
