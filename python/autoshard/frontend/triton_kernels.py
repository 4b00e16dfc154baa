"""Pallas kernels that Triton compiles for GPUs: which dims of the grid devices may share.

The programs of such a grid run in any order and leave each other nothing but what they write. So a
dim may be cut if

- the index of every block is free of it, or is the place along it divided by a constant, and then
  depends on nothing else;
- every result has one dim of the second kind, whose blocks fill it, so that no two devices write
  the same block;
- the body never asks for its place along the dim, nor how large the grid is;
- no program adds to memory that others add to (atomic operations).
"""

from __future__ import annotations

from collections.abc import Callable
from math import lcm
from typing import Any, cast

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from autoshard.frontend.index_maps import extent, needed
from autoshard.frontend.pallas_flops import asked_in
from autoshard.importer.kernels import ProvenKernel, proven_kernel
from autoshard.kernels.cuts import Cut
from autoshard.kernels.scalars import divisor_of

_PLATFORMS = ("cuda", "rocm")
_TRITON = "jax._src.pallas.triton"


def is_for_triton(platform: str, params: dict[str, Any]) -> bool:
    """Whether Triton compiles the kernel of a ``pallas_call`` with these parameters."""
    if platform not in _PLATFORMS or params["interpret"]:
        return False
    given = params.get("compiler_params")
    if given is None:
        return not getattr(jax.config, "jax_pallas_use_mosaic_gpu", False)
    return type(given).__module__.startswith(_TRITON)


def proven_of_blocks(params: dict[str, Any]) -> ProvenKernel | None:
    """What may be cut of a kernel that Triton compiles; None: nothing."""
    mapping = params["grid_mapping"]
    grid = tuple(mapping.grid)
    if mapping.num_index_operands or mapping.scratch_avals:
        return None
    if not all(isinstance(size, int) for size in grid):
        return None
    if any(name.startswith("atomic") for name, _ in asked_in(params["jaxpr"])):
        return None
    blocks = tuple(mapping.block_mappings)
    shapes = tuple(tuple(block.array_aval.shape) for block in blocks)
    found = (_cut(params, dim) for dim in range(len(grid)))
    cuts = tuple(cut for cut in found if cut is not None and _cuts_aliases_alike(params, cut))
    return proven_kernel(grid, cuts, shapes, 0, mapping.num_inputs)


def _cut(params: dict[str, Any], dim: int) -> Cut | None:
    mapping = params["grid_mapping"]
    size = mapping.grid[dim]
    for name, axis in asked_in(params["jaxpr"]):
        if name in ("program_id", "num_programs") and axis == dim:
            return None
    dims: list[int | None] = []
    unit = 1
    for block in mapping.block_mappings:
        placed = _placed(block, dim, len(mapping.grid), size)
        if placed is None:
            return None
        array_dim, divisor = placed
        dims.append(array_dim)
        unit = lcm(unit, divisor)
    if size % unit or size == unit or None in dims[mapping.num_inputs :]:
        return None
    return Cut(dim, unit, tuple(dims))


def _cuts_aliases_alike(params: dict[str, Any], cut: Cut) -> bool:
    """Whether results that are written over operands are cut as those are."""
    first = cast(int, params["grid_mapping"].num_inputs)
    given = params.get("input_output_aliases") or ()
    aliases = cast(tuple[tuple[int, int], ...], given)
    return all(cut.dims[operand] == cut.dims[first + result] for operand, result in aliases)


def _placed(block: Any, dim: int, rank: int, size: int) -> tuple[int | None, int] | None:
    """Which dim of its array a block follows along a dim of the grid, and at how many places it
    stays the same; None where it follows in another way."""
    found: tuple[int | None, int] = (None, 1)
    closed = block.index_map_jaxpr
    for array_dim, dims in enumerate(needed(closed.jaxpr)):
        if dim not in dims:
            continue
        length = block.array_aval.shape[array_dim]
        in_block = extent(block.block_shape[array_dim])
        if dims != {dim} or in_block is None or found[0] is not None:
            return None
        divisor = divisor_of(_along(closed, array_dim, dim, rank, size), size)
        if divisor is None or in_block * (size // divisor) != length:
            return None
        found = array_dim, divisor
    return found


def _along(closed: Any, result: int, dim: int, rank: int, size: int) -> Any:
    """The index of a block along one dim of its array, at every place along a dim of the grid."""

    function = cast(Callable[..., list[Any]], jaxpr_as_fun(closed))

    def index(place: Any) -> Any:
        return function(*(place if each == dim else 0 for each in range(rank)))[result]

    with jax.ensure_compile_time_eval():
        return np.asarray(jax.vmap(index)(np.arange(size, dtype=np.int32)))
