"""One value's sharding over a named mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Literal

import numpy as np

from autoshard.errors import ShardingError
from autoshard.sharding.mesh import Axis, Mesh
from autoshard.sharding.placement import IntArray, axes_of_coordinates, chain_of_cuts
from autoshard.sharding.scanner import quoted_if_needed

Entry = str | tuple[str, ...] | None
"""One dim in short form: an axis, several axes (major first), or None for not split."""


@dataclass(frozen=True, slots=True)
class AxisRef:
    """A whole mesh axis, or a sub-axis of one.

    Sub-axis ``tp:(2)4`` of a ``tp`` of size 16: think of ``tp`` as axes of sizes 2, 4, 2; it is
    the one with 2 devices outside (``pre_size``) and size 4. Same notation as Shardy's.
    """

    name: str
    pre_size: int = 1
    size: int | None = None
    """None: the whole axis."""

    def __str__(self) -> str:
        """``tp`` or ``tp:(2)4``."""
        name = quoted_if_needed(self.name)
        return name if self.size is None else f"{name}:({self.pre_size}){self.size}"


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Values of one group number get the same sharding (`shard_like`) or this one (`shard_as`)."""

    kind: Literal["as", "like"]
    number: int

    def __str__(self) -> str:
        """``shard_as 1``."""
        return f"shard_{self.kind} {self.number}"


@dataclass(frozen=True)
class Sharding:
    """How one value is cut over a mesh.

    Dim ``d`` is cut into ``num_shards(d)`` equal pieces along ``dims[d]``, major axis first; over
    all axes not named the value is replicated. Built in canonical form: a sub-axis that is
    the whole axis is written as such, neighbouring sub-axes are merged.

    Raises:
        ShardingError: An axis is not in the mesh, an axis is used twice, a sub-axis does not fit
            its axis, or ``open_dims``/``priorities`` have another length than ``dims``.
    """

    mesh: Mesh
    dims: tuple[tuple[AxisRef, ...], ...]
    open_dims: tuple[bool, ...] = ()
    """For each dim whether a pass may cut it further; empty means none."""
    replicated: tuple[AxisRef, ...] = ()
    """Axes that passes must leave unused; axes not named anywhere are replicated as well."""
    unreduced: tuple[AxisRef, ...] = ()
    """Axes over which the value is a partial sum still to be added up."""
    manual: tuple[AxisRef, ...] = ()
    """Axes that a surrounding manual computation owns."""
    priorities: tuple[int | None, ...] = ()
    """For each dim its Shardy priority (0 first); empty means none has one."""
    shard_group: ShardGroup | None = None

    def __post_init__(self) -> None:
        rank = len(self.dims)
        set_field = object.__setattr__
        set_field(self, "open_dims", self.open_dims or (False,) * rank)
        set_field(self, "priorities", self.priorities or (None,) * rank)
        if len(self.open_dims) != rank or len(self.priorities) != rank:
            raise ShardingError(
                f"a sharding of {rank} dims has {len(self.open_dims)} open marks and"
                f" {len(self.priorities)} priorities. Give one of each a dim, or none."
            )
        for refs in (*self.dims, self.replicated, self.unreduced, self.manual):
            for ref in refs:
                _check_fits(ref, self.mesh)
        _check_used_once(self)
        set_field(self, "dims", tuple(_merged(refs, self.mesh) for refs in self.dims))
        for field in ("replicated", "unreduced", "manual"):
            refs: tuple[AxisRef, ...] = getattr(self, field)
            set_field(self, field, _merged(_in_mesh_order(refs, self.mesh), self.mesh))

    @classmethod
    def named(cls, mesh: Mesh, *entries: Entry) -> Sharding:
        """Short form with whole axes: ``Sharding.named(mesh, "dp", None, ("sp", "tp"))``."""
        return cls(mesh, tuple(tuple(AxisRef(name) for name in _names(e)) for e in entries))

    @classmethod
    def fully_replicated(cls, mesh: Mesh, rank: int) -> Sharding:
        """Every device holds the whole value."""
        return cls(mesh, ((),) * rank)

    @classmethod
    def parse(cls, text: str, mesh: Mesh | None = None) -> Sharding:
        """Read ``[{dp}, {sp, tp}, {}]``, with ``mesh[dp=2,..]`` before it if ``mesh`` is None.

        Raises:
            ParseError: The text has another form, or no mesh is known.
            ShardingError: The text says what no sharding can be.
        """
        from autoshard.sharding.text import parse_sharding

        return parse_sharding(text, mesh)

    def __str__(self) -> str:
        """``[{dp}, {sp, tp}, {}]``; the mesh is not shown."""
        from autoshard.sharding.text import format_sharding

        return format_sharding(self)

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.dims)

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole, finished value."""
        return not self._named_axes_larger_than_one

    @cached_property
    def _named_axes_larger_than_one(self) -> bool:
        sharded = (*self.dims, self.unreduced, self.manual)
        return any(self.axis_size(ref) > 1 for refs in sharded for ref in refs)

    def axis_size(self, ref: AxisRef) -> int:
        """Number of devices along a whole axis or a sub-axis."""
        return self.mesh.axis_size(ref.name) if ref.size is None else ref.size

    def num_shards(self, dim: int) -> int:
        """Into how many pieces ``dim`` is cut."""
        return prod(self.axis_size(ref) for ref in self.dims[dim])

    @cached_property
    def tile(self) -> tuple[int, ...]:
        """``num_shards`` of every dim."""
        return tuple(self.num_shards(dim) for dim in range(self.rank))

    def with_dims_closed(self) -> Sharding:
        """The same placement; no pass may cut it further."""
        return replace(self, open_dims=(False,) * self.rank)

    def with_dim_inserted(self, dim: int, open_dim: bool = False) -> Sharding:
        """With a new uncut dim before ``dim``, as ``jax.vmap`` adds one."""
        return replace(
            self,
            dims=(*self.dims[:dim], (), *self.dims[dim:]),
            open_dims=(*self.open_dims[:dim], open_dim, *self.open_dims[dim:]),
            priorities=(*self.priorities[:dim], None, *self.priorities[dim:]),
        )

    def check(
        self,
        shape: Sequence[int],
        name: str = "value",
        location: str | None = None,
        allow_padding: bool = False,
    ) -> None:
        """Whether a value of ``shape`` can be cut this way.

        Args:
            shape: The whole value's shape.
            name: What the value is, for the error: ``"dot_general result"``.
            location: ``file:line`` for the error.
            allow_padding: Accept sizes that leave the last pieces smaller or empty.

        Raises:
            ShardingError: Wrong rank, or a size that the number of pieces does not divide.
        """
        if len(shape) != self.rank:
            raise ShardingError(
                f"{name}: sharding {self} has {self.rank} dims, but the shape"
                f" {_shape_text(shape)} has {len(shape)}. Give one entry for every dim.",
                location,
            )
        if allow_padding:
            return
        for dim, (size, pieces) in enumerate(zip(shape, self.tile, strict=True)):
            if size % pieces:
                raise ShardingError(
                    f"{name}: dim {dim} (size {size}) cannot be split by"
                    f" {self._axes_text(dim)}: {size} % {pieces} = {size % pieces}."
                    " Choose another dim or another axis, or pad the dim to"
                    f" {-(-size // pieces) * pieces}.",
                    location,
                )

    def _axes_text(self, dim: int) -> str:
        refs = self.dims[dim]
        if len(refs) == 1:
            return f'axis "{refs[0]}" (size {self.axis_size(refs[0])})'
        names = ", ".join(f'"{ref}"' for ref in refs)
        sizes = " * ".join(str(self.axis_size(ref)) for ref in refs)
        return f"axes {names} (size {sizes})"

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of one device's piece; of the largest, where a size does not divide.

        Raises:
            ShardingError: Wrong rank.
        """
        self.check(shape, allow_padding=True)
        return tuple(-(-size // pieces) for size, pieces in zip(shape, self.tile, strict=True))

    def tile_coordinates(self) -> IntArray:
        """Which piece each mesh position holds: int64 of shape ``(mesh.size, rank)``."""
        return self._coordinates(self.dims)

    def device_slices(self, shape: Sequence[int]) -> dict[int, tuple[slice, ...]]:
        """The slice of the whole value that each device holds.

        Where a size does not divide, pieces are ``ceil(size / pieces)`` long and the last ones
        are shorter or empty, as XLA pads.

        Raises:
            ShardingError: Wrong rank.
        """
        local = self.local_shape(shape)
        coordinates = self.tile_coordinates().tolist()
        devices = self.mesh.device_order().tolist()
        return {
            device: tuple(
                slice(min(place * step, size), min((place + 1) * step, size))
                for place, step, size in zip(places, local, shape, strict=True)
            )
            for device, places in zip(devices, coordinates, strict=True)
        }

    def same_placement(self, other: Sharding) -> bool:
        """Whether every device holds the same piece (or partial sum) under both.

        The meshes may differ in names and axes; open dims, priorities and groups do not count.
        """
        if self.rank != other.rank or self.mesh.size != other.mesh.size:
            return False
        return np.array_equal(self._pieces_by_device(), other._pieces_by_device())

    def _pieces_by_device(self) -> IntArray:
        """For each device its piece of each dim, and who shares its sum and its manual group."""
        devices = self.mesh.device_order()
        rows = np.empty((self.mesh.size, self.rank + 2), dtype=np.int64)
        rows[devices, : self.rank] = self.tile_coordinates()
        for column, refs in enumerate((self.unreduced, self.manual), start=self.rank):
            rows[devices, column] = self._lowest_device_along(refs)
        return rows

    def _lowest_device_along(self, refs: tuple[AxisRef, ...]) -> IntArray:
        """For each mesh position the lowest device among those that differ only along ``refs``."""
        positions = np.arange(self.mesh.size, dtype=np.int64)
        first = positions.copy()
        for ref in refs:
            size, block = self.axis_size(ref), self._block(ref)
            first -= positions // block % size * block
        lowest = np.full(self.mesh.size, self.mesh.size, dtype=np.int64)
        np.minimum.at(lowest, first, self.mesh.device_order())
        return lowest[first]

    def _coordinates(self, groups: Sequence[tuple[AxisRef, ...]]) -> IntArray:
        """For each mesh position its number along each group: shape ``(mesh.size, groups)``."""
        positions = np.arange(self.mesh.size, dtype=np.int64)
        result = np.zeros((self.mesh.size, len(groups)), dtype=np.int64)
        for column, refs in enumerate(groups):
            for ref in refs:
                size = self.axis_size(ref)
                result[:, column] *= size
                result[:, column] += positions // self._block(ref) % size
        return result

    def _block(self, ref: AxisRef) -> int:
        """How many mesh positions one step along ``ref`` is."""
        index = self.mesh.axis_index(ref.name)
        return prod(self.mesh.axis_sizes[index:]) // (ref.pre_size * self.axis_size(ref))

    def on(self, mesh: Mesh) -> Sharding:
        """The same placement, open dims and groups in terms of another mesh's axes.

        Sub-axes are used where a whole axis does not do.

        Raises:
            ShardingError: Device counts differ, or no choice of ``mesh``'s axes gives this
                placement.
        """
        if mesh == self.mesh:
            return self
        if mesh.size != self.mesh.size:
            raise ShardingError(
                f'sharding {self} on mesh "{self.mesh}" ({self.mesh.size} devices) cannot be'
                f' expressed on mesh "{mesh}" ({mesh.size} devices): the device counts differ.'
                " Use all devices in both meshes."
            )
        groups = (*self.dims, self.replicated, self.unreduced, self.manual)
        by_device = np.empty((mesh.size, len(groups)), dtype=np.int64)
        by_device[self.mesh.device_order()] = self._coordinates(groups)
        sizes = [prod(self.axis_size(ref) for ref in refs) for refs in groups]
        found = refs_of_coordinates(mesh, by_device[mesh.device_order()], sizes)
        if found is None:
            raise ShardingError(
                f'sharding {self} on mesh "{self.mesh}" cannot be expressed with the axes of mesh'
                f' "{mesh}": no choice of its axes gives every device the same piece. Use'
                " Mesh.common_refinement of both meshes, or give both the same device order."
            )
        *dims, replicated, unreduced, manual = found
        return replace(
            self,
            mesh=mesh,
            dims=tuple(dims),
            replicated=replicated,
            unreduced=unreduced,
            manual=manual,
        )

    def with_whole_axes(self) -> Sharding:
        """The same sharding on a mesh whose axes are split so that no sub-axis is needed.

        For JAX, whose ``PartitionSpec`` knows no sub-axes. Split axes are named ``tp_0``, ``tp_1``.
        """
        return self.on(mesh_without_sub_axes([self]))


def mesh_without_sub_axes(shardings: Sequence[Sharding]) -> Mesh:
    """The first sharding's mesh, split where any of ``shardings`` uses a sub-axis.

    Raises:
        ShardingError: No sharding given, their meshes have no common refinement, or two cut one
            axis in ways that do not fit.
    """
    split = [_split_at_sub_axes(sharding) for sharding in shardings]
    return Mesh.common_refinement([*(s.mesh for s in shardings[:1]), *split])


def _split_at_sub_axes(sharding: Sharding) -> Mesh:
    refs = [
        ref
        for group in (*sharding.dims, sharding.replicated, sharding.unreduced, sharding.manual)
        for ref in group
        if ref.size is not None
    ]
    axes: list[Axis] = []
    for index, axis in enumerate(sharding.mesh.axes):
        cuts = {1, axis.size}
        for ref in refs:
            if ref.name == axis.name:
                cuts |= {ref.pre_size, ref.pre_size * sharding.axis_size(ref)}
        chain = chain_of_cuts(cuts)
        assert isinstance(chain, list), "_check_used_once lets only nested sub-axes through"
        axes += [
            Axis(f"axis{index}part{part}", larger // smaller)
            for part, (smaller, larger) in enumerate(pairwise(chain))
        ]
    return Mesh(tuple(axes), sharding.mesh.device_ids)


def refs_of_coordinates(
    mesh: Mesh, coordinates: IntArray, sizes: Sequence[int]
) -> list[tuple[AxisRef, ...]] | None:
    """Which axes of ``mesh``, major first, give each position these coordinates.

    Args:
        mesh: The mesh whose axes are used.
        coordinates: Shape ``(mesh.size, k)``, in mesh position order.
        sizes: The number of values of each coordinate.

    Returns:
        For each coordinate its axes, or None when no choice of sub-axes does it.
    """
    found = axes_of_coordinates(mesh.axis_sizes, coordinates, sizes)
    if found is None:
        return None
    return [
        tuple(
            AxisRef(axis.name, axis.size // (part.block * part.size), part.size)
            for part in parts
            for axis in (mesh.axes[part.axis],)
        )
        for parts in found
    ]


def _names(entry: Entry) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry


def _shape_text(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _check_fits(ref: AxisRef, mesh: Mesh) -> None:
    whole = mesh.axis_size(ref.name)
    size = whole // ref.pre_size if ref.size is None and ref.pre_size > 0 else ref.size
    if size is None or ref.pre_size < 1 or size < 1 or whole % (ref.pre_size * size):
        raise ShardingError(
            f'sub-axis "{ref.name}":({ref.pre_size}){ref.size} does not fit axis "{ref.name}" of'
            f" size {whole}: pre-size * size must divide it. Use a sub-axis such as"
            f' "{ref.name}":(1){whole}.'
        )


def _check_used_once(sharding: Sharding) -> None:
    mesh = sharding.mesh
    groups = (*sharding.dims, sharding.replicated, sharding.unreduced, sharding.manual)
    names = [ref.name for refs in groups for ref in refs]
    if len(set(names)) == len(names):
        return
    ranges: dict[str, list[tuple[int, int]]] = {}
    for refs in groups:
        for ref in refs:
            end = _end(ref, mesh.axis_size(ref.name))
            ranges.setdefault(ref.name, []).append((ref.pre_size, end))
    for name, used in ranges.items():
        used.sort()
        overlap = any(end > begin for (_, end), (begin, _) in pairwise(used))
        whole_twice = mesh.axis_size(name) == 1 and len(used) > 1
        if overlap or whole_twice:
            raise ShardingError(
                f'axis "{name}" (size {mesh.axis_size(name)}) is used more than once in'
                f" {_raw_text(sharding)}. A device axis can cut a value only once: use another"
                " axis in one of the places."
            )
        if isinstance(chain_of_cuts(cut for part in used for cut in part), tuple):
            raise ShardingError(
                f'the sub-axes of "{name}" in {_raw_text(sharding)} do not fit one another.'
                " Use sub-axes whose pre-sizes and sizes divide each other."
            )


def _end(ref: AxisRef, whole: int) -> int:
    """Pre-size that a more minor neighbour of ``ref`` on an axis of size ``whole`` has."""
    return whole if ref.size is None else ref.pre_size * ref.size


def _raw_text(sharding: Sharding) -> str:
    return f"[{', '.join('{' + ', '.join(map(str, refs)) + '}' for refs in sharding.dims)}]"


def _in_mesh_order(refs: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    return tuple(sorted(refs, key=lambda ref: (mesh.axis_index(ref.name), ref.pre_size)))


def _merged(refs: Sequence[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Neighbouring sub-axes joined, full ones written as whole axes, sub-axes of size 1 dropped."""
    merged: list[AxisRef] = []
    for ref in refs:
        whole = mesh.axis_size(ref.name)
        size = whole // ref.pre_size if ref.size is None else ref.size
        if size == 1 and whole > 1:
            continue
        last = merged[-1] if merged else None
        if last is not None and (last.name, _end(last, whole)) == (ref.name, ref.pre_size):
            merged[-1] = AxisRef(ref.name, last.pre_size, _end(last, whole) // last.pre_size * size)
            continue
        merged.append(AxisRef(ref.name, ref.pre_size, size))
    return tuple(
        AxisRef(ref.name) if ref.size == mesh.axis_size(ref.name) else ref for ref in merged
    )
