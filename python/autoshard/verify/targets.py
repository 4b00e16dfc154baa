"""What a cluster is to a compiler: the topology of a TPU slice, a GPU's description, or CPUs."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from importlib import metadata
from math import gcd
from pathlib import Path
from typing import Literal

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES, Node, Torus
from autoshard.errors import ClusterError, CompileError

Platform = Literal["cpu", "tpu", "cuda"]

_GPU_TARGETS = Path(__file__).parent / "gpu_targets"

_PACKAGES: dict[Platform, tuple[tuple[str, ...], ...]] = {
    "cpu": (("jaxlib",),),
    "tpu": (("libtpu", "jaxlib"),),
    "cuda": (
        ("jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12", "jaxlib"),
        ("jax-cuda13-pjrt", "nvidia-cuda-nvcc", "jaxlib"),
    ),
}
"""Whose releases decide what is compiled, the compiler first; of CUDA, one of two generations."""

_ASSEMBLERS = ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc")
"""They bring ``ptxas``, which may be on the path without them."""

_SCHEDULED_PERCENT = 80
"""XLA:GPU schedules for as much of a device's memory, and computes again what lies beyond, where no
allocator says what it may hold (GetSchedulerMemoryLimit of xla/service/gpu/gpu_hlo_schedule.cc). On
a device the allocator does: XLA_PYTHON_CLIENT_MEM_FRACTION of the memory."""

_RESERVED_OF_A_TPU = "xla_tpu_user_reserved_hbm_bytes"
"""Bytes of a device that libtpu leaves to others: of a program that takes 7.9 GiB of a v5e it makes
one of 5.9 GiB where 8 GiB are reserved (libtpu 0.0.42.1)."""

_AGAIN: dict[Platform, tuple[tuple[str, str, str], ...]] = {
    "cuda": (
        ("Couldn't find output tile sizes", "xla_gpu_enable_triton_gemm", "False"),
        ("No supported config found", "xla_gpu_enable_triton_gemm", "False"),
    ),
}
"""What a compiler says of modules that it compiles with an option. XLA:GPU takes tiles of Triton's
products as they are where none are measured, and some fit no product (jax-cuda12-pjrt 0.10.2, of
the text half of CLIP; 0.11.2 in other words)."""

_EXTRAS = {"libtpu": "tpu", "jax-cuda12-pjrt": "gpu", "jax-cuda13-pjrt": "gpu13"}
"""What brings a compiler: ``pip install '.[tpu]'``."""


@dataclass(frozen=True, slots=True)
class Target:
    """Devices that a program can be compiled for without having them."""

    name: str
    """The cluster's."""
    platform: Platform
    num_devices: int
    topology: str
    """``v5p:4x4x4`` of a slice; ``1x1x8`` of GPUs: domains of NVLink x hosts of one x GPUs of a
    host; empty for CPUs."""
    num_slices: int = 1
    chips_per_host: tuple[int, ...] = ()
    """Chips per host of a slice whose hosts are not the usual ones of 2x2x1 chips; else empty."""
    gpu_target: str = ""
    """Text of XLA's ``GpuTargetConfigProto``; empty elsewhere."""
    options: tuple[tuple[str, str], ...] = ()
    """Options of the compiler that such a compile needs."""
    device_numbers: tuple[int, ...] | None = None
    """The device at each number of the cluster's order, as numbered over its dims; None: as
    there."""

    def compiler(self) -> str:
        """The packages that compile for it: ``libtpu 0.0.42, jaxlib 0.10.2``.

        Raises:
            CompileError: One of them is not installed.
        """
        generations = _PACKAGES[self.platform]
        packages = next((each for each in generations if _version(each[0])), generations[0])
        found: list[str] = []
        for package in packages:
            version = _version(package)
            if version is not None:
                found.append(f"{package} {version}")
            elif package not in _ASSEMBLERS or shutil.which("ptxas") is None:
                raise CompileError(
                    f"{self.name}: the package {package}, which compiles for it, is not installed."
                    f" In a checkout: pip install '.[{_EXTRAS[packages[0]]}]'. No such"
                    " device is needed.",
                    reason="not installed",
                )
        return ", ".join(found)

    def options_against(self, refusal: str) -> dict[str, str]:
        """Options with which the compiler takes a module that it refuses with these words."""
        return {
            name: value for said, name, value in _AGAIN.get(self.platform, ()) if said in refusal
        }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def target_of(cluster: Cluster) -> Target:
    """What to compile for, so that partition ``p`` is device ``p`` of the cluster.

    Raises:
        ClusterError: No compiler here knows such devices, or dims of other machines than theirs.
    """
    return replace(_target_of_dims(cluster), device_numbers=cluster.device_numbers)


def _target_of_dims(cluster: Cluster) -> Target:
    family = FAMILIES.get(cluster.chip.name)
    name = cluster.name
    if family is not None and isinstance(family.shape, Torus):
        sizes = _sizes(cluster, ("slice", *"xyz"[: family.shape.rank], "core"))
        core = sizes.pop("core")
        if core == family.devices_per_chip:
            slices = sizes.pop("slice")
            topology = f"{family.chip.name}:{'x'.join(map(str, sizes.values()))}"
            hosts = _chips_per_host(tuple(sizes.values()))
            taken = int(family.chip.memory_bytes.value) - cluster.usable_memory_bytes
            options = ((_RESERVED_OF_A_TPU, str(taken)),) if taken > 0 else ()
            return Target(
                name, "tpu", cluster.num_devices, topology, slices, hosts, options=options
            )
        raise ClusterError(
            f"cluster {name}: a chip of {family.chip.name} is {family.devices_per_chip} devices,"
            f" here {core}. Compile for a cluster by name, such as"
            f" {family.chip.name}:{'x'.join(['4'] * family.shape.rank)}."
        )
    if cluster.chip.name == "cpu":
        return Target(name, "cpu", cluster.num_devices, "")
    described = _GPU_TARGETS / f"{cluster.chip.name}.txt"
    if family is not None and isinstance(family.shape, Node) and described.exists():
        sizes = _sizes(cluster, (family.shape.outer_dim, family.shape.dim))
        nodes, gpus = sizes.values()
        return Target(
            name,
            "cuda",
            nodes * gpus,
            f"{nodes}x1x{gpus}",
            gpu_target=_gpu_target(described.read_text(), cluster),
            # Autotuning runs kernels, and there is no GPU to run them on.
            options=(("xla_gpu_autotune_level", "0"),),
        )
    raise ClusterError(
        f"cluster {name}: no compiler for {cluster.chip.name} is known. Those for"
        f" {', '.join(compiled_chips())} are: give such a cluster as the target."
    )


def _gpu_target(described: str, cluster: Cluster) -> str:
    """The description with the memory for which XLA schedules as on a device of the cluster."""
    size = -(-int(cluster.usable_memory_bytes) * 100 // _SCHEDULED_PERCENT)
    return re.sub(r"(device_memory_size: )\d+", rf"\g<1>{size}", described)


def _chips_per_host(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Chips per host of a slice in chips: empty for 2x2x1, else as much of that as fills it."""
    usual = (2, 2, 1)
    sizes = (*sizes, 1, 1)[:3]
    if all(size % chips == 0 for size, chips in zip(sizes, usual, strict=True)):
        return ()
    return tuple(gcd(size, chips) for size, chips in zip(sizes, usual, strict=True))


def compiled_chips() -> list[str]:
    """The chips that ``target_of`` knows."""
    return [
        name
        for name, family in FAMILIES.items()
        if name == "cpu"
        or isinstance(family.shape, Torus)
        or (_GPU_TARGETS / f"{name}.txt").exists()
    ]


def _sizes(cluster: Cluster, names: tuple[str, ...]) -> dict[str, int]:
    """The size of every dim of such a machine; they have to be in this order."""
    sizes = dict.fromkeys(names, 1) | {dim.name: dim.size for dim in cluster.dims}
    if [dim.name for dim in cluster.dims] == [name for name in names if sizes[name] > 1]:
        return sizes
    given = ", ".join(dim.name for dim in cluster.dims)
    raise ClusterError(
        f"cluster {cluster.name} has the dims {given}, but a compiler for {cluster.chip.name}"
        f" knows {', '.join(names)}, in this order. Give a cluster of these dims as the target."
    )
