"""One collective and the bytes it moves: the common ground of all counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from autoshard._core import CollectiveKind as CollectiveKind
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.placement import IntArray, prime_factors
from autoshard.sharding.sharding import AxisRef


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective op of a program."""

    kind: CollectiveKind
    axes: tuple[AxisRef, ...] | None
    """Mesh axes along which the group runs, in mesh order; None: no set of axes gives it."""
    group_size: int
    """Devices that talk to each other."""
    local_bytes: float
    """What one device holds before the call. Half bytes for 4-bit types."""
    times: int = 1
    """How often it runs: trip counts of the loops around it."""
    times_known: bool = True
    """False where a loop around it has no trip count; it then counts as stated by the reader."""
    place: str | None = None
    """``file:line`` of the user's code."""
    element: str = ""
    """Type of an element as MLIR writes it, ``bf16``; empty where the reader does not know."""
    op_name: str = ""
    """JAX's name of the op it comes from, ``jit(f)/dot_general``."""

    @property
    def moved_bytes(self) -> float:
        """Bytes that one device sends in one run: see ``ring_bytes``."""
        return ring_bytes(self.kind, self.group_size, self.local_bytes)

    @property
    def total_bytes(self) -> float:
        """``moved_bytes`` of all its runs."""
        return self.moved_bytes * self.times

    def __str__(self) -> str:
        """``all-gather over dp,tp: 5 x 3,584 bytes (model.py:7)``."""
        axes = "irregular groups" if self.axes is None else ",".join(map(str, self.axes))
        times = f"{self.times} x " if self.times != 1 else ""
        where = f" ({self.place})" if self.place else ""
        return f"{self.kind.value} over {axes}: {times}{self.moved_bytes:,.0f} bytes{where}"


def ring_bytes(kind: CollectiveKind, devices: int, local_bytes: float) -> float:
    """Bytes that each of ``n`` devices on a ring sends in one run of a collective:

        all-gather          (n - 1)     * local
        all-reduce          2 (n - 1)/n * local
        reduce-scatter      (n - 1)/n   * local
        all-to-all          (n - 1)/n   * local
        collective-permute  local

    Args:
        kind: Which collective.
        devices: ``n``, those that talk to each other.
        local_bytes: What one holds before.

    Source:
        Chan et al. 2007, "Collective communication: theory, practice, and experience".
    """
    return _ring_factor(kind, devices) * local_bytes


@cache
def _ring_factor(kind: CollectiveKind, n: int) -> float:
    return {
        CollectiveKind.ALL_GATHER: n - 1,
        CollectiveKind.ALL_REDUCE: 2 * (n - 1) / n,
        CollectiveKind.REDUCE_SCATTER: (n - 1) / n,
        CollectiveKind.ALL_TO_ALL: (n - 1) / n,
        CollectiveKind.PERMUTE: 1,
    }[kind]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one kind over the same axes, added up."""

    runs: int
    total_bytes: float
    """Bytes that one device sends in one run of the program."""


def traffic(
    collectives: Iterable[Collective],
) -> dict[tuple[CollectiveKind, tuple[AxisRef, ...] | None], Traffic]:
    """Runs and bytes by kind and axes."""
    runs: dict[tuple[CollectiveKind, tuple[AxisRef, ...] | None], int] = defaultdict(int)
    moved: dict[tuple[CollectiveKind, tuple[AxisRef, ...] | None], float] = defaultdict(float)
    for collective in collectives:
        key = (collective.kind, collective.axes)
        runs[key] += collective.times
        moved[key] += collective.total_bytes
    return {key: Traffic(runs[key], moved[key]) for key in runs}


def total_bytes(collectives: Iterable[Collective]) -> float:
    """Bytes that one device sends in one run of the program."""
    return sum(collective.total_bytes for collective in collectives)


def in_mesh_order(axes: Iterable[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Outermost first; parts of one axis that adjoin become one."""
    parts = [
        _PrimePart(ref.name, ref.pre_size, ref.size or mesh.axis_size(ref.name)) for ref in axes
    ]
    parts.sort(key=lambda part: (mesh.axis_index(part.axis), part.pre_size))
    return _joined(parts, mesh)


# Groups of devices as mesh axes -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PrimePart:
    """A prime sub-axis: one digit of a device's place in the mesh."""

    axis: str
    pre_size: int
    size: int


def axes_of_groups(groups: IntArray, mesh: Mesh) -> tuple[AxisRef, ...] | None:
    """The mesh axes along which groups of devices run.

    Args:
        groups: Devices (numbers of the program's assignment), int64 of shape
            ``(number of groups, group size)``.
        mesh: The plan's mesh.

    Returns:
        Axes and sub-axes in mesh order; None if the groups are not all the lines, planes, ...
        along one set of sub-axes.
    """
    span = span_of_groups((groups,), mesh)
    size = prod(mesh.axis_size(ref.name) if ref.size is None else ref.size for ref in span)
    return span if groups.size == mesh.size and size == groups.shape[1] else None


def span_of_groups(blocks: Sequence[IntArray], mesh: Mesh) -> tuple[AxisRef, ...]:
    """The smallest set of mesh axes that leads from each device to all others of its groups.

    Args:
        blocks: Groups of devices, those of one size as one array of shape
            ``(number of groups, group size)``.
        mesh: The plan's mesh.
    """
    parts, digits = _digits_by_device(mesh)
    varies = np.zeros(len(parts), dtype=bool)
    for groups in blocks:
        varies |= (digits[groups] != digits[groups[:, :1]]).any(axis=(0, 1))
    return _joined([part for part, on in zip(parts, varies, strict=True) if on], mesh)


def groups_along(axes: Sequence[AxisRef], mesh: Mesh) -> IntArray:
    """The groups of devices that ``axes_of_groups`` finds to run along ``axes``."""
    parts, digits = _digits_by_device(mesh)
    varies = np.array([_is_in(part, axes, mesh) for part in parts], dtype=bool)
    keys = [*digits[:, varies].T[::-1], *digits[:, ~varies].T[::-1]]
    devices = np.lexsort(keys) if keys else np.arange(mesh.size)
    size = prod(part.size for part, on in zip(parts, varies, strict=True) if on)
    return devices.reshape(-1, size)


def _is_in(part: _PrimePart, axes: Sequence[AxisRef], mesh: Mesh) -> bool:
    for ref in axes:
        size = mesh.axis_size(ref.name) if ref.size is None else ref.size
        if ref.name == part.axis and ref.pre_size <= part.pre_size < ref.pre_size * size:
            return True
    return False


def axes_of_pairs(pairs: IntArray, mesh: Mesh) -> tuple[AxisRef, ...]:
    """The mesh axes along which anything moves; ``pairs`` is (source, target) per row."""
    parts, digits = _digits_by_device(mesh)
    varies = (digits[pairs[:, 0]] != digits[pairs[:, 1]]).any(axis=0)
    return _joined([part for part, on in zip(parts, varies, strict=True) if on], mesh)


def _digits_by_device(mesh: Mesh) -> tuple[list[_PrimePart], IntArray]:
    """Every axis split into primes, and for each device its digit along each part."""
    parts: list[_PrimePart] = []
    for axis in mesh.axes:
        pre_size = 1
        for prime in prime_factors(axis.size):
            parts.append(_PrimePart(axis.name, pre_size, prime))
            pre_size *= prime
    places = np.empty(mesh.size, dtype=np.int64)
    places[mesh.device_order()] = np.arange(mesh.size)
    shape = tuple(part.size for part in parts)
    return parts, np.stack(np.unravel_index(places, shape), axis=1) if shape else places[:, None][
        :, :0
    ]


def _joined(parts: list[_PrimePart], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Neighbouring prime parts of one axis as one sub-axis, or as the whole axis."""
    joined: list[_PrimePart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.axis == part.axis and last.pre_size * last.size == part.pre_size:
            joined[-1] = _PrimePart(last.axis, last.pre_size, last.size * part.size)
        else:
            joined.append(part)
    return tuple(
        AxisRef(part.axis)
        if part.size == mesh.axis_size(part.axis)
        else AxisRef(part.axis, part.pre_size, part.size)
        for part in joined
    )
