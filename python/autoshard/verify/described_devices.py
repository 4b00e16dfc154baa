"""Devices that are not here, as their compilers describe them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import asdict
from typing import Any, cast

import jax

from autoshard.cluster import Cluster
from autoshard.cluster.devices import devices_of, physical_place
from autoshard.errors import ClusterError
from autoshard.verify.targets import target_of


def devices(cluster: str | os.PathLike[str] | Cluster) -> list[Any]:
    """The devices of a cluster, in the order of its dims, for a ``jax.sharding.Mesh``.

    Those of this process where they are of the cluster's kind and enough. Else the compiler
    describes them: programs can be traced, lowered, planned and compiled for them, not run.

    Args:
        cluster: A name, the path of a TOML file, or an ``autoshard.Cluster``.

    Raises:
        ClusterError: No compiler knows such devices, or there are too few CPUs here.
        CompileError: The compiler is not installed; the message says which package has it.

    Example:
        ``mesh = jax.sharding.Mesh(np.reshape(autoshard.devices("v6e:2x4"), (2, 4)), ("x", "y"))``
    """
    wanted = Cluster.of(cluster)
    here = devices_of(wanted)
    if here is not None and len(here) >= wanted.num_devices:
        return here[: wanted.num_devices]
    target = target_of(wanted)
    target.compiler()
    found = devices_of_target(asdict(target))
    if len(found) < wanted.num_devices:
        raise ClusterError(
            f"{wanted.name}: {len(found)} of its {wanted.num_devices} devices are here. Start the"
            f" process with XLA_FLAGS=--xla_force_host_platform_device_count={wanted.num_devices}."
        )
    return found


def devices_of_target(target: dict[str, Any]) -> list[Any]:
    """Those of a ``Target`` as a dict, in the order of the cluster."""
    devices, numbers = _devices_over_dims(target), target["device_numbers"]
    if numbers is None or len(devices) < len(numbers):
        return devices
    return [*(devices[number] for number in numbers), *devices[len(numbers) :]]


def _devices_over_dims(target: dict[str, Any]) -> list[Any]:
    from jax.experimental import topologies

    if target["platform"] == "cpu":
        return list(cast("list[Any]", jax.devices("cpu")))
    more: dict[str, Any] = {}
    if target["platform"] == "cuda":
        more = {"target_config": target["gpu_target"], "topology": target["topology"]}
    elif target["num_slices"] > 1:
        more = {"num_slices": target["num_slices"]}
    if target["chips_per_host"]:
        more["chips_per_host_bounds"] = list(target["chips_per_host"])
    with _quiet_libtpu():
        described = topologies.get_topology_desc(
            target["topology"], platform=target["platform"], **more
        )
    return sorted(described.devices, key=physical_place)


_SETTINGS = "TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"


@contextlib.contextmanager
def _quiet_libtpu() -> Generator[None]:
    """Libtpu would ask the cloud's server which TPU this machine has, and lock it for this process:
    another one could describe no devices then."""
    mine = [name for name in _SETTINGS if name not in os.environ]
    os.environ.update(dict.fromkeys(mine, "1"))
    try:
        yield
    finally:
        for name in mine:
            del os.environ[name]
