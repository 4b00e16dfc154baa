"""Calls between stages that run one program in lockstep; export makes collectives of them."""

from __future__ import annotations

from enum import Enum

from autoshard.ir import mlir
from autoshard.ir.attributes import (
    STAGE_EXCHANGE,
    STAGE_GATHER,
    STAGE_NUMBER,
    STAGE_PERMUTE,
    STAGE_SUM,
)
from autoshard.ir.reading import element_of, shape_of


class Direction(Enum):
    """In which order the stages go through layers."""

    UP = "up"
    """Stage 0 first."""
    DOWN = "down"
    """Stage 0 last."""


def _call(
    target: str,
    type_: mlir.Type,
    operands: list[mlir.Value],
    where: mlir.InsertionPoint,
    why: mlir.Location,
    how: str | None = None,
) -> mlir.Value:
    attributes: dict[str, mlir.Attribute] = {"call_target_name": mlir.StringAttr.get(target)}
    if how is not None:
        attributes["backend_config"] = mlir.StringAttr.get(how)
    return mlir.Operation.create(
        "stablehlo.custom_call",
        results=[type_],
        operands=operands,
        attributes=attributes,
        loc=why,
        ip=where,
    ).results[0]


def stage_number(where: mlir.InsertionPoint, why: mlir.Location) -> mlir.Value:
    """Which stage runs this, an i32."""
    integer = mlir.RankedTensorType.get([], mlir.IntegerType.get_signless(32))
    return _call(STAGE_NUMBER, integer, [], where, why)


def from_stage_before(
    value: mlir.Value, direction: Direction, where: mlir.InsertionPoint, why: mlir.Location
) -> mlir.Value:
    """What the stage before has; zeros on the first one."""
    return _call(STAGE_PERMUTE, value.type, [value], where, why, direction.value)


def of_all_stages(
    value: mlir.Value, combines: str, where: mlir.InsertionPoint, why: mlir.Location
) -> mlir.Value:
    """What all stages have, put together by an op such as ``stablehlo.add``."""
    return _call(STAGE_SUM, value.type, [value], where, why, combines)


def gathered(
    value: mlir.Value, stages: int, where: mlir.InsertionPoint, why: mlir.Location
) -> mlir.Value:
    """The first dims of all stages one behind the other."""
    first, *others = shape_of(value)
    type_ = mlir.RankedTensorType.get([stages * first, *others], element_of(value))
    return _call(STAGE_GATHER, type_, [value], where, why)


def exchanged(value: mlir.Value, where: mlir.InsertionPoint, why: mlir.Location) -> mlir.Value:
    """The parts of the first dims of all stages that belong to this one, one behind the other."""
    return _call(STAGE_EXCHANGE, value.type, [value], where, why)
