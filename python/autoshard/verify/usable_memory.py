"""How many bytes of a device the TPU compiler lets a program use.

    python -m autoshard.verify.usable_memory [--write]

The compiler subtracts what it keeps for itself and refuses programs that need more, so the number
is found by asking it: the largest argument that a program which hardly does anything compiles with.
``autoshard.cluster`` plans with the numbers in ``cluster/usable_memory.json``, which ``--write``
writes; run it for a new libtpu. No TPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from autoshard.cluster import chips
from autoshard.cluster.chips import FAMILIES, Torus

FILE = Path(chips.__file__).parent / "usable_memory.json"

STEP_BYTES = 4096
"""How exact the numbers are."""

_MOST_BYTES = 2**40


def largest(compiles: Callable[[int], bool], most: int = _MOST_BYTES) -> int:
    """The largest multiple of ``STEP_BYTES`` below ``most`` for which ``compiles`` says yes.

    Args:
        compiles: Yes up to some number of bytes, no from there on; yes for 0.
        most: A multiple of ``STEP_BYTES`` for which it says no.
    """
    least, most = 0, most // STEP_BYTES
    while most - least > 1:
        middle = (least + most) // 2
        if compiles(middle * STEP_BYTES):
            least = middle
        else:
            most = middle
    return least * STEP_BYTES


def usable_bytes(topology: str) -> int:
    """Bytes of one device of a TPU topology, ``v5e:2x2``.

    Raises:
        CompilationFailed: The compiler refuses a program for another reason than its memory.
    """
    import jax
    from jax.experimental import topologies

    from autoshard.ir.compile import CompilationFailed
    from autoshard.verify.ahead_of_time import read_out_of_memory

    described = topologies.get_topology_desc(topology, platform="tpu")
    device = jax.sharding.SingleDeviceSharding(described.devices[0])
    program: Any = jax.jit(lambda x: x[:1], in_shardings=device, out_shardings=device)

    def compiles(size: int) -> bool:
        try:
            program.lower(jax.ShapeDtypeStruct((size // 4,), "int32")).compile()
        except CompilationFailed as error:
            if read_out_of_memory(str(error)) is None:
                raise
            return False
        return True

    return largest(compiles)


def main() -> int:
    """Ask for every kind of TPU, print the numbers, and write them if told to."""
    parser = argparse.ArgumentParser(
        prog="python -m autoshard.verify.usable_memory",
        description="Bytes of a device that the TPU compiler lets a program use.",
    )
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name} of this install")
    given = parser.parse_args()
    try:
        release = f"libtpu {metadata.version('libtpu')}"
    except metadata.PackageNotFoundError:
        print("no libtpu is installed: pip install '.[tpu]'", file=sys.stderr)
        return 1
    # Quiet, without a TPU, and beside other processes that use libtpu.
    os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    found: dict[str, int] = {}
    for name, family in FAMILIES.items():
        if isinstance(family.shape, Torus):
            topology = f"{name}:{'x'.join(['2', '2', '1'][: family.shape.rank])}"
            found[name] = usable_bytes(topology)
            print(f"{name}: {found[name]} bytes, {found[name] / 2**30:.3f} GiB")
    if given.write:
        read = {"compiler": release, "read": f"{datetime.now(UTC):%Y-%m-%d}", "bytes": found}
        FILE.write_text(json.dumps(read, indent=2) + "\n")
        print(f"{FILE} is of {release}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
