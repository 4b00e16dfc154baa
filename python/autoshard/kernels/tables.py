"""Contents of tables that kernels read, where the program says what is in them."""

from __future__ import annotations

import numpy as np

from autoshard.ir import mlir
from autoshard.ir.module import operations_of
from autoshard.kernels.scalars import Integers, maker

_DEEPEST = 64
"""Steps that a value is followed back."""

_SAME = (
    *("stablehlo.optimization_barrier", "stablehlo.reshape", "stablehlo.convert"),
    "sdy.sharding_constraint",
)


def table_contents(value: mlir.Value) -> Integers | None:
    """The integers in a value; None where the program does not say.

    Followed through loops that hand it on from trip to trip, calls, manual computations that have
    all of it, reshapes and casts of integers.
    """
    shape = mlir.RankedTensorType(value.type).shape
    found = _contents(value, 0)
    return None if found is None else found.reshape(shape)


def _contents(value: mlir.Value, depth: int) -> Integers | None:
    if depth > _DEEPEST:
        return None
    op = maker(value)
    if op is None:
        given = _given(mlir.BlockArgument(value))
        return None if given is None else _contents(given, depth + 1)
    number = mlir.OpResult(value).result_number
    if op.name == "stablehlo.constant":
        held = op.attributes["value"]
        if isinstance(held, mlir.DenseIntElementsAttr):
            return np.asarray(held).astype(np.int64)
        return None
    if op.name in _SAME:
        return _contents(op.operands[number], depth + 1)
    if op.name == "stablehlo.while" and _is_handed_on(op, number):
        return _contents(op.operands[number], depth + 1)
    if op.name == "func.call":
        returned = _returned(op, number)
        return None if returned is None else _contents(returned, depth + 1)
    return None


def _given(argument: mlir.BlockArgument) -> mlir.Value | None:
    """What a block argument is, always."""
    owner = argument.owner.owner.operation
    number = argument.arg_number
    if owner.name == "stablehlo.while":
        return owner.operands[number] if _is_handed_on(owner, number) else None
    if owner.name == "sdy.manual_computation":
        operand = owner.operands[number]
        return operand if operand.type == argument.type else None
    if owner.name == "func.func":
        callers = _callers(owner)
        return callers[0].operands[number] if len(callers) == 1 else None
    return None


def _returned(call: mlir.Operation, number: int) -> mlir.Value | None:
    """What the callee gives back."""
    name = mlir.FlatSymbolRefAttr(call.attributes["callee"]).value
    top = call
    while top.parent is not None:
        top = top.parent.operation
    for op in top.regions[0].blocks[0].operations:
        if op.operation.name == "func.func" and _name_of(op.operation) == name:
            *_, last = op.operation.regions[0].blocks[0].operations
            return last.operation.operands[number]
    return None


def _name_of(function: mlir.Operation) -> str:
    return mlir.StringAttr(function.attributes["sym_name"]).value


def _is_handed_on(loop: mlir.Operation, number: int) -> bool:
    body = loop.regions[1].blocks[0]
    *_, last = body.operations
    value = last.operation.operands[number]
    while (op := maker(value)) is not None and op.name in _SAME:
        value = op.operands[mlir.OpResult(value).result_number]
    return value == body.arguments[number]


def _callers(function: mlir.Operation) -> list[mlir.Operation]:
    module = function.parent
    if module is None:
        return []
    name = _name_of(function)
    return [
        op
        for op in operations_of(module.operation)
        if op.name == "func.call" and mlir.FlatSymbolRefAttr(op.attributes["callee"]).value == name
    ]
