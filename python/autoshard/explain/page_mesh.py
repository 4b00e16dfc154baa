"""The devices of a plan as they are wired, and which block of a tensor each of them holds."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import prod

import numpy as np

from autoshard.explain.record import Record
from autoshard.sharding import Mesh, Sharding

MOST_DEVICES = 512
"""Devices that the picture shows."""

MOST_TENSORS = 400
"""Tensors that can be chosen."""


def physical_dims(record: Record) -> list[tuple[str, int]]:
    """Names and sizes of the dims of the machine, slowest first; one if nothing is known of it."""
    devices = Mesh.parse(record.mesh).size
    if record.summary is None:
        return [("device", devices)]
    dims = record.summary.read_cluster().dims
    return [(dim.name, dim.size) for dim in dims] or [("device", devices)]


def mesh_panels(record: Record) -> str:
    """Tables of devices, the two fastest dims of the machine each, labelled by their mesh axes."""
    dims = physical_dims(record)
    mesh = Mesh.parse(record.mesh)
    at = np.unravel_index(np.arange(mesh.size), mesh.axis_sizes or (1,))
    coordinates = [
        ", ".join(f"{name} {axis[device]}" for name, axis in zip(mesh.axis_names, at, strict=False))
        for device in range(mesh.size)
    ]
    *outer, (_, columns) = dims
    rows = outer.pop()[1] if outer else 1
    panels: list[str] = []
    for panel in range(min(prod(size for _, size in outer), MOST_DEVICES // (rows * columns) or 1)):
        place = np.unravel_index(panel, [size for _, size in outer]) if outer else ()
        named = ", ".join(f"{n} = {k}" for (n, _), k in zip(outer, place, strict=True))
        first = panel * rows * columns
        lines = (
            "".join(
                f'<td data-device="{device}"'
                f' title="device {device}: {escape(coordinates[device])}">{device}</td>'
                for device in range(first + row * columns, first + (row + 1) * columns)
                if device < MOST_DEVICES
            )
            for row in range(rows)
        )
        body = "".join(f"<tr>{cells}</tr>" for cells in lines if cells)
        panels.append(f"<table><caption>{escape(named)}</caption><tbody>{body}</tbody></table>")
    return f'<div class="grid panel">{"".join(panels)}</div>'


def blocks_held(shardings: Sequence[str], mesh: Mesh) -> dict[str, list[str]]:
    """For each sharding the block that each device holds, ``(0, 3)`` as ``0,3``.

    Args:
        shardings: Texts, ``[{fsdp}, {model}]``.
        mesh: Over which they are.
    """
    return {
        text: [
            ",".join(map(str, block))
            for block in Sharding.parse(text, mesh).tile_coordinates()[:MOST_DEVICES].tolist()
        ]
        for text in dict.fromkeys(shardings)
    }
