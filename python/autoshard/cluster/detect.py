"""Which cluster the devices of this process are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from autoshard.cluster.chips import FAMILIES, Family, Torus
from autoshard.errors import ClusterError

_WAY_OUT = "Give the cluster by name or as a TOML file."


def detected_name(devices: Sequence[Any] | None = None) -> str:
    """The name of the cluster that ``devices`` are.

    Args:
        devices: ``jax.Device``s; None: ``jax.devices()``.

    Raises:
        ClusterError: Devices of several kinds, of one that nobody knows, or that do not fill a
            slice or their nodes.
    """
    if devices is None:
        import jax

        devices = cast("list[Any]", jax.devices())
    kinds = Counter(device.device_kind for device in devices)
    if len(kinds) != 1:
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
        raise ClusterError(f"a cluster has devices of one kind, but these are {shown}. {_WAY_OUT}")
    family = _family(next(iter(kinds)))
    if isinstance(family.shape, Torus):
        return _slice_name(family, family.shape, devices)
    return _node_name(family, devices)


def _family(kind: str) -> Family:
    for family in FAMILIES.values():
        if kind in family.device_kinds:
            return family
    known = ", ".join(kind for family in FAMILIES.values() for kind in family.device_kinds)
    raise ClusterError(
        f'devices of kind "{kind}" are not known, only {known}. Describe them in a TOML file; base'
        " takes over what they share with a known chip."
    )


def _slice_name(family: Family, torus: Torus, devices: Sequence[Any]) -> str:
    slices = len({_slice_of(device) for device in devices})
    places = {(_slice_of(device), *device.coords, device.core_on_chip) for device in devices}
    coordinates = list(zip(*(device.coords for device in devices), strict=True))
    sizes = [max(axis) - min(axis) + 1 for axis in coordinates[: torus.rank]]
    sizes += [1] * (torus.rank - len(sizes))
    name = f"{family.chip.name}:{'x'.join(map(str, sizes))}" + (f"*{slices}" if slices > 1 else "")
    chips = slices
    for size in sizes:
        chips *= size
    expected = chips * family.devices_per_chip
    if len(places) != len(devices) or len(devices) != expected:
        raise ClusterError(
            f"{len(devices)} devices with coordinates of {name} do not fill it: it has {expected},"
            f" {family.devices_per_chip} a chip. {_WAY_OUT}"
        )
    return name


def _slice_of(device: Any) -> int:
    return getattr(device, "slice_index", 0) or 0


def _node_name(family: Family, devices: Sequence[Any]) -> str:
    per_process = Counter(device.process_index for device in devices)
    sizes = set(per_process.values())
    if len(sizes) != 1:
        raise ClusterError(
            f"hosts of a cluster have equally many devices, but these have"
            f" {', '.join(map(str, sorted(sizes)))}. {_WAY_OUT}"
        )
    (size,) = sizes
    hosts = len(per_process)
    return f"{family.chip.name}:{f'{hosts}x' if hosts > 1 else ''}{size}"
