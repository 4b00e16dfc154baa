"""Collectives that a program says itself, in the bodies of ``jax.shard_map``."""

from __future__ import annotations

import re
from math import prod

import numpy as np

from autoshard.errors import ParseError
from autoshard.ir import mlir
from autoshard.ir.attributes import custom_call_target
from autoshard.ir.locations import op_name, place
from autoshard.ir.types import tensor_bytes
from autoshard.planned.collective import (
    Collective,
    CollectiveKind,
    axes_of_groups,
    axes_of_pairs,
    in_mesh_order,
)
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import AxisRef

_KINDS = {
    "stablehlo.all_gather": CollectiveKind.ALL_GATHER,
    "stablehlo.all_reduce": CollectiveKind.ALL_REDUCE,
    "stablehlo.all_to_all": CollectiveKind.ALL_TO_ALL,
    "stablehlo.collective_permute": CollectiveKind.PERMUTE,
    "stablehlo.reduce_scatter": CollectiveKind.REDUCE_SCATTER,
}
_RAGGED = "ragged_all_to_all"
"""Target of the call that ``jax.lax.ragged_all_to_all`` is lowered to."""


def written_kind(op: mlir.Operation) -> CollectiveKind | None:
    """The kind of collective that ``op`` is; None: no collective."""
    if custom_call_target(op) == _RAGGED:
        return CollectiveKind.ALL_TO_ALL
    return _KINDS.get(op.name)


_NAMED_AXIS = re.compile(r'axis_ref<name = "((?:[^"\\]|\\.)*)"')


def written_collective(op: mlir.Operation, mesh: Mesh) -> Collective:
    """One run of a collective.

    How many rows a ragged all-to-all sends is known when it runs. It counts as one that sends all
    rows of its operand, as many to each device.

    Args:
        op: One that has a ``written_kind``.
        mesh: Over whose axes the program runs.
    """
    kind, sent = written_kind(op), list(op.operands)
    assert kind is not None
    if kind is CollectiveKind.PERMUTE:
        pairs = np.array(mlir.DenseIntElementsAttr(op.attributes["source_target_pairs"]))
        axes, size = axes_of_pairs(pairs, mesh), 2
    elif op.name in _KINDS:
        axes, size = _groups(op.attributes["replica_groups"], mesh)
    else:
        # Behind its rows are what they are written into, offsets and sizes.
        sent = sent[:1]
        config = mlir.DictAttr(op.attributes["backend_config"])
        axes, size = _groups(config["replica_groups"], mesh)
    types = [mlir.RankedTensorType(operand.type) for operand in sent]
    return Collective(
        kind=kind,
        axes=axes,
        group_size=size,
        local_bytes=sum(map(tensor_bytes, types)),
        place=place(op.location),
        element=str(types[0].element_type),
        op_name=op_name(op.location),
    )


def _groups(attribute: mlir.Attribute, mesh: Mesh) -> tuple[tuple[AxisRef, ...] | None, int]:
    """The axes along which groups run, and how many devices are in one.

    JAX writes the devices of each group, and from 0.11 on the axes.
    """
    text = str(attribute)
    if text.startswith("dense"):
        groups = np.array(mlir.DenseIntElementsAttr(attribute))
        return axes_of_groups(groups, mesh), groups.shape[1]
    names = _NAMED_AXIS.findall(text)
    if not names or "sub_axis_info" in text:
        raise ParseError(
            f"replica_groups = {text}: autoshard reads groups of devices, and whole axes."
        )
    # Axes of size 1 may be left out of the mesh.
    axes = tuple(AxisRef(name) for name in names if name in mesh.axis_names)
    return in_mesh_order(axes, mesh), prod(mesh.axis_size(axis.name) for axis in axes)
