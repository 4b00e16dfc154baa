"""Which functions ops name."""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir

from autoshard.ir.module import operations_of

NAMED_BY = {
    "func.call": "callee",
    "stablehlo.custom_call": "called_computations",
    "stablehlo.composite": "decomposition",
}
"""Ops that name functions, with the attribute in which they do."""


def functions_named(op: ir.Operation) -> list[str]:
    """The functions that an op names itself, in order."""
    attribute = NAMED_BY.get(op.name)
    if attribute is None or attribute not in op.attributes:
        return []
    said = op.attributes[attribute]
    names = list(said) if isinstance(said, ir.ArrayAttr) else [said]
    return [ir.FlatSymbolRefAttr(name).value for name in names]


def functions_reached(functions: Mapping[str, ir.Operation], name: str) -> list[str]:
    """A function and all that are called from it, each once.

    Args:
        functions: Of the module, by name.
        name: The first one.
    """
    found = [name]
    for each in found:
        for op in operations_of(functions[each]):
            found += [called for called in functions_named(op) if called not in found]
    return found
