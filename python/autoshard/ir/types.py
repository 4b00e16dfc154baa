"""Facts about MLIR's types."""

from __future__ import annotations

from jaxlib.mlir import ir

from autoshard.errors import ImportModuleError


def element_bits(element: ir.Type) -> int:
    """Bits one element takes in memory: a predicate 8, a complex number those of both parts.

    Raises:
        ImportModuleError: A type without a width, such as a token.
    """
    if isinstance(element, ir.ComplexType):
        return 2 * element_bits(element.element_type)
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return 8 if element.width == 1 else element.width
    raise ImportModuleError(f"element type {element} has no known width.")


def zero_text(element: ir.Type) -> str:
    """Zero as it stands in ``dense<..>``."""
    if isinstance(element, ir.ComplexType):
        return "(0.0, 0.0)"
    if isinstance(element, ir.IntegerType):
        return "false" if element.width == 1 else "0"
    return "0.0"
