"""The pinned form for GSPMD: ``mhlo.sharding`` on the boundary, ``Sharding`` calls inside."""

from __future__ import annotations

from typing import ClassVar

from autoshard.exporter.blocks import BlockOp
from autoshard.exporter.form import Form
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.planned.module import Placement, PlannedModule
from autoshard.sharding.hlo_text import to_v2


class GspmdForm(Form):
    """Each distinct sharding becomes an attribute once."""

    boundary_attribute: ClassVar[str] = MHLO_SHARDING

    def __init__(self) -> None:
        self.attributes: dict[Placement, mlir.Attribute] = {}

    def begin(self, plan: PlannedModule) -> None:
        """Nothing to declare: the text of a sharding says which devices."""
        super().begin(plan)

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
        return _call("Sharding", value, value.type, self.boundary(sharding), where, why)

    def on_blocks(self, op: BlockOp, where: mlir.InsertionPoint) -> list[mlir.Value]:
        """The op between ``SPMDFullToShardShape`` and ``SPMDShardToFullShape``."""
        why = op.op.location
        manual = mlir.StringAttr.get("{manual}")
        blocks = [
            _on_block(value, block, to_v2(sharding), where, why)
            for value, block, sharding in zip(
                op.op.operands, op.operand_blocks, op.operands, strict=True
            )
        ]
        results: list[mlir.Value] = []
        made = op.write(blocks, self.emitter(where, why, _enter))
        for value, type_, sharding in zip(made, op.types, op.results, strict=True):
            held = _call("Sharding", value, value.type, manual, where, why)
            text = mlir.StringAttr.get(to_v2(sharding))
            results.append(_call("SPMDShardToFullShape", held, type_, text, where, why))
        return results


def _enter(value: mlir.Value, where: mlir.InsertionPoint, why: mlir.Location) -> mlir.Value:
    return _on_block(value, value.type, "{replicated}", where, why)


def _on_block(
    value: mlir.Value,
    block: mlir.Type,
    sharding: str,
    where: mlir.InsertionPoint,
    why: mlir.Location,
) -> mlir.Value:
    """What a device has of ``value``, held in ``sharding``."""
    held = _call("Sharding", value, value.type, mlir.StringAttr.get(sharding), where, why)
    manual = mlir.StringAttr.get("{manual}")
    return _call("SPMDFullToShardShape", held, block, manual, where, why)


def _call(
    target: str,
    value: mlir.Value,
    type_: mlir.Type,
    sharding: mlir.Attribute,
    where: mlir.InsertionPoint,
    why: mlir.Location,
) -> mlir.Value:
    return mlir.Operation.create(
        "stablehlo.custom_call",
        results=[type_],
        operands=[value],
        attributes={
            "call_target_name": mlir.StringAttr.get(target),
            "backend_config": mlir.StringAttr.get(""),
            MHLO_SHARDING: sharding,
        },
        loc=why,
        ip=where,
    ).results[0]
