"""Calls back into Python: JAX says which one device makes them, by a mesh of that device."""

from __future__ import annotations

from collections.abc import Collection

from jaxlib.mlir import ir

from autoshard.ir.attributes import SDY_SHARDING


def is_one_device_mesh(op: ir.Operation) -> bool:
    """Whether ``op`` is an ``sdy.mesh`` that stands for a single device."""
    return op.name == "sdy.mesh" and "<[], device_ids" in str(op.attributes["mesh"])


def one_device_meshes(module: ir.Module) -> frozenset[str]:
    """Symbols of the ``sdy.mesh`` ops that stand for a single device."""
    return frozenset(
        ir.StringAttr(op.operation.attributes["sym_name"]).value
        for op in module.body.operations
        if is_one_device_mesh(op.operation)
    )


def is_maximal(attribute: ir.Attribute) -> bool:
    """Whether an ``mhlo.sharding`` names the one device that makes the call."""
    return ir.StringAttr(attribute).value.startswith("{maximal")


def is_on_one_device(op: ir.Operation, meshes: Collection[str]) -> bool:
    """Whether the ``sdy.sharding`` of ``op`` names one of ``one_device_meshes``."""
    if not meshes or SDY_SHARDING not in op.attributes:
        return False
    text = str(op.attributes[SDY_SHARDING])
    return any(f"<@{name}," in text for name in meshes)
