"""`mhlo.sharding` (HloSharding) texts: V1, V2, V3 and tuples are read, V2 is written.

    V1  {devices=[2,4]0,1,2,3,4,5,6,7}
    V2  {devices=[2,2,2]<=[2,4]T(1,0) last_tile_dim_replicate}
    V3  {mesh['dp'=2,'tp'=4], [{'dp'}, {'tp':(1)2, ?}], unreduced={..}}

XLA ignores a text that it cannot read, and a V3 text in GSPMD mode makes the compiler hang, hence
everything is checked here and only V2 leaves. The grammar is that of jaxlib 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Literal, cast

import numpy as np

from autoshard.errors import ParseError, ShardingError
from autoshard.sharding.mesh import Axis, Mesh
from autoshard.sharding.placement import IntArray, canonical_iota, chain_of_cuts, transposed_iota
from autoshard.sharding.scanner import Scanner
from autoshard.sharding.sharding import AxisRef, ShardGroup, Sharding, refs_of_coordinates
from autoshard.sharding.text import read_axes, read_shard_group

Kind = Literal["replicated", "manual", "unreduced", "unknown", "maximal", "tiled"]
SubgroupType = Literal["manual", "unreduced", "replicated"]

_EXAMPLE = "{devices=[2,4]<=[8]}"
_CANONICAL_ORDER: tuple[SubgroupType, ...] = ("manual", "unreduced", "replicated")
_PLAIN = re.compile(r'\{[^{}"]*\}')
_PLAIN_TUPLE = re.compile(r'\{\{[^{}"]*\}(?:, ?\{[^{}"]*\})*\}')
_WHOLE_KINDS = ("replicated", "manual", "unreduced", "unknown")


@dataclass(frozen=True)
class HloSharding:
    """What one V1 or V2 text says; knows device numbers but no axis names."""

    kind: Kind
    tile: tuple[int, ...] = ()
    """Pieces of each dim, for ``tiled``."""
    subgroups: tuple[tuple[SubgroupType, int], ...] = ()
    """Behind the tile dims: what the devices that share a piece do, and how many they are."""
    devices: tuple[int, ...] = ()
    """Row-major over tile dims and subgroups; for ``maximal`` the one device."""
    shard_group: ShardGroup | None = None

    def __str__(self) -> str:
        """V2 text in XLA's canonical form."""
        return _braced(self._body(), self.shard_group)

    def _body(self) -> str:
        if self.kind == "maximal":
            return f"maximal device={self.devices[0]}"
        if self.kind != "tiled":
            return self.kind
        return _tiled_body(self.tile, self.subgroups, np.array(self.devices, dtype=np.int64))


@dataclass(frozen=True)
class NamedHlo:
    """What one V3 text with dims says: a sharding on the mesh that the text names."""

    sharding: Sharding


HloValue = HloSharding | NamedHlo
"""One value's sharding as read."""


def parse_hlo(text: str) -> HloValue | tuple[HloValue, ...]:
    """Read a text of any version; a tuple text gives a tuple.

    Raises:
        ParseError: The text has another form, or its device list does not fill its tiles.
        ShardingError: A V3 text with a mesh or axes that cannot be.
    """
    scanner = Scanner(text, "HloSharding", _EXAMPLE)
    value = _read(scanner)
    scanner.expect_end()
    return value


def canonical_v2(text: str) -> str:
    """The text in XLA's canonical V2 form; also V3 texts and tuples.

    Raises:
        ParseError: The text cannot be read.
    """
    value = parse_hlo(text)
    if isinstance(value, tuple):
        return f"{{{', '.join(_value_text(element) for element in value)}}}"
    return _value_text(value)


def _value_text(value: HloValue) -> str:
    return to_v2(value.sharding) if isinstance(value, NamedHlo) else str(value)


@lru_cache(maxsize=65536)
def to_v2(sharding: Sharding) -> str:
    """The V2 text: ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}``.

    Iota form where the device order allows it, a list of devices where not, ``{replicated}``
    where nothing is cut and on one device. The same pieces on the same devices give the same text,
    however the axes are called. Open dims, priorities and explicitly replicated axes have no
    place in V2 and are left out.
    """
    return _braced(_sharding_body(sharding), sharding.shard_group)


def _sharding_body(sharding: Sharding) -> str:
    if sharding.is_replicated:
        return "replicated"
    manual, unreduced = (
        prod(sharding.axis_size(ref) for ref in refs)
        for refs in (sharding.manual, sharding.unreduced)
    )
    replicated = sharding.mesh.size // (prod(sharding.tile) * manual * unreduced)
    groups: tuple[tuple[SubgroupType, int], ...] = (
        ("manual", manual),
        ("unreduced", unreduced),
        ("replicated", replicated),
    )
    sizes, order = _digit_order(sharding)
    if sharding.mesh.device_ids is None:
        whole = _whole_mesh_kind(sharding.tile, groups)
        return whole or _devices_text(
            sharding.tile, groups, _iota_text(*canonical_iota(sizes, order))
        )
    devices = sharding.mesh.device_order().reshape(sizes).transpose(order).ravel()
    return _tiled_body(sharding.tile, groups, devices)


def to_v2_tuple(shardings: Sequence[Sharding]) -> str:
    """The text for an op of several results: ``{{replicated}, {devices=[8]<=[8]}}``."""
    return f"{{{', '.join(map(to_v2, shardings))}}}"


def to_v2_results(shardings: Sequence[Sharding]) -> str:
    """The text for an op: of one result its own, of several a tuple."""
    return to_v2(shardings[0]) if len(shardings) == 1 else to_v2_tuple(shardings)


@lru_cache(maxsize=65536)
def from_hlo(text: str, mesh: Mesh, rank: int) -> Sharding:
    """The sharding that ``text`` means, in terms of ``mesh``'s axes; sub-axes where needed.

    ``{unknown}`` leaves every dim open. Which device of a replica group comes first does not
    matter; order of unreduced and manual groups follows the mesh.

    Args:
        text: V1, V2 or V3, not a tuple.
        mesh: The mesh whose axes are used.
        rank: Number of dims of the value.

    Raises:
        ParseError: The text cannot be read.
        ShardingError: A tuple, another rank or device count, a sharding on one device only, or
            a device order that no choice of axes gives.
    """
    value = parse_hlo(text)
    if isinstance(value, tuple):
        raise ShardingError(
            f"{text} is the sharding of a tuple, but one value's is needed."
            " Give one sharding, or read it with tuple_from_hlo."
        )
    return _on_mesh(value, mesh, rank)


def tuple_from_hlo(text: str, mesh: Mesh, ranks: Sequence[int]) -> tuple[Sharding, ...]:
    """The shardings of an op's results; a text of one sharding holds for every result.

    Args:
        text: A tuple text, or one sharding's.
        mesh: As for :func:`from_hlo`.
        ranks: Number of dims of each result.

    Raises:
        ParseError: The text cannot be read.
        ShardingError: Another number of elements, or as for :func:`from_hlo`.
    """
    elements = _elements(text, len(ranks))
    return tuple(_element_on_mesh(*each, mesh) for each in zip(elements, ranks, strict=True))


def result_from_hlo(text: str, mesh: Mesh, number: int, count: int, rank: int) -> Sharding:
    """As :func:`tuple_from_hlo`, of one of an op's results.

    Args:
        text: A tuple text, or one sharding's.
        mesh: As for :func:`from_hlo`.
        number: Which result.
        count: How many there are.
        rank: Number of dims of that one.
    """
    return _element_on_mesh(_elements(text, count)[number], rank, mesh)


def _element_on_mesh(element: str | HloValue, rank: int, mesh: Mesh) -> Sharding:
    if isinstance(element, str):
        return from_hlo(element, mesh, rank)
    return _on_mesh(element, mesh, rank)


@lru_cache(maxsize=256)
def _elements(text: str, count: int) -> Sequence[str | HloValue]:
    """What a text says of each of so many results: as texts, if it is easily cut into those.

    A loop over layers has hundreds of results, most of them cut alike, and its text is another one
    whenever one of them is changed.
    """
    found: Sequence[str | HloValue]
    if _PLAIN_TUPLE.fullmatch(text):
        found = _PLAIN.findall(text, 1)
    elif _PLAIN.fullmatch(text):
        found = (text,) * count
    else:
        value = parse_hlo(text)
        found = value if isinstance(value, tuple) else (value,) * count
    if len(found) != count:
        raise ShardingError(
            f"{text} has {len(found)} elements, but there are {count} results."
            " Give one sharding for each result."
        )
    return found


def _braced(body: str, group: ShardGroup | None) -> str:
    return f"{{{body}}}" if group is None else f"{{{body} {group}}}"


def _whole_mesh_kind(tile: Sequence[int], groups: Sequence[tuple[SubgroupType, int]]) -> str | None:
    """``manual`` or so if all devices form one group of one kind."""
    kinds = [kind for kind, size in groups if size > 1]
    return kinds[0] if prod(tile) == 1 and len(kinds) == 1 else None


def _tiled_body(
    tile: tuple[int, ...], groups: Sequence[tuple[SubgroupType, int]], devices: IntArray
) -> str:
    """Canonical form of any tile assignment: merged, ordered groups and sorted replica groups."""
    if len(devices) == 1:
        return "replicated"
    shape = (*tile, *(size for _, size in groups))
    order = [
        len(tile) + place
        for kind in _CANONICAL_ORDER
        for place, (group_kind, _) in enumerate(groups)
        if group_kind == kind
    ]
    devices = devices.reshape(shape).transpose([*range(len(tile)), *order]).ravel()
    merged: list[tuple[SubgroupType, int]] = [
        (kind, prod(size for group_kind, size in groups if group_kind == kind))
        for kind in _CANONICAL_ORDER
    ]
    whole = _whole_mesh_kind(tile, merged)
    if whole is not None:
        return whole
    devices = np.sort(devices.reshape(-1, merged[-1][1]), axis=1).ravel()
    iota = transposed_iota(devices)
    text = ",".join(map(str, devices.tolist())) if iota is None else _iota_text(*iota)
    return _devices_text(tile, merged, text)


def _iota_text(reshape: tuple[int, ...], permutation: tuple[int, ...]) -> str:
    sizes = ",".join(map(str, reshape)) or "1"
    if len(reshape) <= 1:
        return f"<=[{sizes}]"
    return f"<=[{sizes}]T({','.join(map(str, permutation))})"


def _devices_text(
    tile: tuple[int, ...], groups: Sequence[tuple[SubgroupType, int]], order_text: str
) -> str:
    groups = [(kind, size) for kind, size in groups if size > 1]
    sizes = ",".join(map(str, (*tile, *(size for _, size in groups))))
    text = f"devices=[{sizes}]{order_text}"
    if not groups:
        return text
    if [kind for kind, _ in groups] == ["replicated"]:
        return f"{text} last_tile_dim_replicate"
    return f"{text} last_tile_dims={{{', '.join(kind for kind, _ in groups)}}}"


def _digit_order(sharding: Sharding) -> tuple[list[int], list[int]]:
    """The mesh split into digits (sizes, mesh order) and the order in which the tiles use them."""
    mesh = sharding.mesh
    used = [
        (ref.name, ref.pre_size, sharding.axis_size(ref))
        for refs in (*sharding.dims, sharding.manual, sharding.unreduced)
        for ref in refs
    ]
    sizes: list[int] = []
    place_of: dict[tuple[str, int], int] = {}
    digits_at: dict[str, list[int]] = {}
    for axis in mesh.axes:
        cuts = {1, axis.size}
        for name, pre_size, size in used:
            if name == axis.name:
                cuts |= {pre_size, pre_size * size}
        chain = chain_of_cuts(cuts)
        assert isinstance(chain, list), "Sharding lets only nested sub-axes through"
        digits_at[axis.name] = chain
        for begin, end in pairwise(chain):
            place_of[axis.name, begin] = len(sizes)
            sizes.append(end // begin)
    order = [
        place_of[name, begin]
        for name, pre_size, size in used
        for begin in digits_at[name][:-1]
        if pre_size <= begin < pre_size * size
    ]
    rest = set(range(len(sizes))).difference(order)
    return sizes, [*order, *sorted(rest)]


def _on_mesh(value: HloValue, mesh: Mesh, rank: int) -> Sharding:
    if isinstance(value, NamedHlo):
        sharding = value.sharding
        _check_rank(len(sharding.dims), rank, str(sharding))
        if not sharding.mesh.axes:
            return replace(sharding, mesh=mesh)
        return sharding.on(mesh)
    uncut: tuple[tuple[AxisRef, ...], ...] = ((),) * rank
    everything = tuple(AxisRef(axis.name) for axis in mesh.axes if axis.size > 1)
    match value.kind:
        case "replicated":
            return Sharding(mesh, uncut, shard_group=value.shard_group)
        case "unknown":
            return Sharding(mesh, uncut, (True,) * rank, shard_group=value.shard_group)
        case "manual":
            return Sharding(mesh, uncut, manual=everything, shard_group=value.shard_group)
        case "unreduced":
            return Sharding(mesh, uncut, unreduced=everything, shard_group=value.shard_group)
        case "maximal":
            if mesh.size == 1 and value.devices == (0,):
                return Sharding(mesh, uncut, shard_group=value.shard_group)
            raise ShardingError(
                f'{value} puts the value on one device; on mesh "{mesh}" a value is cut or'
                " replicated over all devices. Use {replicated} or {devices=..}."
            )
        case "tiled":
            return _tiled_on_mesh(value, mesh, rank)


def _check_rank(found: int, rank: int, text: str) -> None:
    if found != rank:
        raise ShardingError(
            f"sharding {text} has {found} dims, but the value has {rank}."
            " Give one entry for every dim."
        )


@lru_cache(maxsize=4096)
def _tiled_on_mesh(value: HloSharding, mesh: Mesh, rank: int) -> Sharding:
    _check_rank(len(value.tile), rank, str(value))
    if len(value.devices) != mesh.size:
        raise ShardingError(
            f'sharding {value} has {len(value.devices)} devices, but mesh "{mesh}" has'
            f" {mesh.size}. Use the mesh that the sharding was made for."
        )
    groups = [place for place, (kind, _) in enumerate(value.subgroups) if kind != "replicated"]
    sizes = (*value.tile, *(size for _, size in value.subgroups))
    kept = [*range(rank), *(rank + place for place in groups)]
    coordinates = np.stack(np.unravel_index(np.arange(mesh.size), sizes), axis=1)[:, kept]
    by_device = np.empty_like(coordinates, dtype=np.int64)
    by_device[np.array(value.devices)] = coordinates
    kept_sizes = [sizes[place] for place in kept]
    found = refs_of_coordinates(mesh, by_device[mesh.device_order()], kept_sizes)
    if found is None:
        raise ShardingError(
            f'sharding {value} cannot be written with the axes of mesh "{mesh}": no choice of'
            " (sub-)axes gives every device its piece. Use the mesh that it was made for, or one"
            " with finer axes and the same device order."
        )
    named: dict[SubgroupType, tuple[AxisRef, ...]] = {"manual": (), "unreduced": ()}
    for place, refs in zip(groups, found[rank:], strict=True):
        named[value.subgroups[place][0]] += refs
    return Sharding(
        mesh,
        tuple(found[:rank]),
        unreduced=named["unreduced"],
        manual=named["manual"],
        shard_group=value.shard_group,
    )


def _read(scanner: Scanner) -> HloValue | tuple[HloValue, ...]:
    if scanner.peek() != "{":
        scanner.fail("expected '{'")
    if scanner.peek(1) not in ("{", "}"):
        return _read_one(scanner)
    scanner.expect("{")
    elements: list[HloValue] = []
    while not scanner.accept("}"):
        if elements:
            scanner.expect(",")
        elements.append(_read_one(scanner))
    return tuple(elements)


def _read_one(scanner: Scanner) -> HloValue:
    scanner.expect("{")
    if scanner.peek() == "mesh":
        value = _read_named(scanner)
    elif scanner.accept("maximal_mesh"):
        value = _read_maximal_mesh(scanner)
    elif scanner.accept("maximal"):
        scanner.expect("device")
        scanner.expect("=")
        value = HloSharding("maximal", devices=(scanner.integer(),))
    elif scanner.peek() in _WHOLE_KINDS:
        value = HloSharding(cast(Kind, scanner.word()))
        scanner.accept("last_tile_dim_replicate")
    else:
        value = _read_tiled(scanner)
    group: ShardGroup | None = None
    while not scanner.accept("}"):
        if scanner.peek() in (",", "metadata"):
            _skip_metadata(scanner)
        elif scanner.peek() in ("shard_as", "shard_like"):
            group = read_shard_group(scanner)
        else:
            scanner.fail("expected '}'")
    if group is None:
        return value
    if isinstance(value, NamedHlo):
        return NamedHlo(replace(value.sharding, shard_group=group))
    return replace(value, shard_group=group)


def _skip_metadata(scanner: Scanner) -> None:
    scanner.accept(",")
    scanner.expect("metadata")
    scanner.expect("=")
    scanner.skip_braces()


def _read_tiled(scanner: Scanner) -> HloSharding:
    scanner.expect("devices")
    scanner.expect("=")
    scanner.expect("[")
    sizes = scanner.integers("]")
    if any(size < 1 for size in sizes):
        raise ParseError(
            f"cannot read HloSharding {scanner.text!r}: tile sizes {list(sizes)} must be at"
            f" least 1. Write it as {_EXAMPLE!r}."
        )
    devices = _read_iota(scanner) if scanner.accept("<=") else _read_list(scanner)
    types: list[SubgroupType] = []
    if scanner.accept("last_tile_dim_replicate"):
        types = ["replicated"]
    elif scanner.accept("last_tile_dims"):
        scanner.expect("=")
        scanner.expect("{")
        while not scanner.accept("}"):
            if types:
                scanner.expect(",")
            if scanner.peek() not in _CANONICAL_ORDER:
                scanner.fail("expected manual, unreduced or replicated")
            types.append(cast(SubgroupType, scanner.word()))
    _check_fills(scanner, sizes, devices, len(types))
    rank = len(sizes) - len(types)
    return HloSharding(
        "tiled",
        sizes[:rank],
        tuple(zip(types, sizes[rank:], strict=True)),
        tuple(devices.tolist()),
    )


def _check_fills(scanner: Scanner, sizes: Sequence[int], devices: IntArray, subgroups: int) -> None:
    if subgroups > len(sizes):
        raise ParseError(
            f"cannot read HloSharding {scanner.text!r}: {subgroups} subgroup types but only"
            f" {len(sizes)} tile dims. Give a tile dim for each."
        )
    if len(devices) != prod(sizes):
        raise ParseError(
            f"cannot read HloSharding {scanner.text!r}: tile dims {list(sizes)} need"
            f" {prod(sizes)} devices, {len(devices)} are listed. Make the two equal."
        )
    if not np.array_equal(np.sort(devices), np.arange(len(devices))):
        raise ParseError(
            f"cannot read HloSharding {scanner.text!r}: the list does not name each of the devices"
            f" 0..{len(devices) - 1} exactly once. List every device once."
        )


_MOST_DEVICES = 1 << 24
"""Devices that a text may list; the largest machines have some 2**17, and each takes 8 bytes."""


def _read_iota(scanner: Scanner) -> IntArray:
    scanner.expect("[")
    reshape = scanner.integers("]")
    if prod(reshape) > _MOST_DEVICES:
        raise ParseError(
            f"cannot read HloSharding {scanner.text!r}: it lists {prod(reshape)} devices,"
            f" {_MOST_DEVICES} are the most. Give the devices that there are."
        )
    order = np.arange(prod(reshape), dtype=np.int64)
    if not scanner.accept("T"):
        return order
    scanner.expect("(")
    permutation = scanner.integers(")")
    if sorted(permutation) != list(range(len(reshape))):
        raise ParseError(
            f"cannot read HloSharding {scanner.text!r}: T({','.join(map(str, permutation))}) is no"
            f" permutation of the {len(reshape)} dims before it. Write it as"
            " '{devices=[4,2]<=[2,4]T(1,0)}'."
        )
    return order.reshape(reshape).transpose(permutation).ravel()


def _read_list(scanner: Scanner) -> IntArray:
    devices = [scanner.integer()]
    while scanner.accept(","):
        devices.append(scanner.integer())
    return np.array(devices, dtype=np.int64)


def _read_maximal_mesh(scanner: Scanner) -> HloSharding:
    scanner.expect("[")
    scanner.expect("device_id")
    scanner.expect("=")
    device = scanner.integer()
    scanner.expect("]")
    return HloSharding("maximal", devices=(device,))


def _read_named(scanner: Scanner) -> HloValue:
    """V3, behind its ``{``; leaves the scanner before ``}`` or metadata."""
    scanner.expect("mesh")
    scanner.expect("[")
    axes: list[Axis] = []
    while not scanner.accept("]"):
        if axes:
            scanner.expect(",")
        name = scanner.name()
        scanner.expect("=")
        axes.append(Axis(name, scanner.integer()))
    scanner.expect(",")
    device_ids: tuple[int, ...] | None = None
    if scanner.accept("device_ids"):
        scanner.expect("=")
        scanner.expect("(")
        order = _read_iota(scanner) if scanner.peek() == "[" else _read_list(scanner)
        device_ids = tuple(order.tolist())
        scanner.expect(")")
        scanner.expect(",")
    mesh = Mesh(tuple(axes), device_ids)
    if scanner.peek() in _WHOLE_KINDS:
        return HloSharding(cast(Kind, scanner.word()))
    scanner.expect("[")
    dims: list[tuple[AxisRef, ...]] = []
    open_dims: list[bool] = []
    while not scanner.accept("]"):
        if dims:
            scanner.expect(",")
        refs, is_open = read_axes(scanner)
        dims.append(refs)
        open_dims.append(is_open)
    extra: dict[str, tuple[AxisRef, ...]] = {"replicated": (), "unreduced": (), "manual": ()}
    while scanner.peek() == "," and scanner.peek(1) in extra:
        scanner.expect(",")
        name = scanner.word()
        scanner.expect("=")
        extra[name] = read_axes(scanner)[0]
    return NamedHlo(
        Sharding(
            mesh,
            tuple(dims),
            tuple(open_dims),
            extra["replicated"],
            extra["unreduced"],
            extra["manual"],
        )
    )
