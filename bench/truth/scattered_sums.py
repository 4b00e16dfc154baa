"""The gradient of a weight on a TPU slice: scattered in a loop of its matmul, or summed and sliced.

    python bench/truth/scattered_sums.py [--cluster v5p:2x2x2] [--rows N]

A gradient in bfloat16 of a weight whose rows are cut over all devices, as the tokens are, and an
update with momentum in float32. XLA:TPU scatters the sum in a loop if nothing stands between; a
constraint makes it an all-reduce and a slice. Compiled ahead of time, no device needed
(``autoshard[tpu]``); seconds of docs/results/step_estimate.md. docs/design/cost_model.md has what
the model makes of it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.sharding import Mesh
from autoshard.verify.step_time import StepEstimate, estimate_step
from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.common.corpus import machine

CASES = (
    (131_072, 4096, 11_008, True),
    (131_072, 4096, 11_008, False),
    (131_072, 4096, 4096, False),
    (32_768, 4096, 11_008, False),
    (65_536, 1024, 65_536, False),
    (65_536, 8192, 65_536, False),
)
"""Tokens of all devices, rows and columns of the weight; whether operands are made in fusions."""

STEP = """
module @gradient attributes {{mhlo.num_partitions = {devices} : i32}} {{
  sdy.mesh @mesh = <["data"={devices}]>
  func.func public @main(
      %x: tensor<{tokens}x{rows}xbf16> {{{cut}}}, %dy: tensor<{tokens}x{columns}xbf16> {{{cut}}},
      %w: {weight} {{{cut}, tf.aliasing_output = 0 : i32}},
      %m: {weight} {{{cut}, tf.aliasing_output = 1 : i32}})
      -> ({weight} {{{cut}}}, {weight} {{{cut}}}) {{
    {operands}
    %g = stablehlo.dot_general {left}, {right}, contracting_dims = [0] x [0]
        : (tensor<{tokens}x{rows}xbf16>, tensor<{tokens}x{columns}xbf16>)
          -> tensor<{rows}x{columns}xbf16>
    %sum = sdy.sharding_constraint %g <@mesh, {summed}> : tensor<{rows}x{columns}xbf16>
    %part = sdy.sharding_constraint %sum <@mesh, [{{"data"}}, {{}}]>
        : tensor<{rows}x{columns}xbf16>
    %f = stablehlo.convert %part : (tensor<{rows}x{columns}xbf16>) -> {weight}
    %decay = stablehlo.constant dense<0.9> : {weight}
    %kept = stablehlo.multiply %decay, %m : {weight}
    %momentum = stablehlo.add %kept, %f : {weight}
    %rate = stablehlo.constant dense<0.1> : {weight}
    %change = stablehlo.multiply %rate, %momentum : {weight}
    %new = stablehlo.subtract %w, %change : {weight}
    return %new, %momentum : {weight}, {weight}
  }}
}}
"""
FUSED = """%a = stablehlo.tanh %x : tensor<{tokens}x{rows}xbf16>
    %b = stablehlo.add %dy, %dy : tensor<{tokens}x{columns}xbf16>"""


def estimate(
    cluster: Cluster, case: tuple[int, int, int, bool], is_scattered: bool
) -> StepEstimate:
    """Estimate of the compiled step.

    Raises:
        CompileError: The compiler refused it, or is not installed.
    """
    tokens, rows, columns, is_fused = case
    sizes = {"tokens": tokens, "rows": rows, "columns": columns}
    text = STEP.format(
        **sizes,
        devices=cluster.num_devices,
        cut='sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>',
        weight=f"tensor<{rows}x{columns}xf32>",
        operands=FUSED.format(**sizes) if is_fused else "",
        left="%a" if is_fused else "%x",
        right="%b" if is_fused else "%dy",
        summed='[{"data"}, {}]' if is_scattered else "[{}, {}]",
    )
    found = cached_compile(text.encode(), cluster)
    if found.hlo_text is None:
        raise SystemExit(f"no HLO to estimate: {found.no_hlo_text}")
    return estimate_step(found.hlo_text, Mesh.parse(f"data={cluster.num_devices}"), cluster)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cluster", default="v5p:2x2x2")
    parser.add_argument("--rows", type=int, default=len(CASES), help="the first so many only")
    results.add_option(parser, "scattered_sums")
    options = parser.parse_args()
    cluster = Cluster.of(options.cluster)
    console = Console(width=120)
    console.print(machine())
    columns = (
        *("tokens", "in", "out", "loop computes", "loop moves", "all-reduce computes"),
        "all-reduce moves",
    )
    table = Table(*columns, title=f"{cluster.name}, ms")
    for case in CASES[: options.rows]:
        cells = [f"{case[0]:,}{', fused' if case[3] else ''}", f"{case[1]:,}", f"{case[2]:,}"]
        for is_scattered in (True, False):
            step = estimate(cluster, case, is_scattered)
            cells += [
                f"{step.compute_seconds * 1e3:.2f}",
                f"{step.communication_seconds * 1e3:.2f}",
            ]
        table.add_row(*cells)
    console.print(table)
    results.write(options.csv, table)


if __name__ == "__main__":
    main()
