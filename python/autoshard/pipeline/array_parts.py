"""Arrays of which stages have equal parts: one array of JAX, or one a stage, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard.errors import PlanError
from autoshard.sharding import stage_axis


def joined_sharding(parts: Sequence[NamedSharding], rank: int, dim: int) -> NamedSharding:
    """The sharding of an array of which each part lies on a mesh of its own.

    Args:
        parts: Of each part, in the order of the array; alike but for their devices.
        rank: Of the array.
        dim: Along which the parts lie one behind the other.
    """
    mesh = joined_mesh([cast(Mesh, part.mesh) for part in parts])
    axis = mesh.axis_names[0]
    own = tuple(cast("Sequence[Any]", parts[0].spec))
    spec: list[Any] = [*own, *[None] * (rank - len(own))]
    inner = spec[dim] if isinstance(spec[dim], tuple) else (spec[dim],)
    spec[dim] = (axis, *(name for name in inner if name is not None))
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=parts[0].memory_kind)


def sharding_over_all(meshes: Sequence[Mesh]) -> NamedSharding:
    """The sharding of an array that is whole on each device of all stages.

    Args:
        meshes: Of the stages.
    """
    return NamedSharding(joined_mesh(meshes), PartitionSpec())


def joined_mesh(meshes: Sequence[Mesh]) -> Mesh:
    """One mesh of several, along an axis that comes first."""
    first = meshes[0]
    return Mesh(
        np.stack([mesh.devices for mesh in meshes]),
        (stage_axis(first.axis_names), *first.axis_names),
        axis_types=(AxisType.Auto, *first.axis_types),
    )


def parts_of(
    array: jax.Array, shape: Sequence[int], parts: Sequence[NamedSharding]
) -> list[jax.Array]:
    """The parts of an array that lies as ``joined_sharding`` says, without a copy.

    A part on devices of other processes is an array without parts.

    Args:
        array: The whole.
        shape: Of each part.
        parts: Their shardings.

    Raises:
        PlanError: The array has nothing on some device of a part.
    """
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    here = [_devices_here(part) for part in parts]
    missing = [device for devices in here for device in devices if device not in shards]
    if missing:
        raise PlanError(
            f"an array of shape {array.shape} has parts on {missing[0]} by the plan, and lies as"
            f" {array.sharding} says. Put it there: plan.place."
        )
    return [
        jax.make_array_from_single_device_arrays(
            tuple(shape), part, [shards[device] for device in devices], dtype=array.dtype
        )
        for part, devices in zip(parts, here, strict=True)
    ]


def joined(parts: Sequence[jax.Array], shape: Sequence[int], sharding: NamedSharding) -> jax.Array:
    """The array of which these are the parts, without a copy.

    Args:
        parts: In the order of the array, each where ``sharding`` has it; JAX raises ValueError
            for others.
        shape: Of the whole.
        sharding: As ``joined_sharding`` makes it.
    """
    shards = [shard.data for part in parts for shard in part.addressable_shards]
    return jax.make_array_from_single_device_arrays(
        tuple(shape), sharding, shards, dtype=parts[0].dtype
    )


def _devices_here(part: NamedSharding) -> list[Any]:
    """Those of this process."""
    here, devices = jax.process_index(), cast(Mesh, part.mesh).devices
    return [device for device in devices.flat if device.process_index == here]
