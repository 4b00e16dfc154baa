"""Attributes: the plan's own go, the boundary gets the partitioner's."""

from __future__ import annotations

from autoshard.errors import PlanError
from autoshard.exporter.form import Form
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MHLO_SHARDING, NUM_PARTITIONS, NUM_REPLICAS, SDY_SHARDING
from autoshard.ir.boundary import Side, attributes_at
from autoshard.ir.one_device import is_on_one_device
from autoshard.planned.module import (
    OWN_PREFIX,
    Placement,
    PlannedFunction,
    PlannedModule,
    PlannedOp,
)

_SHARDINGS = (MHLO_SHARDING, SDY_SHARDING)


def set_partition_count(plan: PlannedModule) -> None:
    """``mhlo.num_partitions`` becomes the mesh's size; a module traced without a mesh says 1.

    Raises:
        PlanError: It says another number.
    """
    attributes = plan.module.operation.attributes
    number = attributes.get(NUM_PARTITIONS)
    count = 1 if number is None else mlir.IntegerAttr(number).value
    if count not in (1, plan.mesh.size):
        raise PlanError(
            f"the module was lowered for {count} partitions, the plan's mesh {plan.mesh} has "
            f"{plan.mesh.size} devices. Lower it under the plan's mesh, or under none.",
            place(plan.module.operation.location),
        )
    int32 = mlir.IntegerType.get_signless(32)
    attributes[NUM_PARTITIONS] = mlir.IntegerAttr.get(int32, plan.mesh.size)
    attributes[NUM_REPLICAS] = mlir.IntegerAttr.get(int32, 1)


def drop_own(op: mlir.Operation) -> None:
    """Take the plan's attributes off an op."""
    attributes = op.attributes
    for name in [name for name in attributes if name.startswith(OWN_PREFIX)]:
        del attributes[name]


def drop_plan(planned: PlannedOp, form: Form, one_device_meshes: frozenset[str]) -> None:
    """Take the plan off an op, and shardings of its own, which the constraints now say.

    A call back into Python runs on one device and says so: that stays.
    """
    drop_own(planned.op)
    attributes = planned.op.attributes
    keeps_own = (
        not planned.results
        or None in planned.results
        or is_on_one_device(planned.op, one_device_meshes)
    )
    for name in _SHARDINGS:
        if name in attributes and not (keeps_own and name == form.boundary_attribute):
            del attributes[name]


def write_boundary(function: PlannedFunction, form: Form) -> None:
    """Give the arguments and results of an entry their shardings; take the plan off a function."""
    _write_side(function, "arg_attrs", function.arguments, form)
    _write_side(function, "res_attrs", function.results, form)
    drop_own(function.op)


def _write_side(
    function: PlannedFunction, side: Side, shardings: tuple[Placement | None, ...], form: Form
) -> None:
    new: list[mlir.Attribute] = []
    for entries, sharding in zip(attributes_at(function.op, side), shardings, strict=True):
        kept = {
            name: attribute
            for name, attribute in entries.items()
            if name not in _SHARDINGS and not name.startswith(OWN_PREFIX)
        }
        if function.is_entry and sharding is not None:
            kept[form.boundary_attribute] = form.boundary(sharding)
        new.append(mlir.DictAttr.get(kept))
    function.op.attributes[side] = mlir.ArrayAttr.get(new)
