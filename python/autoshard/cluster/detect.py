"""Which cluster the devices of this process are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from autoshard.cluster.chips import FAMILIES, Family, Node, Torus
from autoshard.cluster.topology import Dim, LinkKind, read_name
from autoshard.errors import ClusterError

_WAY_OUT = "Give the cluster by name or as a TOML file."


@dataclass(frozen=True)
class Detected:
    """A cluster as its devices show it."""

    name: str
    """As ``Cluster.parse`` takes it."""
    read: tuple[str, ...]
    """What JAX says of the devices."""
    assumed: tuple[str, ...]
    """What it does not say, and a plan rests on."""

    def __str__(self) -> str:
        """A line each: ``v5e:2x4``, ``  read: 8 devices of kind TPU v5 lite``, .."""
        lines = [f"  read: {said}" for said in self.read]
        return "\n".join([self.name, *lines, *(f"  assumed: {said}" for said in self.assumed)])


def detected(devices: Sequence[Any] | None = None) -> Detected:
    """The cluster that ``devices`` are.

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
    (kind,) = kinds
    family = _family(kind)
    if isinstance(family.shape, Torus):
        name, where = _slice_name(family, family.shape, devices)
    else:
        name, where = _node_name(family, family.shape, devices)
    dims = read_name(name)[1]
    count = f"{len(devices)} device{'s' if len(devices) > 1 else ''} of kind {kind}"
    return Detected(name, (count, where), tuple(_assumed(family, dims)))


def _assumed(family: Family, dims: Sequence[Dim]) -> list[str]:
    said = [
        f"each device computes, and has memory, as the tables of {family.chip.name} say, and none"
        " is slower than the others"
    ]
    for dim in dims:
        match dim.kind:
            case LinkKind.RING:
                said.append(f"{dim.name}: neighbours are linked, and so are the ends")
            case LinkKind.LINE:
                said.append(f"{dim.name}: neighbours are linked, the ends are not")
            case LinkKind.SWITCHED:
                said.append(f"{dim.name}: all reach each other at full rate")
            case _:
                said.append(
                    f"{dim.name}: joined by a network of {dim.bandwidth.value / 1e9:.3g} GB/s for"
                    " each device, one way"
                )
    return said


def _family(kind: str) -> Family:
    for family in FAMILIES.values():
        if kind in family.device_kinds:
            return family
    known = ", ".join(kind for family in FAMILIES.values() for kind in family.device_kinds)
    raise ClusterError(
        f'devices of kind "{kind}" are not known, only {known}. Describe them in a TOML file; base'
        " takes over what they share with a known chip."
    )


def _slice_name(family: Family, torus: Torus, devices: Sequence[Any]) -> tuple[str, str]:
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
    count = f"{slices} slices" if slices > 1 else "one slice"
    return name, f"coordinates that fill {'x'.join(map(str, sizes))} chips of {count}"


def _slice_of(device: Any) -> int:
    return getattr(device, "slice_index", 0) or 0


def _node_name(family: Family, node: Node, devices: Sequence[Any]) -> tuple[str, str]:
    per_node = Counter(device.process_index for device in devices)
    by = "process"
    if family.chip.compiler == "xla-gpu":
        # GPUs of one machine share an index, whatever processes they are of: XLA's
        # pjrt/distributed/topology_util.cc counts machines by their boot id. Machines that share
        # NVLink may have one index, too; then a process is taken for a machine.
        machines = Counter(_slice_of(device) for device in devices)
        if node.max_devices is None or max(machines.values()) <= node.max_devices:
            per_node, by = machines, "machine"
    sizes = set(per_node.values())
    if len(sizes) != 1:
        raise ClusterError(
            f"hosts of a cluster have equally many devices, but these have"
            f" {', '.join(map(str, sorted(sizes)))}. {_WAY_OUT}"
        )
    (size,) = sizes
    hosts = len(per_node)
    name = f"{family.chip.name}:{f'{hosts}x' if hosts > 1 else ''}{size}"
    several = f"{hosts} {by}{'es' if by == 'process' else 's'} of {size}"
    return name, f"{several}, each a {node.outer_dim}" if hosts > 1 else f"one {by}"
