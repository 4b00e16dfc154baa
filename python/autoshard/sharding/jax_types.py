"""Meshes and shardings to and from JAX's types; imports jax only when called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from autoshard.errors import ShardingError
from autoshard.sharding.mesh import Axis, Mesh
from autoshard.sharding.sharding import AxisRef, Sharding

if TYPE_CHECKING:
    import jax


def mesh_from_jax(
    jax_mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    assignment: Sequence[Any] | None = None,
) -> Mesh:
    """See :meth:`Mesh.from_jax`."""
    names = cast("tuple[object, ...]", jax_mesh.axis_names)
    for name in names:
        if not isinstance(name, str):
            raise ShardingError(
                f"mesh axis name {name!r} is a {type(name).__name__}; sharding texts can only hold"
                " strings. Name the axis by a string."
            )
    axes = tuple(
        Axis(str(name), int(size)) for name, size in zip(names, jax_mesh.axis_sizes, strict=True)
    )
    if assignment is None:
        return Mesh(axes)
    import jax

    if isinstance(jax_mesh, jax.sharding.AbstractMesh):
        raise ShardingError(
            "an abstract mesh has no devices, so a device assignment says nothing about it."
            " Leave the assignment out."
        )
    number = {device: index for index, device in enumerate(assignment)}
    used = list(np.asarray(jax_mesh.devices).flat)
    missing = [device for device in used if device not in number]
    if missing:
        raise ShardingError(
            f"device {missing[0]} of the mesh is not among the {len(number)} devices of the"
            " program. Build both from the same devices."
        )
    return Mesh(axes, tuple(number[device] for device in used))


def mesh_to_jax(
    mesh: Mesh, devices: Sequence[Any] | None = None, axis_types: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """See :meth:`Mesh.to_jax`."""
    import jax

    available: list[Any] = list(cast(Any, jax).devices() if devices is None else devices)
    mesh.check_device_count(len(available))
    grid = np.empty(mesh.size, dtype=object)
    grid[:] = [available[number] for number in mesh.device_order().tolist()]
    types = tuple(axis_types or ()) or (jax.sharding.AxisType.Auto,) * len(mesh.axes)
    return jax.sharding.Mesh(grid.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=types)


def to_partition_spec(sharding: Sharding) -> jax.sharding.PartitionSpec:
    """``PartitionSpec`` with one entry a dim; dims that are open and uncut are ``UNCONSTRAINED``.

    Raises:
        ShardingError: The sharding uses what a ``PartitionSpec`` cannot say: sub-axes, manual
            axes, or an open dim that is cut already.
    """
    import jax

    spec_type = cast(Any, jax.sharding.PartitionSpec)
    entries = [_spec_entry(sharding, dim, spec_type.UNCONSTRAINED) for dim in range(sharding.rank)]
    if sharding.manual:
        raise ShardingError(
            f"sharding {sharding} has manual axes, which a PartitionSpec cannot say."
            " Use it inside jax.shard_map over these axes."
        )
    if not sharding.unreduced:
        return spec_type(*entries)
    return spec_type(*entries, unreduced={_whole_name(sharding, r) for r in sharding.unreduced})


def _spec_entry(sharding: Sharding, dim: int, unconstrained: object) -> object:
    names = tuple(_whole_name(sharding, ref) for ref in sharding.dims[dim])
    if not sharding.open_dims[dim]:
        return (names[0] if len(names) == 1 else names) if names else None
    if names:
        raise ShardingError(
            f"dim {dim} of sharding {sharding} is cut and open, which a PartitionSpec cannot say."
            " Close the dims first (with_dims_closed)."
        )
    return unconstrained


def _whole_name(sharding: Sharding, ref: AxisRef) -> str:
    if ref.size is not None:
        raise ShardingError(
            f"sharding {sharding} uses the sub-axis {ref}, which a PartitionSpec cannot say."
            " Use with_whole_axes() and its mesh."
        )
    return ref.name


def to_named_sharding(
    sharding: Sharding,
    jax_mesh: jax.sharding.Mesh | None = None,
    memory_kind: str | None = None,
) -> jax.sharding.NamedSharding:
    """A ``NamedSharding`` with the same placement.

    Args:
        sharding: What to convert.
        jax_mesh: Its mesh, for example ``sharding.mesh.to_jax()``, which is the default.
        memory_kind: Passed on.

    Raises:
        ShardingError: As for :func:`to_partition_spec`, or the meshes have different axes.
    """
    import jax

    chosen = sharding.mesh.to_jax() if jax_mesh is None else jax_mesh
    axes = tuple(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
    if axes != tuple(zip(chosen.axis_names, chosen.axis_sizes, strict=True)):
        raise ShardingError(
            f'sharding {sharding} is on mesh "{sharding.mesh}", but the JAX mesh is'
            f' "{mesh_from_jax(chosen)}". Use sharding.on(Mesh.from_jax(mesh)) first.'
        )
    return jax.sharding.NamedSharding(chosen, to_partition_spec(sharding), memory_kind=memory_kind)


def from_partition_spec(spec: jax.sharding.PartitionSpec, mesh: Mesh, rank: int) -> Sharding:
    """The sharding that ``spec`` means for a value of ``rank`` dims; missing entries are None.

    Axes that ``spec`` calls ``reduced`` hold equal values, hence are replicated.

    Raises:
        ShardingError: More entries than dims, an axis not in the mesh, or an axis used twice.
    """
    import jax

    unconstrained: object = cast(Any, jax.sharding.PartitionSpec).UNCONSTRAINED
    entries = cast("list[object]", list(cast(Any, spec).partitions))
    if len(entries) > rank:
        raise ShardingError(
            f"{spec} has {len(entries)} entries, but the value has {rank} dims."
            " Give at most one entry for every dim."
        )
    entries += [None] * (rank - len(entries))
    dims = [_refs_of_entry(entry, unconstrained) for entry in entries]
    unreduced = cast("frozenset[str]", getattr(spec, "unreduced", ()))
    return Sharding(
        mesh,
        tuple(dims),
        tuple(entry is unconstrained for entry in entries),
        unreduced=tuple(AxisRef(name) for name in unreduced),
    )


def _refs_of_entry(entry: object, unconstrained: object) -> tuple[AxisRef, ...]:
    if entry is None or entry is unconstrained:
        return ()
    names = cast("tuple[str, ...]", entry if isinstance(entry, tuple) else (entry,))
    return tuple(AxisRef(name) for name in names)


def from_named_sharding(
    named: jax.sharding.NamedSharding,
    rank: int,
    assignment: Sequence[Any] | None = None,
) -> Sharding:
    """The sharding without devices; ``assignment`` as for :meth:`Mesh.from_jax`.

    Raises:
        ShardingError: As for :func:`from_partition_spec`.
    """
    return from_partition_spec(named.spec, mesh_from_jax(named.mesh, assignment), rank)
