"""What is left of a cluster when slices or nodes of it fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.cluster.cluster import Cluster
from autoshard.cluster.order import order_text
from autoshard.cluster.topology import LinkKind
from autoshard.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Remaining:
    """A cluster of which some parts are left."""

    part: str
    """What fails as a whole: ``slice``, ``node``, ``host``."""
    count: int
    """How many of them there are."""
    cluster: Cluster


def remaining(cluster: Cluster, failures: int) -> Iterator[Remaining]:
    """The whole cluster, and what is left after one failure, two, .. up to ``failures``.

    ``v5p:2x2x2*3`` and 2 failures: itself, ``v5p:2x2x2*2``, ``v5p:2x2x2``.

    Args:
        cluster: Its outermost dim is a network between the parts that fail.
        failures: How many parts may be gone; one is always left.

    Raises:
        ClusterError: The cluster is one slice or node, or has no more than ``failures`` of them.
    """
    outer = cluster.dims[0] if cluster.dims else None
    if outer is None or outer.kind is not LinkKind.NETWORK:
        raise ClusterError(
            f"cluster {cluster.name} is one slice or node: nothing is left of it when it fails."
            " Give one of several, such as v5p:2x2x2*4 or h100:4x8."
        )
    if not 0 <= failures < outer.size:
        raise ClusterError(
            f"{failures} failures of {cluster.name}: it has {outer.size} parts of dim {outer.name},"
            f" of which one has to be left. Give 0 to {outer.size - 1}."
        )
    if cluster.order:
        raise ClusterError(
            f"cluster {cluster.name} numbers its devices in the order {order_text(cluster.order)},"
            " which says nothing of fewer. Leave the order out."
        )
    for count in range(outer.size, outer.size - failures - 1, -1):
        yield Remaining(outer.name, count, _of(cluster, count))


def _of(cluster: Cluster, count: int) -> Cluster:
    """The same with another size of its outermost dim."""
    outer, *inner = cluster.dims
    if count == outer.size:
        return cluster
    if not cluster.is_named:
        dims = (replace(outer, size=count), *inner) if count > 1 else tuple(inner)
        return replace(cluster, name=f"{cluster.name}, {count} of {outer.name}", dims=dims)
    chip, _, sizes = cluster.name.partition(":")
    slices, star, _ = sizes.partition("*")
    if star:
        name = f"{chip}:{slices}*{count}" if count > 1 else f"{chip}:{slices}"
    else:
        within = sizes.partition("x")[2]
        name = f"{chip}:{count}x{within}" if count > 1 else f"{chip}:{within}"
    return replace(Cluster.parse(name), compiler_spec=cluster.compiler_spec)
