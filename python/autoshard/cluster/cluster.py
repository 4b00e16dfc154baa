"""The machines that a program is planned for."""

from __future__ import annotations

import logging
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import starmap
from math import isfinite, prod
from pathlib import Path
from typing import cast

from autoshard import _core
from autoshard.cluster.axes import level_mesh, parts_of
from autoshard.cluster.chips import UNITS, Chip
from autoshard.cluster.corrections import AS_MODELLED, Corrections
from autoshard.cluster.order import (
    Order,
    complaint_of_order,
    default_order,
    device_numbers,
    order_text,
)
from autoshard.cluster.record import CalibrationRecord
from autoshard.cluster.topology import Dim, LinkKind, read_name
from autoshard.compilers.compiler import Compiler, compiler_for, read_compiler
from autoshard.errors import ClusterError
from autoshard.sharding.mesh import Mesh

MAX_DIMS = _core.MAX_MESH_AXES
"""As many as a mesh has axes in the core."""


@dataclass(frozen=True)
class Cluster:
    """Devices of one kind and how they reach each other.

    Devices are numbered row-major over ``dims``, or over parts of them in another ``order``. A
    program whose devices are ordered in another way is costed as if they were in this one.

    Args:
        name: As the user wrote it.
        chip: What one device is.
        dims: Slowest first: the last one is the fastest to reach. None: one device.
        calibration: Where its constants were measured; None where they were not.
        compiler_spec: The compiler as ``with_compiler`` takes it; empty: the chip's, in the
            release that is installed.
        order: Parts of dims that number the devices, slowest first: ``(("y", 8), ("x", 4))``.
            Empty: the dims as they stand; a search with a given mesh then chooses one.
        corrections: Of the costs of one program, as a compiler was seen to make them.

    Raises:
        ClusterError: A constant that cannot be, a dim below 2, two dims of one name, more than
            ``MAX_DIMS``, or an order that does not cover the dims.
    """

    name: str
    chip: Chip
    dims: tuple[Dim, ...]
    calibration: CalibrationRecord | None = field(default=None, compare=False)
    compiler_spec: str = ""
    order: Order = ()
    corrections: Corrections = AS_MODELLED

    def __post_init__(self) -> None:
        if len(self.dims) > MAX_DIMS:
            raise ClusterError(
                f"cluster {self.name} has {len(self.dims)} dims, but at most {MAX_DIMS} are"
                " supported. Join some of them."
            )
        for key, constant in self.chip.constants().items():
            self._check(f"chip.{key}", key, constant.value)
        for key in ("products", "others"):
            times = getattr(self.corrections, key)
            if not (isfinite(times) and times > 0):
                raise ClusterError(
                    f"cluster {self.name}: corrections.{key} is {times}; a positive number of times"
                    " is needed."
                )
        for dim in self.dims:
            if dim.size < 2:
                raise ClusterError(
                    f"cluster {self.name}: dim {dim.name} has size {dim.size}. Leave out dims"
                    " below 2."
                )
            self._check(f"{dim.name}.bandwidth", "bandwidth", dim.bandwidth.value)
            self._check(f"{dim.name}.latency", "latency", dim.latency.value)
        repeated = [n for n, count in Counter(dim.name for dim in self.dims).items() if count > 1]
        if repeated:
            raise ClusterError(
                f"cluster {self.name}: several dims are named {repeated[0]}. Give every dim its"
                " own name."
            )
        wrong = complaint_of_order(self.order, self.dims) if self.order else None
        if wrong:
            raise ClusterError(f"cluster {self.name}: order {order_text(self.order)}: {wrong}.")

    def _check(self, place: str, key: str, value: float) -> None:
        wrong = complaint(key, value)
        if wrong:
            raise ClusterError(f"cluster {self.name}: {place} is {value}; {wrong}.")

    @classmethod
    def parse(cls, name: str) -> Cluster:
        """The cluster of a name: ``v5p:4x4x4``, ``v5p:16x16x16*2``, ``h100:4x8``, ``cpu:8``.

        TPUs have the dims of a slice in chips, and ``*2`` for two slices; GPUs and others the
        devices of a node, or nodes x devices.

        Raises:
            ClusterError: Another form, a chip that nobody knows, sizes that it is not built in.
        """
        family, dims = read_name(name)
        return cls(name.strip().lower(), family.chip, dims)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Cluster:
        """The cluster that a file describes; docs/use/clusters.md has the format.

        Raises:
            ClusterError: The file cannot be read, or what it says cannot be.
        """
        from autoshard.cluster.toml_file import read_toml

        return read_toml(Path(path))

    @classmethod
    def of(cls, cluster: str | os.PathLike[str] | Cluster, compiler: str | None = None) -> Cluster:
        """A cluster as users write it: a name, the path of a TOML file, or a ``Cluster``.

        Args:
            cluster: One of these.
            compiler: As ``with_compiler`` takes it; empty or None: the cluster's own.

        Raises:
            ClusterError: As ``parse``, ``from_toml`` and ``with_compiler``, or something else.
        """
        if isinstance(cluster, Cluster):
            found = cluster
        elif not isinstance(cast("object", cluster), str | os.PathLike):
            raise ClusterError(
                f'cluster={cluster!r} is no cluster. Give a name such as "v5e:4x4", the path of a'
                " TOML file, or an autoshard.Cluster."
            )
        elif not isinstance(cluster, str) or cluster.endswith(".toml"):
            found = cls.from_toml(cluster)
        else:
            found = cls.parse(cluster)
        if compiler is None or str(compiler) == "":
            return found
        return found.with_compiler(compiler)

    @classmethod
    def detect(cls) -> Cluster:
        """The cluster of ``jax.devices()``; the logger ``autoshard`` says what it rests on.

        Raises:
            ClusterError: Devices of several kinds, of one that nobody knows, or that do not fill
                a slice or their nodes.
        """
        from autoshard.cluster.detect import detected

        found = detected()
        logging.getLogger("autoshard").info("cluster of the devices here: %s", found)
        return cls.parse(found.name)

    def with_compiler(self, spec: str) -> Cluster:
        """The same devices with another compiler, or another release of it.

        Args:
            spec: ``xla-tpu-0.0.42``, ``xla-tpu``, ``unknown``; with ``:without=RULE`` behind to
                have a rule answered as if nothing was known. docs/design/compilers.md has the
                names.

        Raises:
            ClusterError: No compiler or rule has such a name.
        """
        if not isinstance(cast("object", spec), str):
            raise ClusterError(
                f'compiler={spec!r} is no name of a compiler. Give one such as "xla-tpu-0.0.42";'
                " docs/design/compilers.md has them."
            )
        changed = replace(self, compiler_spec=spec)
        _ = changed.compiler  # says what is wrong with it
        return changed

    @property
    def platform(self) -> str | None:
        """What JAX calls such devices: ``tpu``, ``cuda``, ``cpu``; None where that is not known."""
        compiler = self.chip.compiler
        return read_compiler(compiler).platform if compiler else None

    @cached_property
    def compiler(self) -> Compiler:
        """What is known of the compiler for these devices."""
        chip = self.chip
        return compiler_for(self.compiler_spec, chip.compiler, chip.compiled_as or chip.name)

    @cached_property
    def num_devices(self) -> int:
        """Number of JAX devices."""
        return prod(dim.size for dim in self.dims)

    @property
    def usable_memory_bytes(self) -> int:
        """Bytes of one device that a program may use."""
        return int(self.chip.memory_bytes.value)

    def level_mesh(self) -> Mesh:
        """The axes that a search decides one by one, slowest first: parts of the dims.

        Every dim is split into its primes; if that makes more than six axes, into six as equal
        as possible.
        """
        return level_mesh(self.dims, self.order)

    def in_order(self, order: Order) -> Cluster:
        """The same devices numbered in this order.

        Raises:
            ClusterError: The order does not cover the dims.
        """
        return replace(self, order=order)

    @property
    def uncorrected(self) -> Cluster:
        """The same devices without corrections of the costs of one program."""
        return self if self.corrections.none_needed else replace(self, corrections=AS_MODELLED)

    @property
    def has_torus(self) -> bool:
        """Whether any devices are neighbours on a ring or a line."""
        return any(dim.kind in (LinkKind.RING, LinkKind.LINE) for dim in self.dims)

    @property
    def parts(self) -> Order:
        """Names of dims and sizes of their parts over which devices are numbered."""
        return self.order or default_order(self.dims)

    def covered_in_order(self, mesh: Mesh) -> dict[str, str]:
        """As ``covered_by``; nothing where no order is said, so that axes cover dims in turn."""
        return self.covered_by(mesh) if self.order else {}

    def covered_by(self, mesh: Mesh) -> dict[str, str]:
        """What each axis of a mesh lies on: ``{"data": "y", "model": "2 of x"}``.

        Raises:
            ClusterError: As ``to_core``.
        """
        axes = mesh.without_unit_axes().axis_names
        found = zip(axes, parts_of(mesh, self.dims, self.name, self.order), strict=True)
        return {axis: ", ".join(starmap(self._part_text, parts)) for axis, parts in found}

    def _part_text(self, dim: int, size: int) -> str:
        one = self.dims[dim]
        return one.name if one.size == size else f"{size} of {one.name}"

    @property
    def device_numbers(self) -> tuple[int, ...] | None:
        """The device at each number of the order, as numbered over the dims; None: its own."""
        return device_numbers(self.order, self.dims) if self.order else None

    def to_core(self, mesh: Mesh, overlap: float = 0.0) -> _core.Cluster:
        """The same for the core, with the links of every axis of ``mesh``.

        Args:
            mesh: Any mesh of this many devices. Axes of size 1 are left out, and its
                ``device_ids`` do not count: position ``p`` is physical device ``p``.
            overlap: Share of communication that is hidden behind compute, 0 to 1.

        Raises:
            ClusterError: Another number of devices, an axis that does not fit the dims, or a
                share that is none.
        """
        if not 0 <= overlap <= 1:
            raise ClusterError(
                f"overlap is {overlap}, but it is the share of communication that is hidden"
                " behind compute. Give a number from 0 to 1."
            )
        chip = self.chip
        return _core.Cluster(
            matmul_flops=[chip.matmul_flops(one).value for one in _core.Arithmetic],
            vector_flops=chip.vector_flops.value,
            exponentials=chip.exponentials.value,
            memory_bytes=chip.memory_bytes.value,
            memory_bandwidth=chip.memory_bandwidth.value,
            tile_rows=int(chip.tile_rows.value),
            tile_columns=int(chip.tile_columns.value),
            matmul_efficiency=chip.matmul_efficiency.value,
            memory_efficiency=chip.memory_efficiency.value,
            attention_gradient_efficiency=chip.attention_gradient_efficiency.value,
            launch_seconds=chip.launch_seconds.value,
            dims=[
                _core.PhysicalDim(dim.size, dim.kind, dim.bandwidth.value, dim.latency.value)
                for dim in self.dims
            ],
            axes=[
                [_core.AxisPart(dim, size) for dim, size in parts]
                for parts in parts_of(mesh, self.dims, self.name, self.order)
            ],
            overlap_slowdown=chip.overlap_slowdown.value,
            overlap=overlap,
            compiler=self.compiler.to_core(),
            corrections=(self.corrections.products, self.corrections.others),
        )

    @property
    def is_named(self) -> bool:
        """Whether ``Cluster.parse`` of its name gives it: not where it came from a file."""
        try:
            return Cluster.parse(self.name) == self
        except ClusterError:
            return False

    def to_toml(self) -> str:
        """The text of a file that ``from_toml`` reads as this cluster."""
        from autoshard.cluster.toml_file import write_toml

        return write_toml(self)

    def describe(self) -> str:
        """Tables of devices, dims, links, the axes of a search, and the source of every number."""
        from autoshard.report.cluster_table import cluster_table
        from autoshard.report.plan_table import render

        return render(cluster_table(self))


def complaint(key: str, value: float) -> str | None:
    """What is wrong with the value of a constant, None if nothing is."""
    unit = UNITS[key]
    if not isfinite(value):
        return f"a finite number of {unit} is needed"
    if key in ("latency", "launch_seconds"):
        return None if value >= 0 else "0 or more seconds are needed"
    if key.endswith("_efficiency"):
        return None if 0 < value <= 1 else "a share above 0 and at most 1 is needed"
    if key in ("overlap_slowdown", "host_slowdown"):
        return None if value >= 1 else "1 or more times is needed"
    if key.startswith("tile_"):
        return None if value >= 1 and value == int(value) else "a whole number from 1 on is needed"
    return None if value > 0 else f"a positive number of {unit} is needed"
