"""Which ``pallas_call`` in interpret mode is a grouped matmul of megablox.

Those that are lowered for TPUs are found in the module (``kernels/grouped_matmuls.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from jax.interpreters import mlir

from autoshard.frontend.index_maps import extent, needed
from autoshard.kernels.grouped_matmuls import NUM_TABLES, READ, BlockDim, form_of
from autoshard.kernels.megablox import GroupedMatmul

_SOURCE = "megablox"
"""In the path of the file, of JAX and of the copies; there is no body to read that a TPU runs."""


def grouped_matmul(params: dict[str, Any], avals: Sequence[Any]) -> GroupedMatmul | None:
    """The grouped matmul that a ``pallas_call`` is; None: another kernel.

    Args:
        params: Of the ``pallas_call``.
        avals: Types of its operands: how many tiles there are, where each group begins, group and
            tile of rows at each place, the first group, and both matrices.
    """
    mapping, (out, *others) = params["grid_mapping"], params["out_avals"]
    is_alike = (
        _SOURCE in (params["jaxpr"].debug_info.func_src_info or "")
        and (len(mapping.grid), mapping.num_index_operands, mapping.num_inputs)
        == (3, NUM_TABLES, 2)
        and not (others or params["input_output_aliases"])
    )
    if not is_alike:
        return None
    dynamic = [dim for dim, size in enumerate(mapping.grid) if not isinstance(size, int)]
    blocks = [_block_dims(block, len(mapping.grid)) for block in mapping.block_mappings]
    form = form_of(dynamic, blocks, [aval.shape for aval in avals[len(dynamic) : -1]])
    return None if form is None else GroupedMatmul(form, out.dtype, bool(params["interpret"]))


def lower_grouped_matmul(context: Any, operands: Sequence[Any], found: GroupedMatmul) -> Any:
    """Lower the call, in JAX's rule for it, to the kernel that may be cut."""
    (out,) = context.avals_out

    def planned(*operands: Any) -> Any:
        return found.planned(out.shape, *(operands[each] for each in READ))

    return cast(Any, mlir).lower_fun(planned, multiple_results=True)(context, *operands)


def _block_dims(block: Any, rank: int) -> list[BlockDim]:
    depends_on = needed(block.index_map_jaxpr.jaxpr)
    return [
        BlockDim(tuple(dim for dim in arguments if dim < rank), extent(size))
        for size, arguments in zip(block.block_shape, depends_on, strict=True)
    ]
