"""The pinned form for Shardy: ``sdy.sharding`` on the boundary, constraints inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autoshard.exporter.blocks import BlockOp
from autoshard.exporter.form import Form
from autoshard.ir import mlir
from autoshard.ir.attributes import SDY_SHARDING
from autoshard.planned.module import Placement, PlannedModule
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sdy_text import mesh_to_sdy, to_sdy, to_sdy_per_value
from autoshard.sharding.sharding import Sharding

_MESH_NAME = "mesh"


class ShardyForm(Form):
    """Each distinct sharding becomes an attribute once."""

    boundary_attribute: ClassVar[str] = SDY_SHARDING

    def __init__(self) -> None:
        self.mesh_name = _MESH_NAME
        self.attributes: dict[Placement, mlir.Attribute] = {}

    def begin(self, plan: PlannedModule) -> None:
        """Add the plan's ``sdy.mesh``, or take one that says the same."""
        super().begin(plan)
        self.mesh_name = plan_mesh(plan.module, plan.mesh)
        axes = ", ".join(f'"{axis.name}"' for axis in plan.mesh.axes)
        self.all_axes = mlir.Attribute.parse(f"#sdy<manual_axes{{{axes}}}>")

    def boundary(self, sharding: Placement) -> mlir.Attribute:
        """``#sdy.sharding<@mesh, [...]>`` with closed dims."""
        attribute = self.attributes.get(sharding)
        if attribute is None:
            attribute = mlir.Attribute.parse(to_sdy(sharding.sharding, self.mesh_name))
            self.attributes[sharding] = attribute
        return attribute

    def constraint(
        self, value: mlir.Value, sharding: Placement, where: mlir.InsertionPoint, why: mlir.Location
    ) -> mlir.Value:
        """``sdy.sharding_constraint``."""
        return mlir.Operation.create(
            "sdy.sharding_constraint",
            results=[value.type],
            operands=[value],
            attributes={"sharding": self.boundary(sharding)},
            loc=why,
            ip=where,
        ).results[0]

    def on_blocks(self, op: BlockOp, where: mlir.InsertionPoint) -> list[mlir.Value]:
        """``sdy.manual_computation`` over all axes."""

        def attribute(shardings: Sequence[Sharding]) -> mlir.Attribute:
            return mlir.Attribute.parse(to_sdy_per_value(shardings, self.mesh_name))

        made = mlir.Operation.create(
            "sdy.manual_computation",
            results=op.types,
            operands=list(op.op.operands),
            attributes={
                "in_shardings": attribute(op.operands),
                "out_shardings": attribute(op.results),
                "manual_axes": self.all_axes,
            },
            regions=1,
            loc=op.op.location,
            ip=where,
        )
        body = made.regions[0].blocks.append(*op.operand_blocks)
        inside = mlir.InsertionPoint(body)
        results = op.write(list(body.arguments), self.emitter(inside, op.op.location))
        mlir.Operation.create("sdy.return", operands=results, loc=op.op.location, ip=inside)
        return list(made.results)


def plan_mesh(module: mlir.Module, mesh: Mesh) -> str:
    """The symbol of an ``sdy.mesh`` that is the plan's; made under a free name if there is none."""
    attribute = mlir.Attribute.parse(mesh_to_sdy(mesh))
    taken: set[str] = set()
    for op in module.body.operations:
        symbol = op.operation.attributes.get("sym_name")
        if symbol is None:
            continue
        name = mlir.StringAttr(symbol).value
        if op.operation.name == "sdy.mesh" and op.operation.attributes["mesh"] == attribute:
            return name
        taken.add(name)
    names = (
        _MESH_NAME if not number else f"{_MESH_NAME}_{number}" for number in range(len(taken) + 1)
    )
    name = next(name for name in names if name not in taken)
    mlir.Operation.create(
        "sdy.mesh",
        attributes={"sym_name": mlir.StringAttr.get(name), "mesh": attribute},
        loc=mlir.Location.unknown(),
        ip=mlir.InsertionPoint.at_block_begin(module.body),
    )
    return name
