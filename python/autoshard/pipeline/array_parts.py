"""Arrays of which stages have equal parts: one array of JAX, or one a stage, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard.errors import PlanError

_STAGE_AXIS = "stage"


def joined_sharding(parts: Sequence[NamedSharding], rank: int, dim: int) -> NamedSharding:
    """The sharding of an array of which each part lies on a mesh of its own.

    Args:
        parts: Of each part, in the order of the array; alike but for their devices.
        rank: Of the array.
        dim: Along which the parts lie one behind the other.
    """
    first = cast(Mesh, parts[0].mesh)
    axis = _STAGE_AXIS
    while axis in first.axis_names:
        axis += "_"
    mesh = Mesh(
        np.stack([_devices(part) for part in parts]),
        (axis, *first.axis_names),
        axis_types=(AxisType.Auto, *first.axis_types),
    )
    own = tuple(cast("Sequence[Any]", parts[0].spec))
    spec: list[Any] = [*own, *[None] * (rank - len(own))]
    inner = spec[dim] if isinstance(spec[dim], tuple) else (spec[dim],)
    spec[dim] = (axis, *(name for name in inner if name is not None))
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=parts[0].memory_kind)


def parts_of(
    array: jax.Array, shape: Sequence[int], parts: Sequence[NamedSharding]
) -> list[jax.Array]:
    """The parts of an array that lies as ``joined_sharding`` says, without a copy.

    Args:
        array: The whole.
        shape: Of each part.
        parts: Their shardings.

    Raises:
        PlanError: The array has nothing on some device of a part.
    """
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    missing = [device for part in parts for device in _devices(part).flat if device not in shards]
    if missing:
        raise PlanError(
            f"an array of shape {array.shape} has parts on {missing[0]} by the plan, and lies as"
            f" {array.sharding} says. Put it there: plan.place."
        )
    return [
        jax.make_array_from_single_device_arrays(
            tuple(shape), part, [shards[device] for device in _devices(part).flat]
        )
        for part in parts
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
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, shards)


def _devices(part: NamedSharding) -> Any:
    return cast(Any, part.mesh).devices
