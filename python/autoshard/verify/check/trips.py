"""Let counted loops run a few times only.

before  condition  %i < 96      body  dynamic_slice %layers, 95 - %i
after   condition  %i < 8       body  dynamic_slice %layers, 7 - %i

A loop over layers is split alike in every trip. Numbers in its body that are the number of trips,
or one less, count from its end: they change with it. Whatever they are, both forms of the program
have the same.
"""

from __future__ import annotations

import numpy as np

from autoshard.importer.loops import trip_count
from autoshard.ir import mlir
from autoshard.ir.module import operations_of
from autoshard.ir.types import numpy_type
from autoshard.verify.check.attributes import Constant, set_constant

MOST_TRIPS = 8


def shorten_loops(module: mlir.Module) -> int:
    """Give every counted loop at most ``MOST_TRIPS`` trips; how many loops had more."""
    count = 0
    with module.context, mlir.Location.unknown(module.context):
        for op in operations_of(module.operation):
            if op.name == "stablehlo.while" and _shorten(op):
                count += 1
    return count


def _shorten(loop: mlir.Operation) -> bool:
    trips = trip_count(loop, _same)
    if trips is None or trips <= MOST_TRIPS:
        return False
    condition, body = (region.blocks[0] for region in loop.regions)
    for limit in _scalars(condition):
        old = _value(limit)
        for step in (1, -1):
            _write(limit, old - step * (trips - MOST_TRIPS))
            if trip_count(loop, _same) == MOST_TRIPS:
                for constant in _scalars(body):
                    if _value(constant) in (trips, trips - 1):
                        _write(constant, _value(constant) - trips + MOST_TRIPS)
                return True
        _write(limit, old)
    return False


def _same(value: mlir.Value) -> mlir.Value:
    return value


def _scalars(block: mlir.Block) -> list[mlir.Operation]:
    """The integer constants of rank 0 in a block, and in loops and branches inside of it."""
    found: list[mlir.Operation] = []
    for outer in block.operations:
        for op in operations_of(outer.operation):
            if op.name != "stablehlo.constant":
                continue
            type_ = mlir.RankedTensorType(op.results[0].type)
            element = type_.element_type
            if type_.rank == 0 and isinstance(element, mlir.IntegerType) and element.width > 8:
                found.append(op)
    return found


def _value(constant: mlir.Operation) -> int:
    return int(Constant.of(constant).first.real)


def _write(constant: mlir.Operation, value: int) -> None:
    type_ = mlir.RankedTensorType(constant.results[0].type)
    set_constant(constant, np.array(value).astype(numpy_type(type_.element_type)), type_)
