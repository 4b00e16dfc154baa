"""How fast XLA:TPU takes memory and matrix units to be: its cycles for kernels of one kind.

    python bench/truth/tpu_rates.py [--clusters NAME ...] [--csv FILE]

Each kernel is compiled ahead of time for one device and timed by the cycles that the compiler
writes behind it. The chips' ``memory_efficiency`` and ``matmul_efficiency`` and the compiler's rows
``fusion.packed_bytes``, ``fusion.batch_operand_bytes``, ``fusion.transposed_bytes``,
``fusion.transform_bytes``, ``fusion.index_bytes``, ``fusion.repeated_bytes`` and
``fusion.matmul_tile_bytes`` come from here:

- *streams*: f32 arrays read and written, the share of the memory's bandwidth;
- *narrow*, *sums*: bytes at that rate which an element costs more if it is written as bf16, or
  summed, than its reading and writing takes;
- *transposed*: bytes at that rate which an element takes that goes from a row into a column;
- *transformed*, *in two*: bytes at that rate which a complex point takes in Fourier transforms of
  rows of 128 points, which are one product, and of 4,096, which are two;
- *vectors*: bytes at that rate which an element of matrices costs more if these are multiplied by
  vectors, rows of 1, than its reading takes: XLA makes a multiplication and a sum of such products;
- *batches*: bytes at that rate which an element of the operands of a batch of products costs more
  than reading them, and writing the products, takes;
- *indices*: bytes at that rate which an element that is gathered by an index of its own costs more
  than its reading, writing and packing take, where indices are computed, and those that are not;
- *repeats*: bytes at that rate which an element takes that is broadcast in a dim which a view joins
  with another one, in tiles of all rows; those of fewer rows hold fewer, and take as long;
- *products*: the share of the peak that large products in bf16 reach;
- *tiles*: MB of a tile of such a product and of what is read and written with it, two tensors of
  its size read and one or two written, if the kernel waits for its operands, read once a tile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.sharding import Mesh
from autoshard.verify.step_time import estimate_step
from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.common.corpus import machine
from bench.programs.lowered import lower
from bench.programs.storage import spec

CLUSTERS = ("v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1", "tpu7x:1x1x1")
ROWS, COLUMNS = 16384, 16384
POINTS, TRANSFORMED = 2**24, (128, 4096)
"""Points of Fourier transforms, and those of their rows."""
MATRICES = (64, 1024, 1024)
"""Matrices, rows and columns of a batch that is multiplied by vectors."""
SHAPES = ((8192, 4096, 14336), (8192, 14336, 4096), (16384, 4096, 4096), (8192, 8192, 8192))
"""Rows, contracted and columns of products, as in layers of language models."""
GATHERED = (8, 12, 512, 512)
"""Sequences, heads, and the positions of queries and keys of scores that are gathered."""
REPEATED = ((2, 16, 8), (8, 4, 4), (8, 2, 2))
"""Heads of keys, queries to each of them, and the rows of the tiles that those fill."""
BATCHES = ((256, 1024, 1024, 128), (256, 1024, 512, 1024), (1024, 256, 256, 256))
"""Products, and the rows, contracted and columns of each."""
TILED = (8192, 4096, 8192)
"""Rows, contracted and columns of a product with much to read and write for each element."""
WAITING = 1.3
"""Over the time at the peak: a product that takes so long waits for its operands."""
HEADS = (
    *("chip", "streams", "narrow bytes", "summed bytes", "transposed bytes"),
    *("transformed bytes", "in two"),
    *("vector bytes", "batch bytes", "index bytes", "repeated bytes", "products"),
    *("least", "most", "tile MB"),
)


def seconds(cluster: Cluster, function: Callable[..., Any], *shapes: Any) -> float:
    """The compiler's for one kernel."""
    made = lower(function, ["batch"] * len(shapes), *shapes)
    module = parse_bytes(made.bytecode, new_context(), "kernel")
    compiled = cached_compile(module, cluster, timeout=300)
    assert compiled.hlo_text is not None, f"{cluster.name}: no text"
    return estimate_step(
        compiled.hlo_text, Mesh.parse(f"data={cluster.num_devices}"), cluster
    ).compute_seconds


def measure(cluster: Cluster) -> Sequence[float | None]:
    """The row of a cluster of one device; None: products wait for nothing."""
    chip, elements = cluster.chip, ROWS * COLUMNS
    wide, narrow = spec(ROWS, COLUMNS), spec(ROWS, COLUMNS, dtype=jnp.bfloat16)
    streamed = seconds(cluster, lambda x, y: x * y + 1, wide, wide)
    rate = 3 * 4 * elements / streamed
    written = seconds(cluster, lambda x, y: (x * y + 1).astype(jnp.bfloat16), wide, wide)
    read = seconds(cluster, lambda x, y: x * y + 1, narrow, narrow)
    summed = seconds(cluster, lambda x: jnp.exp(x * 2).sum(-1), wide)
    count, size, _ = MATRICES
    vectors = spec(count, 1, size, dtype=jnp.bfloat16)
    matrices = spec(*MATRICES, dtype=jnp.bfloat16)
    multiplied = seconds(cluster, jnp.matmul, vectors, matrices)
    products = [product(cluster, *shape) for shape in SHAPES]
    shares = [
        2 * m * k * n / found / chip.matmul_f16.value
        for (m, k, n), found in zip(SHAPES, products, strict=True)
    ]
    return (
        rate / chip.memory_bandwidth.value,
        mean((written * rate / elements - 10, read * rate / elements - 6)),
        summed * rate / elements - 4,
        transposed_bytes(cluster, rate),
        *(transformed_bytes(cluster, rate, length) for length in TRANSFORMED),
        multiplied * rate / prod(MATRICES) - 2,
        mean(batch_bytes(cluster, rate, *batch) for batch in BATCHES),
        index_bytes(cluster, rate),
        repeated_bytes(cluster, rate),
        mean(shares),
        min(shares),
        max(shares),
        tile_megabytes(cluster, rate),
    )


def transposed_bytes(cluster: Cluster, rate: float) -> float:
    """What an element takes before something is added to it."""
    matrix = spec(ROWS, COLUMNS)
    added = seconds(cluster, lambda x: x + 1, matrix)
    both = seconds(cluster, lambda x: x.T + 1, matrix)
    return (both - added) * rate / (ROWS * COLUMNS)


def transformed_bytes(cluster: Cluster, rate: float, length: int) -> float:
    """What a complex point takes in transforms of rows of so many."""
    part = spec(POINTS // length, length)

    def transformed(real: Any, imaginary: Any) -> Any:
        found = jnp.fft.fft(jax.lax.complex(real, imaginary))
        return found.real, found.imag

    return seconds(cluster, transformed, part, part) * rate / POINTS


def batch_bytes(cluster: Cluster, rate: float, count: int, m: int, k: int, n: int) -> float:
    """What an element of the operands of a batch of products takes over its 2 bytes, and over 6 of
    each element that is written and packed."""
    left, right = (spec(count, *shape, dtype=jnp.bfloat16) for shape in ((m, k), (k, n)))
    operands, results = count * (m * k + k * n), count * m * n
    taken = seconds(cluster, jnp.matmul, left, right) * rate
    return (taken - 2 * operands - 6 * results) / operands


def index_bytes(cluster: Cluster, rate: float) -> float:
    """What an index of a gather takes over 4 bytes that are read and written and 4 of packing, of
    one that is computed and one that is read besides, with 4 more."""
    scores, positions = spec(*GATHERED, dtype=jnp.bfloat16), GATHERED[-1]

    def by_table(scores: Any) -> Any:
        apart = jnp.arange(positions)[:, None] - jnp.arange(positions)
        indices = jnp.clip(apart + positions // 2, 0, positions - 1)
        return by_argument(scores, jnp.broadcast_to(indices, scores.shape))

    def by_argument(scores: Any, indices: Any) -> Any:
        return jnp.take_along_axis(scores, indices, axis=-1)

    computed = seconds(cluster, by_table, scores)
    read = seconds(cluster, by_argument, scores, spec(*GATHERED, dtype=jnp.int32))
    elements = prod(GATHERED)
    return mean((computed * rate / elements - 8, read * rate / elements - 12))


def repeated_bytes(cluster: Cluster, rate: float) -> float:
    """What an element of a repeated value takes in tiles of all rows."""
    found = []
    for heads, times, rows in REPEATED:
        keys = spec(16, 512, heads, 128, dtype=jnp.bfloat16)

        def repeated(x: Any, heads: int = heads, times: int = times) -> Any:
            shape = (16, 512, heads, times, 128)
            return jnp.broadcast_to(x[:, :, :, None], shape).reshape(16, 512, heads * times, 128)

        elements = prod(keys.shape) * times
        found.append(seconds(cluster, repeated, keys) * rate / elements * rows / 8)
    return mean(found)


def tile_megabytes(cluster: Cluster, rate: float) -> float | None:
    """MB of a tile that is added up in 32 bits, beside two of each tensor of its size."""
    m, k, n = TILED
    shapes = [spec(*shape, dtype=jnp.bfloat16) for shape in ((m, k), (k, n), (m, n), (m, n))]

    def one(x: Any, w: Any, a: Any, b: Any) -> Any:
        return x @ w * a * b

    def two(x: Any, w: Any, a: Any, b: Any) -> Any:
        product = x @ w
        return product * a, product * b

    found = []
    for function, streamed in ((one, 6), (two, 8)):
        taken = seconds(cluster, function, *shapes)
        if taken < WAITING * 2 * m * k * n / cluster.chip.matmul_f16.value:
            return None
        side = 4 * k * m * n / (taken * rate)
        found.append(side**2 * (4 + 2 * streamed) / 1e6)
    return mean(found)


def product(cluster: Cluster, m: int, k: int, n: int) -> float:
    """Seconds of a product in bf16."""
    left, right = (spec(*shape, dtype=jnp.bfloat16) for shape in ((m, k), (k, n)))
    return seconds(cluster, jax.lax.dot, left, right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS, metavar="NAME")
    results.add_option(parser, "tpu_rates")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="XLA:TPU's own cycles for kernels of one device")
    for index, head in enumerate(HEADS):
        table.add_column(head, justify="left" if index == 0 else "right")
    rows: list[list[str]] = []
    for name in options.clusters:
        cluster = Cluster.of(name)
        found = ["" if value is None else f"{value:.2f}" for value in measure(cluster)]
        rows.append([cluster.chip.name, *found])
        table.add_row(*rows[-1])
        console.print(f"[dim]{' '.join(rows[-1])}")
    console.print(table)
    results.write_rows(options.csv, HEADS, rows)
    console.print(f"{machine()}.")


if __name__ == "__main__":
    main()
