"""Constants written from text: jaxlib has no Python class for attributes of complex numbers."""

from __future__ import annotations

from jaxlib.mlir import ir


def constant(
    type_: ir.Type, elements: str, where: ir.InsertionPoint, why: ir.Location
) -> ir.Operation:
    """``stablehlo.constant`` of what stands in ``dense<..>``, such as ``[1, 2]``."""
    text = f"value = dense<{elements}> : {type_}"
    op = ir.Operation.parse(f'"stablehlo.constant"() {{{text}}} : () -> {type_}').operation
    op.location = why
    where.insert(op)
    return op


def zeros(type_: ir.Type, where: ir.InsertionPoint, why: ir.Location) -> ir.Operation:
    """A tensor of zeros."""
    return constant(type_, _zero(ir.RankedTensorType(type_).element_type), where, why)


def _zero(element: ir.Type) -> str:
    if isinstance(element, ir.ComplexType):
        return "(0.0, 0.0)"
    if isinstance(element, ir.IntegerType):
        return "false" if element.width == 1 else "0"
    return "0.0"
