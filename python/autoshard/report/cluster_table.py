"""A cluster as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cluster.chips import FAMILIES, UNITS, Constant
from autoshard.cluster.order import order_text
from autoshard.cluster.topology import LinkKind

if TYPE_CHECKING:
    from autoshard.cluster.cluster import Cluster

_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))

_KINDS = {
    LinkKind.RING: "ring: neighbours, ends joined",
    LinkKind.LINE: "line: neighbours, does not wrap",
    LinkKind.SWITCHED: "switched: all to all",
    LinkKind.NETWORK: "network: between hosts",
}


def cluster_table(cluster: Cluster) -> RenderableType:
    """Devices, dims and their links, the axes of a search, and the source of every constant."""
    family = FAMILIES.get(cluster.chip.name)
    title = f" ({family.title})" if family and family.chip == cluster.chip else ""
    per_chip = family.devices_per_chip if family else 1
    chips = f", {cluster.num_devices // per_chip} chips" if per_chip > 1 else ""
    mesh = cluster.level_mesh()
    return Group(
        Text(f"{cluster.name}: {_devices(cluster)}{chips} of {cluster.chip.name}{title}"),
        *([] if cluster.calibration is None else [Text(str(cluster.calibration))]),
        Text(f"compiled by {cluster.compiler}"),
        *([] if cluster.corrections.none_needed else [Text(str(cluster.corrections))]),
        Text(f"axes of a search, slowest first: {mesh if mesh.axes else 'none'}"),
        *([Text(f"devices numbered over {order_text(cluster.order)}")] if cluster.order else []),
        *([_dims(cluster), _links(cluster)] if cluster.dims else []),
        _chip(cluster),
    )


def _devices(cluster: Cluster) -> str:
    return f"{cluster.num_devices} device{'s' if cluster.num_devices > 1 else ''}"


def _dims(cluster: Cluster) -> Table:
    table = _table("dim", "devices", "links", "one way", "latency")
    for dim in cluster.dims:
        table.add_row(
            Text(dim.name),
            Text(str(dim.size)),
            Text(_KINDS[dim.kind]),
            Text(_shown("bandwidth", dim.bandwidth)),
            Text(_shown("latency", dim.latency)),
        )
    return table


def _links(cluster: Cluster) -> Table:
    table = _table("link of dim", "constant", "value", "source")
    for link in dict.fromkeys((dim.bandwidth, dim.latency) for dim in cluster.dims):
        names = ", ".join(d.name for d in cluster.dims if (d.bandwidth, d.latency) == link)
        for key, constant in zip(("bandwidth", "latency"), link, strict=True):
            table.add_row(
                Text(names), Text(key), Text(_shown(key, constant)), Text(constant.source)
            )
    return table


def _chip(cluster: Cluster) -> Table:
    table = _table("device", "value", "source")
    for key, constant in cluster.chip.constants().items():
        table.add_row(Text(key), Text(_shown(key, constant)), Text(constant.source))
    return table


def _shown(key: str, constant: Constant) -> str:
    """``459 TFLOP/s``, ``90 GB/s``, ``1 us``, ``95.73 GiB``."""
    unit, value = UNITS[key], constant.value
    if key == "memory_bytes":
        return f"{value / 2**30:,.2f} GiB"
    if unit == "s":
        return f"{value * 1e6:g} us"
    if not unit.endswith("/s"):
        return f"{value:g} {unit}"
    short = unit.replace("bytes", "B")
    for scale, letter in _SCALES:
        if value >= scale:
            return f"{value / scale:,.4g} {letter}{short}"
    return f"{value:g} {short}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
