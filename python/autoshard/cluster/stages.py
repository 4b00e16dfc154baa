"""The devices of a cluster in equal groups, one for each stage of a pipeline."""

from __future__ import annotations

from dataclasses import replace

from autoshard.cluster.cluster import Cluster
from autoshard.cluster.order import order_text
from autoshard.cluster.topology import Dim
from autoshard.errors import PlanError


def cluster_of_a_stage(cluster: Cluster, stages: int) -> Cluster:
    """The devices of one stage: dims are cut, the slowest first.

    Raises:
        PlanError: The devices do not fall on the stages so.
    """
    if cluster.order:
        raise PlanError(
            f"stages={stages}: cluster {cluster.name} numbers its devices in the order"
            f" {order_text(cluster.order)}, and stages are cut from its dims as they stand. Leave"
            " the order out."
        )
    dims = _dims_of_a_stage(cluster, stages)
    if dims is None:
        sizes = " x ".join(str(dim.size) for dim in cluster.dims) or "1"
        raise PlanError(
            f"stages={stages}: the {cluster.num_devices} devices of cluster {cluster.name}"
            f" ({sizes}) do not fall on {stages} stages equally, the slowest dim first."
            f" {_way_out(cluster)}"
        )
    return replace(cluster, name=f"{cluster.name}/{stages}", dims=dims, calibration=None)


def numbers_of_stages(cluster: Cluster) -> list[int]:
    """The numbers of stages, two or more, on which the devices of a cluster fall equally.

    Example: 3 nodes of 8 devices are 3, 6, 12 or 24 stages.
    """
    count = cluster.num_devices
    divisors = [n for n in range(2, count + 1) if count % n == 0]
    return [n for n in divisors if _dims_of_a_stage(cluster, n) is not None]


def _dims_of_a_stage(cluster: Cluster, stages: int) -> tuple[Dim, ...] | None:
    """The dims of one stage; None where they cannot be cut so."""
    left, dims = stages, list[Dim]()
    for dim in cluster.dims:
        if left % dim.size == 0:
            left //= dim.size
        elif dim.size % left == 0:
            dims.append(replace(dim, size=dim.size // left))
            left = 1
        else:
            return None
    return tuple(dims) if left == 1 else None


def _way_out(cluster: Cluster) -> str:
    numbers = numbers_of_stages(cluster)
    if not numbers:
        return "Give a cluster of two devices or more."
    return f"Give one of {', '.join(map(str, numbers))} stages."
