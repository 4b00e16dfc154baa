"""Which ``pallas_call`` is one of megablox: by its source, its tables and its index maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
from jax.interpreters import mlir

from autoshard.frontend.index_maps import extent, needed
from autoshard.ir.kernel import Call
from autoshard.kernels.experts import bind_experts
from autoshard.kernels.megablox import GroupedMatmul

_SOURCE = "megablox"
"""In the path of the file, of JAX and of the copies."""
_PLACES = {1: "crf", 2: "cfr"}
"""What the dims of the grid go through, by the one whose size is known when it runs: rows (and with
them experts), features that are contracted, and columns."""
_FORMS: dict[tuple[str, ...], tuple[bool, bool]] = {
    ("rf", "rfc", "rc"): (False, False),
    ("rf", "rcf", "rc"): (False, True),
    ("rf", "rc", "rfc"): (True, False),
}
"""Whether it makes gradients of the matrices, and whether it takes them transposed, by what the
dims of both operands' and the result's blocks follow."""


def grouped_matmul(params: dict[str, Any], avals: Sequence[Any]) -> GroupedMatmul | None:
    """The grouped matmul that a ``pallas_call`` is; None: another kernel.

    Args:
        params: Of the ``pallas_call``.
        avals: Types of its operands: how many tiles there are, where each group begins, group and
            tile of rows at each place, the first group, and both matrices.
    """
    mapping, (out, *others) = params["grid_mapping"], params["out_avals"]
    dynamic = [dim for dim, size in enumerate(mapping.grid) if not isinstance(size, int)]
    is_alike = (
        _SOURCE in (params["jaxpr"].debug_info.func_src_info or "")
        and (len(mapping.grid), mapping.num_index_operands, mapping.num_inputs) == (3, 4, 2)
        and len(dynamic) == 1
        and not (others or params["input_output_aliases"])
    )
    if not is_alike:
        return None
    places = _PLACES.get(dynamic[0], "")
    blocks = [_followed(block, places) for block in mapping.block_mappings]
    form = _FORMS.get(tuple("".join(dim for dim, _ in block) for block in blocks))
    rows, features, columns = (_tile(blocks, dim) for dim in "rfc")
    if form is None or not (rows and features and columns):
        return None
    _, starts, groups, tiles, first, lhs, _ = avals
    num_experts = starts.size - 1
    most = lhs.shape[0] // rows + num_experts - 1
    expected = (num_experts + 1,), (most,), (most,), (1,)
    if tuple(it.shape for it in (starts, groups, tiles, first)) != expected:
        return None
    makes_weights, is_transposed = form
    return GroupedMatmul(
        num_experts,
        (rows, features, columns),
        out.dtype,
        makes_weights,
        is_transposed,
        bool(params["interpret"]),
    )


def lower_grouped_matmul(context: Any, operands: Sequence[Any], found: GroupedMatmul) -> Any:
    """Lower the call, in JAX's rule for it, to the kernel that may be cut."""
    *_, lhs, rhs = context.avals_in
    (out,) = context.avals_out
    call: Call = found.call(lhs, rhs)
    num_here = (out if found.makes_weights else rhs).shape[0]

    def planned(*operands: Any) -> Any:
        _, starts, _, _, first, lhs, rhs = operands
        experts = first[0] + jnp.arange(num_here, dtype=jnp.int32)
        return bind_experts(call, lhs, rhs, starts[1:] - starts[:-1], experts)

    return cast(Any, mlir).lower_fun(planned, multiple_results=True)(context, *operands)


def _followed(block: Any, places: str) -> list[tuple[str, int | None]]:
    """For each dim of a block, the dim of the grid that it follows, and its extent."""
    found: list[tuple[str, int | None]] = []
    depends_on = needed(block.index_map_jaxpr.jaxpr)
    for size, arguments in zip(block.block_shape, depends_on, strict=True):
        dims = [dim for dim in arguments if dim < len(places)]
        found.append((places[dims[0]] if len(dims) == 1 else "?", extent(size)))
    return found


def _tile(blocks: Sequence[Sequence[tuple[str, int | None]]], dim: str) -> int:
    """Extent of the blocks along one dim of the grid; 0: not everywhere the same."""
    sizes = {size for block in blocks for each, size in block if each == dim}
    if dim == "r":
        sizes -= {1}  # of matrices, there is one for each expert
    (size,) = sizes if len(sizes) == 1 else (0,)
    return size or 0
