"""Plans of pipelines in lockstep, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import jax
from stacked_layers import LAYERS, network

import autoshard

BATCH, WIDTH = 4096, 256
"""Large enough that stages are cut."""


def _arguments() -> Any:
    shapes = {"ends": (WIDTH, WIDTH), "layers": (LAYERS, WIDTH, WIDTH)}
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    return (params, params), jax.ShapeDtypeStruct((BATCH, WIDTH), "float32")


ARGUMENTS = _arguments()


def planned(forward: Any, stages: int, micro_batches: int, mesh: str) -> autoshard.Plan:
    """A step of ``network(forward)`` on eight devices; its state is donated."""
    return autoshard.plan(
        network(forward),
        *ARGUMENTS,
        cluster="cpu:8",
        mesh=mesh,
        pipeline=autoshard.Pipeline(stages, micro_batches, execution="lockstep"),
        batch_argnums=1,
        donate_argnums=0,
    )
