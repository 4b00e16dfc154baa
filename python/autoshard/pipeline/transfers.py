"""Values on their way from one stage to another, also where the stages are in different processes.

Within a process ``jax.device_put`` copies. Between processes it sends, by rules of XLA's client
that jaxlib 0.10.2 has (xla/python/pjrt_ifrt/pjrt_client.cc, and transfer/pjrt_transfer_server.cc
beside it): transfers are numbered as they are called, so that each process calls each of them, in
the same order, whether it takes part or not; where a value is not, it stands as an array of its
type without parts; and what leaves a process in one call goes to one other process. Stages that
share a process, or of which a process sends to several, send device by device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from autoshard.errors import PlanError

_ADDRESS = "jax_cross_host_transfer_socket_address"

Send = Callable[[Sequence[Any]], Sequence[Any]]
"""Sends values. In a process that has no part of them they are not looked at."""


@dataclass(frozen=True, slots=True)
class SentValue:
    """A value on one stage that becomes one on another stage."""

    shape: tuple[int, ...]
    dtype: Any
    origin: NamedSharding
    target: NamedSharding
    """As ``origin``, over the mesh of the other stage."""
    is_callers: bool
    """May the caller of the step donate or delete it before it has left?"""


def without_parts(shape: Sequence[int], dtype: Any, sharding: Sharding) -> jax.Array:
    """An array as processes have it that have no part of it."""
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [], dtype=dtype)


def processes_of(*meshes: Mesh) -> set[int]:
    """The numbers of the processes that have devices of meshes."""
    return {cast(int, device.process_index) for mesh in meshes for device in mesh.devices.flat}


def is_here(mesh: Mesh) -> bool:
    """Has this process devices of a mesh?"""
    return jax.process_index() in processes_of(mesh)


def check_processes(name: str, meshes: Sequence[Mesh]) -> None:
    """Refuse stages that cannot send to each other; alike in all processes.

    Args:
        name: Of the function.
        meshes: Of the stages.

    Raises:
        PlanError: A process has no stage, or its devices send nothing to other processes.
    """
    missing = sorted(set(range(jax.process_count())) - processes_of(*meshes))
    if missing:
        raise PlanError(
            f"{name}: process {missing[0]} has no device of any stage: the pipeline has"
            f" {sum(mesh.size for mesh in meshes)} of {jax.device_count()} devices. Plan for all of"
            " them, or start only processes that have some."
        )
    places = zip(*(mesh.devices.flat for mesh in meshes), strict=True)
    crosses = any(len({device.process_index for device in place}) > 1 for place in places)
    if not crosses or not _sends_by_sockets(meshes[0].devices.flat[0]):
        return
    address = str(_setting(_ADDRESS))
    if not address or address.endswith(":0"):
        said = f"{address} has no port" if address else "no address is set"
        raise PlanError(
            f"{name}: the stages are in {jax.process_count()} processes, and devices of platform"
            f" {meshes[0].devices.flat[0].platform} send to those of other processes by sockets,"
            f" for which {said}. Give each process an address of its own, with a free port, before"
            f' JAX looks for devices: jax.config.update("{_ADDRESS}", "10.0.0.1:17007").'
        )


def _sends_by_sockets(device: Any) -> bool:
    """Does JAX send between processes by sockets, not as the devices do themselves?"""
    has_own_way = getattr(device.client, "supports_cross_host_transfers", False)
    return not has_own_way or bool(_setting("jax_force_dcn_cross_host_transfers"))


def _setting(name: str) -> Any:
    return cast(Any, jax.config).read(name)


def sender(values: Sequence[SentValue]) -> Send | None:
    """What sends values; None where this process has nothing to do with it.

    Args:
        values: All from one mesh to one other mesh.
    """
    origin, target = (cast(Mesh, side.mesh) for side in (values[0].origin, values[0].target))
    pairs = list(zip(origin.devices.flat, target.devices.flat, strict=True))
    ways = {(a.process_index, b.process_index) for a, b in pairs}
    if all(a == b for a, b in ways):
        if not is_here(origin):
            return None
        if len(ways) == 1:
            return partial(_put, [value.target for value in values])
    origins = [a for a, _ in ways]
    if len(origins) == len(set(origins)) and all(a != b for a, b in ways):
        return _BetweenProcesses(values)
    return _DeviceByDevice(values, pairs)


def _put(targets: Sequence[Sharding], arrays: Sequence[Any]) -> Sequence[Any]:
    return jax.device_put(list(arrays), list(targets))


class _Leaving:
    """Arrays as they are given to ``jax.device_put`` that sends to another process."""

    def __init__(self, values: Sequence[SentValue]) -> None:
        device = cast(Mesh, values[0].origin.mesh).devices.flat[0]
        # Sockets read an array when the other process asks for it, which may be after its owner
        # has given its memory away.
        self._copied = [value.is_callers and _sends_by_sockets(device) for value in values]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        return [
            jnp.copy(array) if is_copied else array
            for array, is_copied in zip(arrays, self._copied, strict=True)
        ]


class _BetweenProcesses:
    """All shards of a process go to one other process."""

    def __init__(self, values: Sequence[SentValue]) -> None:
        self._targets = [value.target for value in values]
        self._leaving = _Leaving(values)
        self._absent: list[jax.Array] | None = None
        """What stands for the values where they are not."""
        if not is_here(cast(Mesh, values[0].origin.mesh)):
            self._absent = [without_parts(it.shape, it.dtype, it.origin) for it in values]

    def __call__(self, arrays: Sequence[Any]) -> Sequence[Any]:
        given = self._leaving(arrays) if self._absent is None else self._absent
        return _put(self._targets, given)


class _DeviceByDevice:
    """Each shard goes to the device that has the same place in the other mesh."""

    def __init__(self, values: Sequence[SentValue], pairs: Sequence[tuple[Any, Any]]) -> None:
        self._values, self._pairs = values, pairs
        self._leaving = _Leaving(values)
        self._is_here = is_here(cast(Mesh, values[0].origin.mesh))

    def __call__(self, arrays: Sequence[Any]) -> Sequence[Any]:
        here = jax.process_index()
        given = self._leaving(arrays) if self._is_here else []
        shards = [{it.device: it.data for it in array.addressable_shards} for array in given]
        found: list[list[Any]] = [[] for _ in self._values]
        for origin, target in self._pairs:
            if origin.process_index == here:
                parts = [own[origin] for own in shards]
            elif origin.process_index == target.process_index:
                continue
            else:
                parts = [self._absent(value, origin) for value in self._values]
            made = _put([SingleDeviceSharding(target)] * len(parts), parts)
            if target.process_index == here:
                for own, part in zip(found, made, strict=True):
                    own.append(part)
        return [
            jax.make_array_from_single_device_arrays(it.shape, it.target, own, dtype=it.dtype)
            for it, own in zip(self._values, found, strict=True)
        ]

    def _absent(self, value: SentValue, device: Any) -> jax.Array:
        shape = value.origin.shard_shape(value.shape)
        return without_parts(shape, value.dtype, SingleDeviceSharding(device))


class ToldEverywhere:
    """Results of one stage that all stages get, so that each process can read them."""

    def __init__(
        self, values: Sequence[SentValue], others: Sequence[Mesh], over_all: Sequence[NamedSharding]
    ) -> None:
        """Prepare.

        Args:
            values: Whole on each device; where they go does not matter.
            others: The meshes of the other stages.
            over_all: For each value, whole on all devices.
        """
        self._over_all = over_all
        self._senders = [sender([_to(value, mesh) for value in values]) for mesh in others]

    def __call__(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The results as they are everywhere.

        Args:
            arrays: As the stage has them; without parts where it is not.
        """
        made = [send(arrays) for send in self._senders if send is not None]
        return [
            jax.make_array_from_single_device_arrays(
                own[0].shape,
                sharding,
                [shard.data for array in own for shard in array.addressable_shards],
                dtype=own[0].dtype,
            )
            for sharding, *own in zip(self._over_all, arrays, *made, strict=True)
        ]


def _to(value: SentValue, mesh: Mesh) -> SentValue:
    target = NamedSharding(mesh, value.origin.spec, memory_kind=value.origin.memory_kind)
    return SentValue(value.shape, value.dtype, value.origin, target, value.is_callers)
