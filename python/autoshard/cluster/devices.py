"""The devices of this process as those of a cluster, in the order of the cluster's dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES
from autoshard.cluster.order import Order, order_of_numbers, order_text
from autoshard.ir import warn


def devices_of(cluster: Cluster) -> list[Any] | None:
    """``jax.devices()`` where they are of the cluster's kind, else None: plans only.

    They are in the cluster's order, where they are as many. A cluster of a chip that has no name
    runs on whatever is here.
    """
    available = cast("list[Any]", jax.devices())
    family = FAMILIES.get(cluster.chip.name)
    kinds = None if family is None else {kind.lower() for kind in family.device_kinds}
    if kinds is not None and available[0].device_kind.lower() not in kinds:
        return None
    return in_order_of(cluster, available)


def in_order_of(cluster: Cluster, devices: Sequence[Any]) -> list[Any]:
    """The devices of a cluster as it numbers them, then those that are more; fewer: over the
    dims."""
    ordered = sorted(devices, key=physical_place)
    numbers = cluster.device_numbers
    if numbers is None or len(ordered) < len(numbers):
        return ordered
    return [*(ordered[number] for number in numbers), *ordered[len(numbers) :]]


def order_of_devices(cluster: Cluster, devices: Sequence[Any]) -> Order | None:
    """The order in which these devices number the cluster; None where no order is so.

    Args:
        cluster: Its own order does not count.
        devices: Each device once, as the positions of a mesh have them.
    """
    ordered = {device: number for number, device in enumerate(sorted(devices, key=physical_place))}
    return order_of_numbers([ordered[device] for device in devices], cluster.dims)


def numbered_as(cluster: Cluster, devices: Sequence[Any]) -> Cluster:
    """The cluster in the order of these devices, on whose links each axis is then costed.

    Where they are in no rows over parts of dims, that of the cluster stays, and on a torus, where
    it counts which devices are neighbours, a warning says so.

    Args:
        cluster: In no order of its own.
        devices: Each device once, as the positions of a mesh have them.
    """
    order = order_of_devices(cluster, devices)
    if order == cluster.parts:
        return cluster
    if order is not None:
        return cluster.in_order(order)
    if cluster.has_torus:
        warn(
            f"the devices of the mesh are in no order of rows over the dims of {cluster.name}; it"
            f" is costed as if they were in the order {order_text(cluster.parts)}. Give the mesh as"
            " a text to have an order chosen."
        )
    return cluster


def physical_place(device: Any) -> tuple[int, ...]:
    """Where a device is, slowest dim first, as clusters number them.

    Slice, x, y, z and core of a TPU: JAX numbers them with x fastest, so that neighbours in
    ``jax.devices()`` are not neighbours along the last dim. Process and number of others.
    """
    core = getattr(device, "core_on_chip", None)
    if core is None:  # GPUs have coords too, all the same.
        return (device.process_index, device.id)
    return (getattr(device, "slice_index", 0) or 0, *device.coords, core)
