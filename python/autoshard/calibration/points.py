"""What is measured, and what the cost model says of the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from autoshard import _core
from autoshard._core import Arithmetic
from autoshard.cluster.alone import Tensor, rule_alone
from autoshard.cluster.cluster import Cluster
from autoshard.cluster.topology import LinkKind
from autoshard.planned.collective import CollectiveKind

ARITHMETIC: Mapping[str, Arithmetic] = MappingProxyType(
    {one.name.lower(): one for one in Arithmetic}
)
"""The constants ``matmul_f64``, .. as the core counts them."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices that every device computes for itself, rows x contracted x columns."""

    arithmetic: str
    """``f32``, ..: a key of ``ARITHMETIC``."""
    bits: int
    rows: int
    columns: int
    contracted: int

    @property
    def flops(self) -> float:
        """Two for each multiply-add."""
        return 2.0 * self.rows * self.columns * self.contracted

    def __str__(self) -> str:
        return f"{self.arithmetic} {self.rows}x{self.contracted}x{self.columns}"


@dataclass(frozen=True, slots=True)
class Stream:
    """Fused elementwise work on every device."""

    name: str
    flops: float
    """As the importer counts the ops."""
    bytes_read: int
    bytes_written: int

    def __str__(self) -> str:
        return f"{self.name} {_bytes(self.bytes_read + self.bytes_written)}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective, in all groups along ``axes`` of the level mesh at once."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    group_size: int
    held_bytes: int
    """Bytes that each device holds before."""

    def __str__(self) -> str:
        return f"{self.kind.value} {','.join(self.axes)} {_bytes(self.held_bytes)}"


Work = Product | Stream | Exchange


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    work: Work
    seconds: float
    """Median over repetitions, all devices working at once."""
    extra_launches: int = 0
    """Tiny ops measured with it, which make one run wait for the one before."""

    @property
    def kind(self) -> str:
        """``matmul f32``, ``memory``, ``vector``, ``launch``, ``all-gather``, .."""
        match self.work:
            case Product(arithmetic=arithmetic):
                return f"matmul {arithmetic}"
            case Stream(name=name):
                return name.split()[0]
            case Exchange(kind=kind):
                return kind.value


class Model:
    """The cost model with the constants of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        """Works for every point measured on this cluster's dims."""
        mesh = cluster.level_mesh()
        self._core = cluster.to_core(mesh)
        self._sizes = [axis.size for axis in mesh.axes]
        self._bits = {name: 1 << place for place, name in enumerate(mesh.axis_names)}
        self._launch = cluster.chip.launch_seconds.value

    def seconds(self, point: Point) -> float:
        """What the model says that the point takes."""
        return self._of(point.work) + point.extra_launches * self._launch

    def _of(self, work: Work) -> float:
        match work:
            case Product():
                return self._product(work)
            case Stream():
                return self._stream(work)
            case Exchange():
                mask = sum(self._bits[name] for name in work.axes)
                step = _core.Step(work.kind, mask, work.group_size, work.held_bytes)
                return _core.collective_seconds(step, self._core, self._sizes)

    def _product(self, work: Product) -> float:
        rows, columns, contracted = range(3)
        tensors = [
            ([[rows], [contracted]], work.bits),
            ([[contracted], [columns]], work.bits),
        ]
        sizes = [work.rows, work.columns, work.contracted]
        return self._compute(
            _core.Work.MATMUL,
            ARITHMETIC[work.arithmetic],
            work.flops,
            sizes,
            tensors,
            [([[rows], [columns]], work.bits)],
        )

    def _stream(self, work: Stream) -> float:
        read, written = max(1, work.bytes_read), max(1, work.bytes_written)
        return self._compute(
            _core.Work.ELEMENTWISE,
            Arithmetic.F32,
            work.flops,
            [read, written],
            [([[0]], 8)],
            [([[1]], 8)],
        )

    def _compute(
        self,
        work: _core.Work,
        arithmetic: Arithmetic,
        flops: float,
        sizes: list[int],
        operands: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> float:
        rule, types = rule_alone(work, arithmetic, flops, sizes, operands, results)
        whole: list[list[int]] = [[] for _ in sizes]
        reads, writes = [True] * len(operands), [True] * len(results)
        return _core.compute(rule, types, whole, reads, writes, self._core, self._sizes).seconds


def axes_of_dims(cluster: Cluster) -> list[tuple[str, ...]]:
    """The level axes of each dim, slowest first."""
    left = list(cluster.level_mesh().axes)
    found: list[tuple[str, ...]] = []
    for dim in cluster.dims:
        names: list[str] = []
        size = 1
        while size < dim.size:
            axis = left.pop(0)
            names.append(axis.name)
            size *= axis.size
        found.append(tuple(names))
    return found


def device_groups(cluster: Cluster) -> list[tuple[str, ...]]:
    """Sets of level axes whose devices form groups that the cost model tells apart.

    Of each dim the minor parts of every size and the whole; of rings and lines also the major
    parts, whose groups share links; and all dims together.

    Example: ``cpu:8`` has (cpu2), (cpu1, cpu2) and (cpu0, cpu1, cpu2).
    """
    groups: list[tuple[str, ...]] = []
    for dim, names in zip(cluster.dims, axes_of_dims(cluster), strict=True):
        groups += [names[start:] for start in reversed(range(len(names)))]
        if dim.kind in (LinkKind.RING, LinkKind.LINE):
            groups += [names[:end] for end in range(1, len(names))]
    if len(cluster.dims) > 1:
        groups.append(tuple(cluster.level_mesh().axis_names))
    return groups


def group_size(cluster: Cluster, axes: Sequence[str]) -> int:
    """Devices of one group along ``axes``."""
    return prod(axis.size for axis in cluster.level_mesh().axes if axis.name in axes)


def _bytes(count: int) -> str:
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= scale:
            return f"{count / scale:g} {unit}"
    return f"{count} B"
