"""Functions of one module in another."""

from __future__ import annotations

from jaxlib.mlir import ir

from autoshard.ir.module import functions_of, operations_of
from autoshard.ir.symbols import NAMED_BY


def add_functions(
    module: ir.Operation, other: ir.Module, name: str, *, keeps_boundary: bool = False
) -> str:
    """Copy the functions of ``other`` into ``module``, as private ones.

    Args:
        module: The op of the module that gets them.
        other: Of the same context; it is changed.
        name: Of what was ``main``; the others have it in front. No symbol has it yet.
        keeps_boundary: Their arguments and results keep their attributes.

    Returns:
        ``name``.
    """
    functions = functions_of(other)
    names = {old: name if old == "main" else f"{name}_{old}" for old in functions}
    for op in operations_of(other.operation):
        attribute = NAMED_BY.get(op.name)
        if attribute is not None and attribute in op.attributes:
            op.attributes[attribute] = _renamed(op.attributes[attribute], names)
    where = ir.InsertionPoint(module.regions[0].blocks[0])
    for old, function in functions.items():
        copy = function.clone(ip=where).operation
        copy.attributes["sym_name"] = ir.StringAttr.get(names[old])
        copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for attribute in ("arg_attrs", "res_attrs"):
            if attribute in copy.attributes and not keeps_boundary:
                del copy.attributes[attribute]
    return name


def _renamed(attribute: ir.Attribute, names: dict[str, str]) -> ir.Attribute:
    if isinstance(attribute, ir.ArrayAttr):
        return ir.ArrayAttr.get([_renamed(each, names) for each in attribute])
    return ir.FlatSymbolRefAttr.get(names[ir.FlatSymbolRefAttr(attribute).value])
