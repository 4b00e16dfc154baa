"""Clusters of the core with round numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard import _core


def core_cluster(
    dims: Sequence[tuple[int, _core.LinkKind, float, float]],
    axes: Sequence[Sequence[tuple[int, int]]],
    compiler: Mapping[str, float] | None = None,
) -> _core.Cluster:
    """Cluster of dims (size, kind, bandwidth, latency); axes cover parts of these: (dim, size)."""
    return _core.Cluster(
        matmul_flops=[1e12] * 5,
        vector_flops=1e12,
        memory_bytes=1e9,
        memory_bandwidth=1e12,
        tile_rows=8,
        tile_columns=128,
        matmul_efficiency=1.0,
        memory_efficiency=1.0,
        launch_seconds=0.0,
        dims=[_core.PhysicalDim(*dim) for dim in dims],
        axes=[[_core.AxisPart(*part) for part in parts] for parts in axes],
        compiler=compiler or {},
    )
