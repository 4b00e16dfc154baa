"""Reading an op: shapes of tensors, attributes that are numbers."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Shape of a tensor."""
    return tuple(ir.RankedTensorType(value.type).shape)


def element_of(value: ir.Value) -> ir.Type:
    """The type of a tensor's elements."""
    return ir.RankedTensorType(value.type).element_type


def ints(op: ir.Operation, name: str, default: Sequence[int]) -> list[int]:
    """An attribute of integers or booleans, flat; ``default`` where the op has none."""
    if name not in op.attributes:
        return list(default)
    attribute = op.attributes[name]
    for kind in (ir.DenseI64ArrayAttr, ir.DenseBoolArrayAttr, ir.DenseIntElementsAttr):
        if isinstance(attribute, kind):
            return [int(number) for number in kind(attribute)]
    return [ir.IntegerAttr(attribute).value]


def pairs_of(op: ir.Operation, name: str, rank: int) -> list[tuple[int, int]]:
    """An attribute of two integers a dim, as ``padding``; zeros where the op has none."""
    flat = ints(op, name, [0] * (2 * rank))
    return list(zip(flat[::2], flat[1::2], strict=True))
