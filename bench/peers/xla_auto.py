"""XLA's own auto-sharding, for bench/quality/experts.py: run by a Python that has jax 0.6.2.

    pip install "jax[tpu]==0.6.2"
    python bench/peers/xla_auto.py MODULE.mlir TOPOLOGY MESH FOLDER

The last releases of libtpu that have it go with jax 0.6; newer ones take the option and do nothing.
``MODULE.mlir`` is StableHLO text without Shardy's dialect, MESH the sizes of the mesh, "16x4", over
the devices in the order of their coordinates, slowest first. Writes ``hlo.txt`` and ``result.json``
into FOLDER. Imports nothing of this project.
"""

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies


def main() -> None:
    path, topology, mesh, folder = sys.argv[1:]
    with mlir.make_ir_context():
        module = ir.Module.parse(Path(path).read_text())
        devices = sorted(
            topologies.get_topology_desc(platform="tpu", topology_name=topology).devices,
            key=lambda device: (*device.coords, device.core_on_chip),
        )
        sizes = [int(size) for size in mesh.split("x")]
        if math.prod(sizes) != len(devices):
            sys.exit(f"mesh {mesh} has {math.prod(sizes)} devices, {topology} {len(devices)}.")
        options = compiler.get_compile_options(
            num_replicas=1,
            num_partitions=len(devices),
            device_assignment=np.array([devices]),
            use_spmd_partitioning=True,
            use_auto_spmd_partitioning=True,
            auto_spmd_partitioning_mesh_shape=sizes,
            auto_spmd_partitioning_mesh_ids=list(range(len(devices))),
            backend=devices[0].client,
        )
        start = time.perf_counter()
        made = compiler.backend_compile(
            devices[0].client, module, xla_client.DeviceList(tuple(devices)), options
        )
        seconds = time.perf_counter() - start
    stats = made.get_compiled_memory_stats()
    peak = (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
    )
    Path(folder, "hlo.txt").write_text(made.hlo_modules()[0].to_string())
    Path(folder, "result.json").write_text(json.dumps({"seconds": seconds, "peak": peak}))


if __name__ == "__main__":
    main()
