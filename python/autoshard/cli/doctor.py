"""The command ``autoshard doctor``: what is installed, which compilers work, what is missing."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import time
from typing import Any, cast

from autoshard.errors import AutoshardError

DESCRIPTION = "Say what is installed, which devices are here, and which compilers work."
USES_DEVICES = True

_PACKAGES = ("autoshard", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
_LIBRARIES = ("flax", "equinox", "optax", "orbax-checkpoint")
_TARGETS = (
    ("CPUs", "cpu:2", "jax"),
    ("TPUs", "v5e:2x2", "libtpu"),
    ("GPUs", "h100:2", "jax-cuda12-plugin or jax-cuda13-plugin"),
)
"""What is compiled for, a cluster, and the packages that bring its compiler."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command is given."""
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds that a compiler may take"
    )


def run(options: argparse.Namespace) -> int:
    """Print the report; 1 if JAX cannot plan or compile for the devices here, else 0."""
    print(f"python {platform.python_version()} on {platform.machine()} {platform.system()}")
    for name in (*_PACKAGES, *_LIBRARIES):
        print(f"{name:<20} {_version(name) or 'not installed'}")
    try:
        import jax

        devices = cast(list[Any], jax.devices())
    except (ImportError, RuntimeError) as error:
        print(f"devices here         none: {error}. Install jax: pip install 'jax>=0.10.2'.")
        return 1
    print(f"devices here         {len(devices)} of {devices[0].platform} {devices[0].device_kind}")
    print(f"cluster here         {_cluster_here()}")
    works = [_compiles(*target, options.timeout) for target in _TARGETS]
    return 0 if works[0] else 1


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cluster_here() -> str:
    """The cluster that a plan without ``cluster=`` is for."""
    from autoshard.cluster import Cluster
    from autoshard.cluster.detect import detected

    try:
        found = Cluster.detect()
    except AutoshardError as error:
        return f"not known: {error}"
    memory = f"{found.usable_memory_bytes / 2**30:.1f} GiB of a device can be used"
    name, *grounds = str(detected()).splitlines()
    return "\n".join([f"{name}, {memory}", *(f"{'':19}{said}" for said in grounds)])


def _step(w: Any, x: Any) -> Any:
    return w - x.T @ (x @ w)


def _compiles(kind: str, cluster: str, packages: str, seconds: float) -> bool:
    """Plan and compile a small step for a cluster, and say how it went."""
    import jax

    from autoshard.frontend.planning import plan

    start = time.perf_counter()
    types = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((64, 64), "float32")
    try:
        plan(_step, *types, cluster=cluster).verify(timeout=seconds)
    except AutoshardError as error:
        missing = getattr(error, "reason", None) == "not installed"
        way_out = f" Install {packages}." if missing else ""
        print(f"compiler of {kind:<8} does not work for {cluster}: {error}{way_out}")
        return False
    print(f"compiler of {kind:<8} works: {cluster}, {time.perf_counter() - start:.1f} s")
    return True
