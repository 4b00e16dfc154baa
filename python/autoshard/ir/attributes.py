"""Attributes of ops, also those that jaxlib has no Python class for.

jaxlib 0.10.2 and 0.12.0.1 have none for the elements of a complex constant. Asking for it by name
is a ``TypeError``; ``NamedAttribute.attr`` and the comparison of two ``NamedAttribute``s end the
process, since nothing may be thrown there. So attributes of arbitrary ops are read here only.
"""

from __future__ import annotations

from collections.abc import Container, Hashable

from jaxlib.mlir import ir

CUSTOM_PARTITIONING = "CustomSPMDPartitioning"
"""The custom call that ``jax.experimental.custom_partitioning`` is lowered to."""


def custom_call_target(op: ir.Operation) -> str | None:
    """What a custom call calls; None for other ops."""
    if op.name != "stablehlo.custom_call":
        return None
    return ir.StringAttr(op.attributes["call_target_name"]).value


def attribute_keys(op: ir.Operation, but: Container[str] = ()) -> tuple[tuple[str, Hashable], ...]:
    """Names and values of the attributes of an op; equal for ops with equal ones.

    Args:
        op: Any op.
        but: Names of attributes that do not count.
    """
    names = [op.attributes[index].name for index in range(len(op.attributes))]
    return tuple(
        (name, _key(op, index, name)) for index, name in enumerate(names) if name not in but
    )


def _key(op: ir.Operation, index: int, name: str) -> Hashable:
    try:
        return op.attributes[name]
    except TypeError:  # no class of Python: the text says the same
        return str(op.attributes[index])


def constant_integers(constant: ir.Operation) -> ir.DenseIntElementsAttr | None:
    """The elements of a ``stablehlo.constant``; None if they are no integers."""
    try:
        elements = constant.attributes["value"]
    except TypeError:  # complex numbers
        return None
    if not isinstance(elements, ir.DenseIntElementsAttr):
        return None
    return ir.DenseIntElementsAttr(elements)
