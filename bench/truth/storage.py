"""Predicted peak memory beside the compiler's own, for one device.

    python bench/truth/storage.py [NAME ...] [--platform tpu|cpu]

The programs are those of bench/programs/storage.py. XLA:TPU compiles ahead of time, without a TPU,
if libtpu is installed (``pip install libtpu``, the release that the installed jax asks for);
otherwise XLA:CPU compiles, which fuses less and says less. Columns: what
``passes/memory/program_memory.h`` predicts with nothing cut, the compiler's peak, the difference,
and how much more the compiler allocates than its peak because holes between buffers do not fit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
from jax.experimental import topologies
from rich.console import Console
from rich.table import Table

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.importer import import_program
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.import_strategies import ImportStrategies
from autoshard.passes.sharding_propagation import populate_rules
from autoshard.sharding import Mesh
from bench.common import results
from bench.common.corpus import machine
from bench.programs.storage import CASES, Case

MIB = 2**20
TOPOLOGY = "v5p:2x2x1"


def tpu_device() -> Any:
    """One device of a TPU topology, or why there is none as text."""
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices[0]
    except Exception as error:  # libtpu's absence has no exception type of its own
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def predicted(case: Case) -> tuple[float, float]:
    """Peak bytes, and seconds to find out."""
    function, arguments, donated = case
    text = jax.jit(function, donate_argnums=donated).lower(*arguments).as_text()
    context = new_context()
    module = parse_bytes(text.encode(), context, "program")
    mesh = Mesh.parse("x=2")
    with context:
        module.operation.attributes["autoshard.mesh"] = mlir.StringAttr.get(str(mesh))
    ImportStrategies().run(module)
    populate_rules(module)
    with context:
        program = import_program(module, mesh).program
    start = time.perf_counter()
    shardings = [[] for _ in range(program.num_values)]
    compiler = Cluster.of(TOPOLOGY).compiler.to_core()
    peak = _core.peak(program, shardings, [], compiler=compiler).bytes
    return peak, time.perf_counter() - start


def compiled(case: Case, device: Any) -> tuple[float, float]:
    """Peak and allocated bytes of the compiled program."""
    function, arguments, donated = case
    placed: dict[str, Any] = {}
    if device is not None:
        sharding = jax.sharding.SingleDeviceSharding(device)
        placed = {"in_shardings": sharding, "out_shardings": sharding}
    lowered = jax.jit(function, donate_argnums=donated, **placed).lower(*arguments)
    stats = lowered.compile().memory_analysis()
    allocated = (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
    )
    return stats.peak_memory_in_bytes or allocated, allocated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; all if none is given")
    parser.add_argument("--platform", choices=["tpu", "cpu"], help="tpu, if libtpu is there")
    results.add_option(parser, "storage")
    options = parser.parse_args()
    unknown = set(options.names) - CASES.keys()
    if unknown:
        sys.exit(f"no program {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}.")
    device = None if options.platform == "cpu" else tpu_device()
    if isinstance(device, str):
        print(f"No TPU compiler ({device}).")
        if options.platform == "tpu":
            sys.exit("Skipped: install the libtpu that belongs to this jax.")
        device = None
    compiler = "XLA:CPU" if device is None else f"XLA:TPU for one device of {TOPOLOGY}"

    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title=f"Peak memory, {compiler}")
    table.add_column("program", overflow="fold")
    for heading in ("predicted MiB", "compiled MiB", "difference", "allocated above", "ms"):
        table.add_column(heading, justify="right")
    errors: list[float] = []
    for name in options.names or CASES:
        case = CASES[name]()
        ours, seconds = predicted(case)
        theirs, allocated = compiled(case, device)
        errors.append(abs(ours / theirs - 1))
        table.add_row(
            name,
            f"{ours / MIB:,.1f}",
            f"{theirs / MIB:,.1f}",
            f"{ours / theirs - 1:+.1%}",
            f"{allocated / theirs - 1:+.1%}",
            f"{1000 * seconds:.1f}",
        )
        console.print(f"[dim]{name}: {ours / theirs - 1:+.1%}")
    console.print(table)
    results.write(options.csv, table)
    console.print(
        f"Mean error {sum(errors) / len(errors):.1%}, largest {max(errors):.1%}; {machine()}."
    )


if __name__ == "__main__":
    main()
