"""The devices of this process as those of a cluster, in the order of the cluster's dims."""

from __future__ import annotations

from typing import Any, cast

import jax

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES


def devices_of(cluster: Cluster) -> list[Any] | None:
    """``jax.devices()`` where they are of the cluster's kind, else None: plans only.

    A cluster of a chip that has no name runs on whatever is here.
    """
    available = cast("list[Any]", jax.devices())
    family = FAMILIES.get(cluster.chip.name)
    kinds = None if family is None else {kind.lower() for kind in family.device_kinds}
    if kinds is not None and available[0].device_kind.lower() not in kinds:
        return None
    return sorted(available, key=physical_place)


def physical_place(device: Any) -> tuple[int, ...]:
    """Where a device is, slowest dim first, as clusters number them.

    Slice, x, y, z and core of a TPU: JAX numbers them with x fastest, so that neighbours in
    ``jax.devices()`` are not neighbours along the last dim. Process and number of others.
    """
    core = getattr(device, "core_on_chip", None)
    if core is None:  # GPUs have coords too, all the same.
        return (device.process_index, device.id)
    return (getattr(device, "slice_index", 0) or 0, *device.coords, core)
