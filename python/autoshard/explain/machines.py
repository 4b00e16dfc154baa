"""Machines that are not there: more chips, faster links, less memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES, Constant, Torus
from autoshard.cluster.topology import Dim, LinkKind
from autoshard.errors import ClusterError, PlanError

FACTORS: Mapping[str, tuple[str, ...]] = {
    "flops": (
        "matmul_f64",
        "matmul_f32",
        "matmul_f16",
        "matmul_f8",
        "matmul_i8",
        "vector_flops",
    ),
    "memory_bandwidth": ("memory_bandwidth",),
    "memory": ("memory_bytes",),
    "host_bandwidth": ("host_bandwidth",),
    "launch": ("launch_seconds",),
    "bandwidth": (),
    "latency": (),
}
"""What may be so many times as much, with the constants of a chip that it is; the last two are of
all links."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One number of a machine that can be turned."""

    name: str
    """``ICI bandwidth``, ``HBM bandwidth``, ``matrix units``, ..."""
    cluster: Cluster
    """With that number changed."""


def scaled(cluster: Cluster, factors: Mapping[str, Any]) -> Cluster:
    """A cluster with some of ``FACTORS`` so many times as much.

    Raises:
        PlanError: A factor that is none.
        ClusterError: A number that no machine has.
    """
    for name, factor in factors.items():
        if not isinstance(factor, int | float) or not factor > 0:
            raise PlanError(f"{name}={factor!r} is no factor. Give how many times as much: 0.5, 2.")
        if factor == 1:
            continue
        if name in ("bandwidth", "latency"):
            dims = tuple(_dim(dim, name, factor) for dim in cluster.dims)
            cluster = replace(cluster, dims=dims)
        else:
            chip = cluster.chip
            constants = {one: _times(getattr(chip, one), factor) for one in FACTORS[name]}
            # Another number makes another chip; the compiler answers as for the one it is.
            compiled_as = chip.compiled_as or chip.name
            cluster = replace(cluster, chip=replace(chip, compiled_as=compiled_as, **constants))
    return cluster


def knobs(cluster: Cluster, share: float) -> Iterator[Knob]:
    """Every number of a machine that may decide a step, each with so much more of it."""
    factor = 1 + share
    for name, key in (
        ("matrix units", "flops"),
        ("memory bandwidth", "memory_bandwidth"),
        ("launch of a kernel", "launch"),
    ):
        yield Knob(name, scaled(cluster, {key: factor}))
    for key in ("bandwidth", "latency"):
        for kind in dict.fromkeys(dim.kind for dim in cluster.dims):
            dims = tuple(
                _dim(dim, key, factor) if dim.kind == kind else dim for dim in cluster.dims
            )
            where = ", ".join(dim.name for dim in cluster.dims if dim.kind == kind)
            links = "network" if kind is LinkKind.NETWORK else "links"
            yield Knob(f"{key} of {links} ({where})", replace(cluster, dims=dims))


def cluster_of_chips(cluster: Cluster, chips: int) -> Cluster:
    """So many of the same chips, in the most compact form that they are built in.

    Raises:
        ClusterError: They are built in no such number, or the cluster has no name.
    """
    family = FAMILIES.get(cluster.chip.name)
    if family is None or not cluster.is_named:
        raise ClusterError(
            f"cluster {cluster.name}: how many chips are built together is known of named ones"
            " only. Give cluster= with a file for each."
        )
    name = cluster.chip.name
    if isinstance(family.shape, Torus):
        shapes = sorted(_shapes(chips, family.shape.rank), key=lambda sizes: (sum(sizes), sizes))
        names = [f"{name}:{'x'.join(map(str, sizes))}" for sizes in shapes]
    else:
        most = family.shape.max_devices or chips
        inner = max(size for size in range(1, most + 1) if chips % size == 0)
        names = [f"{name}:{chips // inner}x{inner}"]
    for candidate in names:
        try:
            return replace(Cluster.parse(candidate), compiler_spec=cluster.compiler_spec)
        except ClusterError:
            continue
    raise ClusterError(f"{name} is not built in {chips} chips. Give another number.")


def _shapes(count: int, rank: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as so many factors, the smallest first."""
    if rank == 1:
        yield (count,)
        return
    for size in range(1, count + 1):
        if count % size == 0:
            for rest in _shapes(count // size, rank - 1):
                if rest[0] >= size:
                    yield (size, *rest)


def _dim(dim: Dim, key: str, factor: float) -> Dim:
    if key == "bandwidth":
        return replace(dim, bandwidth=_times(dim.bandwidth, factor))
    return replace(dim, latency=_times(dim.latency, factor))


def _times(constant: Constant, factor: float) -> Constant:
    return Constant(constant.value * factor, f"{factor:g} times {constant.source}")
