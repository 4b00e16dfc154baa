"""Slices and nodes that are slower than the others, and the cluster as its slowest one.

A program is split equally, so that each device waits in every collective for the slowest one that
takes part. A step then takes as long as on a cluster whose parts are all as the slowest: exactly
where one part is the slowest in everything, at most so long where they are slow in different
things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.cluster.chips import Chip, Constant
from autoshard.cluster.topology import Dim

SPEEDS: Mapping[str, tuple[str, ...]] = {
    "compute": (
        *("matmul_f64", "matmul_f32", "matmul_f16", "matmul_f8", "matmul_i8"),
        "vector_flops",
    ),
    "memory_bandwidth": ("memory_bandwidth",),
    "memory_bytes": ("memory_bytes",),
    "host_bandwidth": ("host_bandwidth",),
}
"""What may be less of a part, and the constants of its chips that it means."""


@dataclass(frozen=True, slots=True)
class Slower:
    """Some slices or nodes that have less of something than the others."""

    dim: str
    """The dim that they are positions of: ``node``."""
    numbers: tuple[int, ...]
    """Which, from 0."""
    shares: Mapping[str, float]
    """By the names of ``SPEEDS``: what they have of what the others have, above 0, at most 1."""
    bandwidth: Mapping[str, float]
    """By dims: of the bandwidth of their links."""

    @property
    def name(self) -> str:
        """``node 3``, ``slice 0, 2``."""
        return f"{self.dim} {', '.join(map(str, self.numbers))}"


def as_slowest(
    chip: Chip, dims: Sequence[Dim], slower: Sequence[Slower]
) -> tuple[Chip, tuple[Dim, ...]]:
    """The chip and the dims of which every part is as the slowest one; sources say which that is.

    Args:
        chip: Of parts that are not slower.
        dims: Likewise.
        slower: Parts that are.
    """
    constants = {
        key: _least(getattr(chip, key), [(one.name, one.shares.get(speed, 1.0)) for one in slower])
        for speed, keys in SPEEDS.items()
        for key in keys
    }
    changed = tuple(
        replace(
            dim,
            bandwidth=_least(
                dim.bandwidth, [(one.name, one.bandwidth.get(dim.name, 1.0)) for one in slower]
            ),
        )
        for dim in dims
    )
    return replace(chip, **constants), changed


def _least(constant: Constant, shares: Sequence[tuple[str, float]]) -> Constant:
    name, share = min(shares, key=lambda one: one[1])
    if share == 1:
        return constant
    source = f"the slowest, {name}: {share:g} of {constant.value:g} ({constant.source})"
    return Constant(constant.value * share, source)
