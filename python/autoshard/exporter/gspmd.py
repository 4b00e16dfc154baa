"""The pinned form for GSPMD: ``mhlo.sharding`` on the boundary, ``Sharding`` calls inside."""

from __future__ import annotations

from typing import ClassVar

from autoshard.exporter.pin import Form
from autoshard.exporter.planned import SHARDING, Placement, PlannedModule
from autoshard.ir import mlir
from autoshard.sharding.hlo_text import to_v2


class GspmdForm(Form):
    """Each distinct sharding becomes an attribute once."""

    boundary_attribute: ClassVar[str] = SHARDING

    def __init__(self) -> None:
        self.attributes: dict[Placement, mlir.Attribute] = {}
        self.call: dict[str, mlir.Attribute] = {}

    def begin(self, plan: PlannedModule) -> None:
        """Nothing to declare: the text of a sharding says which devices."""
        self.call = {
            "call_target_name": mlir.StringAttr.get("Sharding"),
            "backend_config": mlir.StringAttr.get(""),
        }

    def boundary(self, sharding: Placement) -> mlir.Attribute:
        """V2 text; XLA hangs on V3 and ignores what it cannot read."""
        attribute = self.attributes.get(sharding)
        if attribute is None:
            attribute = self.attributes[sharding] = mlir.StringAttr.get(to_v2(sharding.sharding))
        return attribute

    def constraint(
        self, value: mlir.Value, sharding: Placement, where: mlir.InsertionPoint, why: mlir.Location
    ) -> mlir.Value:
        """``stablehlo.custom_call @Sharding``."""
        return mlir.Operation.create(
            "stablehlo.custom_call",
            results=[value.type],
            operands=[value],
            attributes={**self.call, SHARDING: self.boundary(sharding)},
            loc=why,
            ip=where,
        ).results[0]
