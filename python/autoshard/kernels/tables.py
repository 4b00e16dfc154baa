"""Contents of tables that kernels read, where the program says what is in them."""

from __future__ import annotations

import numpy as np

from autoshard.ir import mlir
from autoshard.ir.module import calls_of, module_of
from autoshard.ir.reading import ints
from autoshard.kernels.scalars import Integers, maker

_DEEPEST = 64
"""Steps that a value is followed back."""

_SAME = (
    *("stablehlo.optimization_barrier", "stablehlo.reshape", "stablehlo.convert"),
    "sdy.sharding_constraint",
)


def table_contents(value: mlir.Value) -> Integers | None:
    """The integers in a value; None where the program does not say, or devices have unlike parts.

    Followed through loops that hand it on from trip to trip, calls, manual computations, reshapes
    and casts of integers.
    """
    found = contents_of_parts(value)
    return found[0] if found is not None and len(found) == 1 else None


def contents_of_parts(value: mlir.Value) -> list[Integers] | None:
    """The integers in a value, on devices that have different parts of it; else as above."""
    shape = mlir.RankedTensorType(value.type).shape
    found = _contents(value, 0)
    return None if found is None else [part.reshape(shape) for part in found]


def _contents(value: mlir.Value, depth: int) -> list[Integers] | None:
    if depth > _DEEPEST:
        return None
    op = maker(value)
    if op is None:
        return _given_contents(mlir.BlockArgument(value), depth)
    number = mlir.OpResult(value).result_number
    if op.name == "stablehlo.constant":
        held = op.attributes["value"]
        if isinstance(held, mlir.DenseIntElementsAttr):
            return [np.asarray(held).astype(np.int64)]
        return None
    if op.name == "stablehlo.pad":
        return _padded(op, _contents(op.operands[0], depth + 1))
    if op.name in _SAME:
        return _contents(op.operands[number], depth + 1)
    if op.name == "stablehlo.while" and _is_handed_on(op, number):
        return _contents(op.operands[number], depth + 1)
    if op.name == "func.call":
        returned = _returned(op, number)
        return None if returned is None else _contents(returned, depth + 1)
    return None


def _padded(op: mlir.Operation, parts: list[Integers] | None) -> list[Integers] | None:
    """With what is behind the entries of a part; other padding is not followed."""
    shape = mlir.RankedTensorType(op.operands[0].type).shape
    low, inside = (ints(op, name, []) for name in ("edge_padding_low", "interior_padding"))
    high = ints(op, "edge_padding_high", [])
    if parts is None or any(low) or any(inside) or min(high) < 0:
        return None
    return [np.pad(part.reshape(shape), [(0, n) for n in high]) for part in parts]


def _given_contents(argument: mlir.BlockArgument, depth: int) -> list[Integers] | None:
    given = _given(argument)
    if given is None:
        return None
    found = _contents(given, depth + 1)
    whole = mlir.RankedTensorType(given.type).shape
    mine = mlir.RankedTensorType(argument.type).shape
    if found is None or list(whole) == list(mine):
        return found
    cut = [dim for dim, (a, b) in enumerate(zip(whole, mine, strict=True)) if a != b]
    if len(found) > 1 or len(cut) > 1 or whole[cut[0]] % mine[cut[0]]:
        return None
    return np.split(found[0].reshape(whole), whole[cut[0]] // mine[cut[0]], cut[0])


def _given(argument: mlir.BlockArgument) -> mlir.Value | None:
    """What a block argument is, always."""
    owner = argument.owner.owner.operation
    number = argument.arg_number
    if owner.name == "stablehlo.while":
        return owner.operands[number] if _is_handed_on(owner, number) else None
    if owner.name == "sdy.manual_computation":
        return owner.operands[number]
    if owner.name == "func.func":
        callers = calls_of(module_of(owner)).get(_name_of(owner), [])
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
