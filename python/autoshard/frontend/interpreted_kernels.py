"""Pallas kernels in interpret mode, as programs for CPUs have them: cut as they would be on TPUs.

Lowered for a CPU such a kernel is a loop over its grid that reads and writes blocks, of which
nobody would see that devices may share the grid out. So it is lowered for a TPU too, from which
``kernels/cuts.py`` proves which dims of the grid may be cut, and becomes a composite with that
rule; where nothing is proven, with one that leaves all of it whole, of which plans warn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from autoshard.importer.kernels import ProvenKernel, only_kernel
from autoshard.ir.lowering import NotLoweredError, lower_at_home, on_device, traced_here

_DEVICE = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")


def proven_on_tpu(primitive: Any, avals: Any, params: dict[str, Any]) -> ProvenKernel | None:
    """What may be cut of a kernel; None where that is nothing, or no TPU could run it."""

    with on_device(_DEVICE):
        there = _for_the_device(params)

    def kernel(*operands: Any) -> Any:
        return primitive.bind(*operands, **there)

    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    try:
        lowered = lower_at_home(kernel, structs, "tpu", _DEVICE)
    except NotLoweredError:  # blocks of other shapes than TPUs have, most often
        return None
    return only_kernel(lowered, len(structs))


def _for_the_device(params: dict[str, Any]) -> dict[str, Any]:
    """The kernel as it is for the device that is current."""
    mapping = params["grid_mapping"]
    blocks = tuple(
        replace(block, index_map_jaxpr=traced_here(block.index_map_jaxpr))
        for block in mapping.block_mappings
    )
    return {
        **params,
        "interpret": False,
        "jaxpr": traced_here(params["jaxpr"]),
        "grid_mapping": replace(mapping, block_mappings=blocks),
    }
