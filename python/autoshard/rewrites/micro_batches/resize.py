"""Ops at the size of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import _core
from autoshard.importer.kernels import kernel_cuts
from autoshard.ir import mlir
from autoshard.ir.reading import element_of, ints, shape_of
from autoshard.kernels.cudnn_attention import cudnn_attention
from autoshard.kernels.mosaic import config_on_grid, is_tpu_kernel
from autoshard.rewrites.micro_batches.parts import Part


def resize_values(
    operations: Sequence[mlir.Operation], slices: Sequence[_core.SlicedValue], count: int
) -> list[mlir.Operation]:
    """Give every slice its type; the ops whose results changed."""
    changed: list[mlir.Operation] = []
    types: dict[tuple[mlir.Type, int], mlir.Type] = {}
    for slice_ in slices:
        op = operations[slice_.op]
        if slice_.region < 0:
            value = op.results[slice_.index]
            changed.append(op)
        else:
            value = op.regions[slice_.region].blocks[0].arguments[slice_.index]
        key = (value.type, slice_.dim)
        if key not in types:
            part = Part(slice_.dim, slice_.stride, count)
            types[key] = mlir.RankedTensorType.get(part.shape(shape_of(value)), element_of(value))
        value.set_type(types[key])
    return changed


def resize_attributes(op: mlir.Operation) -> None:
    """Sizes that an op states, once its operands and results have their types."""
    if op.name == "stablehlo.slice":
        limits = zip(ints(op, "limit_indices", []), shape_of(op.operands[0]), strict=True)
        new = [min(limit, size) for limit, size in limits]
        op.attributes["limit_indices"] = mlir.DenseI64ArrayAttr.get(new)
    elif op.name == "stablehlo.dynamic_slice":
        op.attributes["slice_sizes"] = mlir.DenseI64ArrayAttr.get(shape_of(op.results[0]))
    elif op.name == "stablehlo.gather":
        sizes = zip(ints(op, "slice_sizes", []), shape_of(op.operands[0]), strict=True)
        new = [min(size, whole) for size, whole in sizes]
        op.attributes["slice_sizes"] = mlir.DenseI64ArrayAttr.get(new)


def kernel_configs(
    operations: Sequence[mlir.Operation], slices: Sequence[_core.SlicedValue], count: int
) -> dict[int, str]:
    """What kernels are told of their sizes, by the numbers of their ops.

    Args:
        operations: At their sizes before.
        slices: Values that become smaller.
        count: Micro-batches.
    """
    configs: dict[int, str] = {}
    for slice_ in slices:
        op = operations[slice_.op]
        if slice_.region >= 0 or slice_.op in configs:
            continue
        if is_tpu_kernel(op):
            configs[slice_.op] = config_on_grid(op, _smaller_grid(op, slice_, count))
        elif (attention := cudnn_attention(op)) is not None:
            batch, heads, *_ = shape_of(op.results[0])
            sizes = [batch, heads]
            sizes[slice_.dim] //= count
            configs[slice_.op] = attention.config_for(*sizes)
    return configs


def _smaller_grid(op: mlir.Operation, slice_: _core.SlicedValue, count: int) -> list[int]:
    """The grid of a kernel one of whose results is ``slice_``."""
    found = kernel_cuts(op)
    assert found is not None, "the kernel was cut by the rule of its grid"
    kernel, cuts = found
    result = len(op.operands) + slice_.index
    grid = list(kernel.grid)
    (dim,) = (cut.grid_dim for cut in cuts if cut.dims[result] == slice_.dim)
    grid[dim] //= count
    return grid
