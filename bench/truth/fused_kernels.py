"""What small kernels take: the plan of one device beside XLA's.

    python bench/truth/fused_kernels.py [--programs PART ...] [--clusters NAME ...] [--csv FILE]

Softmax, attention, norms, losses, convolutions and experts on one device, so that nothing but
fusion is between the two: the planned seconds of compute and peak beside those of the program that
the cluster's compiler makes. Rules of fusion (docs/design/memory.md) are found here and held
against programs that are not here (bench/truth/fidelity.py).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.sharding import Mesh
from autoshard.verify.step_time import estimate_step
from bench.common import results
from bench.common.compile_cache import cached_compile
from bench.common.corpus import machine
from bench.programs.gpu_kernels import attention, gradient
from bench.programs.lowered import lower
from bench.programs.storage import spec

CLUSTERS = ("h100:1",)
HEADS = ("program", "cluster", "planned ms", "compiled ms", "ratio", "planned GiB", "compiled GiB")


@dataclass(frozen=True)
class Kernels:
    """A function of arrays, and their shapes in bfloat16 (whole numbers where said)."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    labels: int = 0
    """Entries of one more array, the last one; 0: there is none."""

    def specs(self) -> list[Any]:
        """The arrays, the last one of labels if there are any."""
        found = [spec(*shape, dtype=jnp.bfloat16) for shape in self.shapes]
        return [*found, spec(self.labels, dtype=jnp.int32)] if self.labels else found


def masked_attention(queries: Any, keys: Any, values: Any) -> Any:
    return attention(queries, keys, values, masked=True)


def grouped_attention(queries: Any, keys: Any, values: Any) -> Any:
    """Several heads of queries read one of keys; scores lie transposed."""
    batch, tokens, heads, size = queries.shape
    groups = heads // keys.shape[2]
    queries = queries.reshape(batch, tokens, keys.shape[2], groups, size)
    scores = jnp.einsum("bskgd,btkd->bkgst", queries, keys, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores, -1).astype(values.dtype)
    return jnp.einsum("bkgst,btkd->bskgd", weights, values)


def rms_norm(x: Any, scale: Any, weight: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide.astype(x.dtype) * scale) @ weight


def layer_norm(x: Any, scale: Any, weight: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, -1, keepdims=True)
    variance = jnp.mean((wide - mean) ** 2, -1, keepdims=True)
    return (((wide - mean) * jax.lax.rsqrt(variance + 1e-6)).astype(x.dtype) * scale) @ weight


def softmax(axis: int) -> Callable[..., Any]:
    return lambda x: jax.nn.softmax(x.astype(jnp.float32), axis).astype(x.dtype)


def cross_entropy(x: Any, weight: Any, labels: Any) -> Any:
    logits = (x @ weight).astype(jnp.float32)
    found = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - found)


def convolution(x: Any, scale: Any, weight: Any) -> Any:
    """A convolution of the relu of a batch norm in float32; channels last."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, (0, 1, 2), keepdims=True)
    variance = jnp.mean(jnp.square(wide), (0, 1, 2), keepdims=True) - jnp.square(mean)
    normalised = ((wide - mean) * jax.lax.rsqrt(variance + 1e-3) * scale).astype(x.dtype)
    return jax.lax.conv_general_dilated(
        jax.nn.relu(normalised), weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def residual(x: Any, *weights: Any) -> Any:
    return x + convolution(convolution(x, *weights[:2]), *weights[2:])


def dense(x: Any, *weights: Any) -> Any:
    """What each two convolutions make is joined to their input."""
    for first in range(0, len(weights), 4):
        inner = convolution(x, *weights[first : first + 2])
        made = convolution(inner, *weights[first + 2 : first + 4])
        x = jnp.concatenate([x, made], -1)
    return x


def projected(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, *biases: Any) -> Any:
    """Attention of 16 heads between projections, with biases or without."""
    batch, tokens, size = x.shape
    made = [x @ weight for weight in (wq, wk, wv)]
    if biases:
        made = [each + bias for each, bias in zip(made, biases, strict=True)]
    heads = (each.reshape(batch, tokens, 16, size // 16) for each in made)
    return attention(*heads).reshape(x.shape) @ wo


def biased(x: Any, weight: Any, bias: Any) -> Any:
    return x @ weight + bias


def activated(x: Any, weight: Any, bias: Any) -> Any:
    """The product is read twice."""
    return jax.nn.gelu(x @ weight + bias)


def widened(x: Any, weight: Any, bias: Any) -> Any:
    """Behind a cast to float32."""
    return (x @ weight).astype(jnp.float32) * bias.astype(jnp.float32)


def added(x: Any, weight: Any, residual: Any) -> Any:
    return residual + x @ weight


HEADED = ((4, 2048, 16, 128),) * 3
GROUPED = (HEADED[0], (4, 2048, 4, 128), (4, 2048, 4, 128))
ROWS = ((16384, 4096), (4096,), (4096, 4096))
EXPERTS = ((98304, 2048), (64, 2048, 1408))
IMAGES = (256, 56, 56, 64)
RESIDUAL = (IMAGES, *((64,), (3, 3, 64, 64)) * 2)
DENSE = (
    IMAGES,
    *((64,), (1, 1, 64, 128), (128,), (3, 3, 128, 32)),
    *((96,), (1, 1, 96, 128), (128,), (3, 3, 128, 32)),
)
PROJECTED = ((16, 1024, 1024), *((1024, 1024),) * 4)
PRODUCT = ((8192, 1024), (1024, 1024))
VOCABULARY = ((16384, 4096), (4096, 32000))
PROGRAMS = {
    "attention": Kernels(attention, HEADED),
    "attention, masked": Kernels(masked_attention, HEADED),
    "attention, masked, 4096": Kernels(masked_attention, ((4, 4096, 16, 128),) * 3),
    "attention, masked, gradient": Kernels(gradient(masked_attention, 3), HEADED),
    "attention, grouped": Kernels(grouped_attention, GROUPED),
    "attention, grouped, gradient": Kernels(gradient(grouped_attention, 3), GROUPED),
    "projections, attention": Kernels(projected, PROJECTED),
    "projections, attention, gradient": Kernels(gradient(projected, 5), PROJECTED),
    "projections, biases, attention": Kernels(projected, (*PROJECTED, *((1024,),) * 3)),
    "projections, biases, attention, gradient": Kernels(
        gradient(projected, 8), (*PROJECTED, *((1024,),) * 3)
    ),
    "product, bias": Kernels(biased, (*PRODUCT, (1024,))),
    "product, bias, gelu": Kernels(activated, (*PRODUCT, (1024,))),
    "product, cast, scale": Kernels(widened, (*PRODUCT, (1024,))),
    "product, residual": Kernels(added, (*PRODUCT, PRODUCT[0])),
    "rms norm": Kernels(rms_norm, ROWS),
    "rms norm, gradient": Kernels(gradient(rms_norm, 3), ROWS),
    "layer norm": Kernels(layer_norm, ROWS),
    "layer norm, gradient": Kernels(gradient(layer_norm, 3), ROWS),
    "softmax, rows of 16384": Kernels(softmax(-1), ((8192, 16384),)),
    "softmax, rows of 32768": Kernels(softmax(-1), ((8192, 32768),)),
    "softmax, columns": Kernels(softmax(1), ((64, 2048, 2048),)),
    "cross entropy": Kernels(cross_entropy, VOCABULARY, labels=16384),
    "cross entropy, gradient": Kernels(
        lambda x, w, y: jax.grad(cross_entropy, (0, 1))(x, w, y), VOCABULARY, labels=16384
    ),
    "batch norm and convolution, gradient": Kernels(gradient(convolution, 3), RESIDUAL[:3]),
    "residual block, gradient": Kernels(gradient(residual, 5), RESIDUAL),
    "dense block": Kernels(dense, DENSE),
    "dense block, gradient": Kernels(gradient(dense, 9), DENSE),
    "experts": Kernels(jax.lax.ragged_dot, EXPERTS, labels=64),
    "experts, gradient": Kernels(
        lambda x, w, n: gradient(lambda x, w: jax.lax.ragged_dot(x, w, n), 2)(x, w),
        EXPERTS,
        labels=64,
    ),
}


def measure(kernels: Kernels, cluster: Cluster) -> Sequence[float]:
    """Planned and compiled milliseconds, planned and compiled GiB."""
    specs = kernels.specs()
    made = lower(kernels.function, ["batch"] * len(specs), *specs)
    mesh = f"data={cluster.num_devices}"
    module = parse_bytes(made.bytecode, new_context(), "kernels")
    planned = search_module(module, cluster, RecursiveProgramming(mesh=mesh)).summary
    run_passes(module, ["autoshard-export-shardy"])
    compiled = cached_compile(module, cluster, timeout=900)
    assert compiled.hlo_text is not None, f"{cluster.name}: no text"
    found = estimate_step(compiled.hlo_text, Mesh.parse(mesh), cluster)
    return (
        1e3 * planned.compute_seconds,
        1e3 * found.compute_seconds,
        planned.peak_bytes_per_device / 2**30,
        (compiled.peak_bytes or math.nan) / 2**30,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="+", default=[""], metavar="PART")
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS, metavar="NAME")
    results.add_option(parser, "fused_kernels")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="Kernels of one device, planned and compiled")
    for index, head in enumerate(HEADS):
        table.add_column(head, justify="left" if index < 2 else "right")
    rows: list[list[str]] = []
    ratios: list[float] = []
    for name, kernels in PROGRAMS.items():
        if not any(part in name for part in options.programs):
            continue
        for cluster in map(Cluster.of, options.clusters):
            planned, compiled, peak, live = measure(kernels, cluster)
            ratios.append(planned / compiled)
            numbers = (f"{planned:.3f}", f"{compiled:.3f}", f"{ratios[-1]:.2f}")
            rows.append([name, cluster.name, *numbers, f"{peak:.2f}", f"{live:.2f}"])
            table.add_row(*rows[-1])
            console.print(f"[dim]{' | '.join(rows[-1])}")
    console.print(table)
    off = [abs(math.log(ratio)) for ratio in ratios]
    console.print(
        f"{len(off)} rows: a factor of {math.exp(sum(off) / len(off)):.2f} in the mean,"
        f" {math.exp(max(off)):.2f} at worst."
    )
    results.write_rows(options.csv, HEADS, rows)
    console.print(f"{machine()}.")


if __name__ == "__main__":
    main()
