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


def is_zeros(op: ir.Operation) -> bool:
    """Whether ``op`` is a ``stablehlo.constant`` of zeros."""
    splat = splat_of(op)
    if isinstance(splat, ir.IntegerAttr | ir.BoolAttr | ir.FloatAttr):
        return float(splat.value) == 0.0
    return False


def splat_of(op: ir.Operation) -> ir.Attribute | None:
    """The element of a ``stablehlo.constant`` of equal ones; None for all other ops."""
    if op.name != "stablehlo.constant":
        return None
    try:
        elements = op.attributes["value"]
    except TypeError:  # complex numbers
        return None
    if not isinstance(elements, ir.DenseElementsAttr):
        return None
    elements = ir.DenseElementsAttr(elements)
    return elements.get_splat_value() if elements.is_splat else None
