"""Kernels on blocks: the same kernel, on the part of its grid, or of batch and heads, that a device
has."""

from __future__ import annotations

from autoshard.errors import PlanError
from autoshard.exporter.blocks.block_op import Form, same_op, shardings
from autoshard.exporter.blocks.emitter import Emitter, local_type
from autoshard.importer.kernels import kernel_cuts
from autoshard.ir import mlir, place
from autoshard.ir.reading import shape_of
from autoshard.kernels.cudnn_attention import cudnn_attention, is_cudnn_attention
from autoshard.kernels.mosaic import config_on_grid, is_tpu_kernel, kernel_of
from autoshard.planned.module import PlannedOp
from autoshard.sharding.sharding import Sharding


def is_kernel(planned: PlannedOp) -> bool:
    """Whether ``planned`` calls a kernel that can be cut."""
    return is_tpu_kernel(planned.op) or is_cudnn_attention(planned.op)


def kernel_form(planned: PlannedOp) -> Form:
    """How ``planned``, a kernel with equal blocks, is computed on them.

    Raises:
        PlanError: An array is cut along a dim that no dim of the kernel's grid follows.
    """
    op, computed = planned.op, shardings(planned.computed)
    types = [
        local_type(value.type, sharding)
        for value, sharding in zip(op.results, computed, strict=True)
    ]
    attention = cudnn_attention(op)
    if attention is None:
        config = config_on_grid(op, _local_grid(op, (*shardings(planned.operands), *computed)))
    else:
        batch, heads, *_ = mlir.RankedTensorType(types[0]).shape
        config = attention.config_for(batch, heads)

    def compute(emit: Emitter, blocks: list[mlir.Value]) -> list[mlir.Value]:
        changed: dict[str, mlir.Attribute] = {"backend_config": mlir.StringAttr.get(config)}
        given = blocks if attention else _with_whole_tables(op, emit, blocks)
        return same_op(op, emit, given, types, changed)

    return Form(compute)


def _with_whole_tables(
    op: mlir.Operation, emit: Emitter, blocks: list[mlir.Value]
) -> list[mlir.Value]:
    """With parts of tables as long as the kernel expects the whole; it reads the front alone."""
    kernel = kernel_of(op)
    given = list(blocks)
    for number in range(kernel.num_tables if kernel is not None else 0):
        whole, part = shape_of(op.operands[number]), shape_of(blocks[number])
        for dim, (size, n) in enumerate(zip(whole, part, strict=True)):
            given[number] = emit.padded(given[number], dim, 0, size - n)
    return given


def _local_grid(op: mlir.Operation, given: tuple[Sharding, ...]) -> list[int]:
    """The grid of one device, where operands and results are cut as ``given``."""
    found = kernel_cuts(op)
    grid: list[int] = []
    followed: set[tuple[int, int]] = set()
    if found is not None:
        kernel, cuts = found
        grid = list(kernel.grid)
        for cut in cuts:
            dims = [(value, dim) for value, dim in enumerate(cut.dims) if dim is not None]
            followed.update(dims)
            value, dim = dims[-1]  # of a result
            grid[cut.grid_dim] //= given[value].num_shards(dim)
    for value, sharding in enumerate(given):
        for dim, axes in enumerate(sharding.dims):
            if axes and (value, dim) not in followed:
                raise PlanError(
                    f"{op.name}: tensor {value} is cut along dim {dim}, which no dim of the"
                    " kernel's grid was proven to follow. Plan the module again, or leave that dim"
                    " whole.",
                    place(op.location),
                )
    return grid
