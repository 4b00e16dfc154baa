"""Ops that XLA's partitioner makes whole, computed block by block and left to the partitioner.

    python bench/quality/blocks.py [--clusters h100:8 v5e:2x4]

Two programs: an FFT of 4,096 rows, and a train step (SGD) of three residual blocks with 32 groups
of features over 256 images. Each is planned once for a cluster and compiled ahead of time in both
ways; columns are what one device sends, needs and takes as compiled
(docs/results/step_estimate.md). TPUs need ``autoshard[tpu]``, GPUs ``autoshard[gpu]``; no device is
needed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import autoshard
from autoshard.exporter import pin
from bench.common.corpus import machine

GROUPS, FEATURES, WIDE, MIB = 32, 128, 256, 2**20
struct = jax.ShapeDtypeStruct


def convolution(images: Any, kernel: Any, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        images,
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def residual_step(layers: Any, images: Any) -> Any:
    def loss(layers: Any) -> Any:
        x = images
        for layer in layers:
            hidden = jax.nn.relu(convolution(x, layer["down"]))
            hidden = jax.nn.relu(convolution(hidden, layer["grouped"], GROUPS))
            x = x + convolution(hidden, layer["up"])
        return (x**2).mean()

    value, gradients = jax.value_and_grad(loss)(layers)
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, gradients), value


def layer() -> dict[str, Any]:
    return {
        "down": struct((1, 1, WIDE, FEATURES), jnp.float32),
        "grouped": struct((3, 3, FEATURES // GROUPS, FEATURES), jnp.float32),
        "up": struct((1, 1, FEATURES, WIDE), jnp.float32),
    }


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "fft": (jnp.fft.rfft, (struct((4096, 64), jnp.float32),)),
    "grouped residual blocks": (
        residual_step,
        ([layer() for _ in range(3)], struct((256, 56, 56, WIDE), jnp.float32)),
    ),
}


def compiled(name: str, cluster: str, by_blocks: bool) -> list[str]:
    """The row of a program: what is compiled, and how."""
    function, arguments = PROGRAMS[name]
    plan = autoshard.plan(function, *arguments, cluster=cluster)
    left_to_xla = mock.patch.object(pin, "block_op", return_value=None)
    with contextlib.nullcontext() if by_blocks else left_to_xla:
        found = plan.verify()
    estimate = found.estimate
    sent = 0.0 if found.collectives is None else found.collectives.compiled_bytes
    return [
        name,
        cluster,
        "by blocks" if by_blocks else "by XLA",
        f"{sent / MIB:,.2f}",
        f"{(found.program.live_bytes or 0) / MIB:,.1f}",
        "" if estimate is None else f"{estimate.step_seconds * 1e6:,.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clusters", nargs="+", default=["h100:8", "v5e:2x4"])
    options = parser.parse_args()
    console = Console(width=120)
    console.print(machine())
    table = Table("program", "cluster", "split", "MiB sent", "MiB needed", "step, us")
    for cluster in options.clusters:
        for name in PROGRAMS:
            for by_blocks in (True, False):
                table.add_row(*compiled(name, cluster, by_blocks))
    console.print(table)


if __name__ == "__main__":
    main()
