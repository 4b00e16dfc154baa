"""Ops at the size of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import _core
from autoshard.ir import mlir
from autoshard.ir.reading import element_of, ints, shape_of
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
