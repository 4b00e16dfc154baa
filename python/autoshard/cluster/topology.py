"""Names of clusters, ``v5p:4x4x4*2``, and the physical dims that they stand for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

from autoshard._core import LinkKind as LinkKind
from autoshard.cluster.chips import FAMILIES, Constant, Family, Link, Node, Torus
from autoshard.errors import ClusterError

EXAMPLES = "v5e:4x4, v5p:4x4x4, v5p:16x16x16*2, h100:8, h100:4x8, cpu:8"
"""Names that errors show."""

_NAME = re.compile(r"(?P<chip>[^:]*):(?P<sizes>[^*]*)(?:\*(?P<slices>.*))?", re.DOTALL)
_SIZE = re.compile(r"[0-9]+")
_TORUS_DIMS = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class Dim:
    """One physical direction of a machine: a torus dim, the devices of a node, the nodes."""

    name: str
    size: int
    kind: LinkKind
    bandwidth: Constant
    """Bytes/s one way: of one link of a ring or line, of one device elsewhere."""
    latency: Constant
    """Seconds of one hop of a ring or line, of one step of a collective elsewhere."""


def read_name(name: str) -> tuple[Family, tuple[Dim, ...]]:
    """The machines that ``CHIP:SIZES`` names, slowest dim first, without dims of size 1.

    Raises:
        ClusterError: Another form, a chip that nobody knows, sizes that it is not built in.
    """
    match = _NAME.fullmatch(name.strip().lower())
    if match is None:
        raise ClusterError(
            f'cluster "{name}" is not of the form CHIP:SIZES. Write a name such as {EXAMPLES},'
            f" with one of the chips {', '.join(FAMILIES)}, or the path of a TOML file."
        )
    family = family_of(match["chip"].strip(), f'cluster "{name}"')
    sizes = [_size(text, name) for text in match["sizes"].split("x")]
    slices = 1 if match["slices"] is None else _size(match["slices"], name)
    if isinstance(family.shape, Torus):
        dims = _torus_dims(family, family.shape, sizes, slices, name)
    else:
        if match["slices"] is not None:
            raise ClusterError(
                f'cluster "{name}": only TPUs have slices (*{slices}).'
                f" Write {family.shape.outer_dim}s x {family.shape.dim}s, such as"
                f" {family.chip.name}:{slices * prod(sizes[:-1])}x{sizes[-1]}."
            )
        dims = _node_dims(family, family.shape, sizes, name)
    return family, tuple(dim for dim in dims if dim.size > 1)


def family_of(chip: str, where: str, location: str | None = None) -> Family:
    """The machines of a chip.

    Raises:
        ClusterError: No chip has this name.
    """
    if chip in FAMILIES:
        return FAMILIES[chip]
    near = get_close_matches(chip, FAMILIES, n=1, cutoff=0.4)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    raise ClusterError(
        f'{where}: no chip "{chip}" is known, only {", ".join(FAMILIES)}.{hint}'
        " Describe others in a TOML file.",
        location,
    )


def _size(text: str, name: str) -> int:
    if not _SIZE.fullmatch(text.strip()) or int(text) < 1:
        raise ClusterError(
            f'cluster "{name}": "{text}" is not a size. Sizes are whole numbers from 1 on with "x"'
            f" between them, such as {EXAMPLES}."
        )
    return int(text)


def _dim(name: str, size: int, kind: LinkKind, link: Link) -> Dim:
    return Dim(name, size, kind, link.bandwidth, link.latency)


def _torus_dims(
    family: Family, torus: Torus, sizes: list[int], slices: int, name: str
) -> list[Dim]:
    example = f"{family.chip.name}:{'x'.join(['4'] * torus.rank)}"
    if len(sizes) != torus.rank:
        raise ClusterError(
            f'cluster "{name}" has {len(sizes)} dims, but a slice of {family.chip.name} has'
            f" {torus.rank}. Give all of them, such as {example} (dims may be 1), and the number"
            f" of slices behind a *, such as {example}*2."
        )
    if max(sizes) > torus.max_size or prod(sizes) > torus.max_chips:
        raise ClusterError(
            f'cluster "{name}" has dims of up to {max(sizes)} and {prod(sizes)} chips a slice, but'
            f" those of {family.chip.name} have at most {torus.max_size} and {torus.max_chips}."
            f" Use several slices, such as {example}*2."
        )
    dims = [_dim("slice", slices, LinkKind.NETWORK, family.network)]
    fits = [size % torus.wrap_multiple == 0 for size in sizes]
    for dim_name, size, fitting in zip(_TORUS_DIMS, sizes, fits, strict=False):
        wraps = fitting if torus.wraps_alone else all(fits)
        dims.append(_dim(dim_name, size, LinkKind.RING if wraps else LinkKind.LINE, family.link))
    if family.on_chip is not None:
        dims.append(_dim("core", family.devices_per_chip, LinkKind.SWITCHED, family.on_chip))
    return dims


def _node_dims(family: Family, node: Node, sizes: list[int], name: str) -> list[Dim]:
    chip = family.chip.name
    if len(sizes) > 2:
        raise ClusterError(
            f'cluster "{name}" has {len(sizes)} dims, but {chip} has two: {node.outer_dim}s x'
            f" {node.dim}s. Write {chip}:{prod(sizes[:-1])}x{sizes[-1]}, or describe a machine with"
            " more levels in a TOML file."
        )
    nodes, devices = [1, *sizes][-2:]
    if node.max_devices is not None and devices > node.max_devices:
        raise ClusterError(
            f'cluster "{name}" has {devices} {node.dim}s in a {node.outer_dim}, but there are at'
            f" most {node.max_devices} of {chip}. "
            + _as_nodes(chip, node, nodes * devices)
            + " Describe larger ones in a TOML file."
        )
    return [
        _dim(node.outer_dim, nodes, LinkKind.NETWORK, family.network),
        _dim(node.dim, devices, LinkKind.SWITCHED, family.link),
    ]


def _as_nodes(chip: str, node: Node, devices: int) -> str:
    assert node.max_devices is not None
    inner = max(n for n in range(1, node.max_devices + 1) if devices % n == 0)
    return f"Write {node.outer_dim}s x {node.dim}s, such as {chip}:{devices // inner}x{inner}."
