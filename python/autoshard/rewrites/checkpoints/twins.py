"""What the second of two loops computes as the first one did.

Values of both are numbered together: those outside of the loops, what a trip of the first one
makes, what a trip of the second one reads of its stacks, and the number of the trip.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from autoshard.importer.loops import trip_count
from autoshard.ir import mlir
from autoshard.rewrites.numbering import Numbering
from autoshard.rewrites.recomputation.loops import (
    Pair,
    body_of,
    invariant_slots,
    stacks_between,
)
from autoshard.rewrites.trip_lines import trip_line

_INDEX: Hashable = "number of the trip"


@dataclass(frozen=True, slots=True)
class Loops(Pair):
    """Two loops, the second of which goes through the trips of the first one in any order."""

    trips: int
    first_index: mlir.Value
    second_index: mlir.Value

    @property
    def index(self) -> mlir.Value:
        """See ``Pair``; also where nothing is stacked."""
        return self.first_index

    @property
    def read_index(self) -> mlir.Value:
        """See ``Pair``."""
        return self.second_index


def loops_of(first: mlir.Operation, second: mlir.Operation) -> Loops | None:
    """Two counted loops of as many trips, if both take parts of arrays by the number of the trip.

    Both numbers go through all trips: 0, 1, .. or .., 1, 0.
    """
    trips = trip_count(first, _same)
    if trips is None or not trips or trip_count(second, _same) != trips:
        return None
    stacks = stacks_between(first, second, lambda value: 0.0)
    indices = [stack.index for stack in stacks[:1]] or _indices(first, trips)
    read_indices = [stack.read_index for stack in stacks[:1]] or _indices(second, trips)
    for index in indices:
        for read_index in read_indices:
            if _is_trip(first, index, trips) and _is_trip(second, read_index, trips):
                return Loops(first, second, tuple(stacks), trips, index, read_index)
    return None


def numbers_of(loops: Loops, outside: Numbering) -> Numbering:
    """Values of both loops, by the first ones that are the same.

    Args:
        loops: What is read.
        outside: Has read all that stands before the second loop.
    """
    numbers = Numbering(outside)
    first, second = body_of(loops.first), body_of(loops.second)
    same: dict[mlir.Value, Hashable] = {}
    for slot in invariant_slots(loops.first):
        number = numbers.of(loops.first.operands[slot])
        numbers.number[first.arguments[slot]] = number
        same[loops.first.results[slot]] = number
    _read_body(numbers, first, loops.first_index)
    for slot in invariant_slots(loops.second):
        operand = loops.second.operands[slot]
        numbers.number[second.arguments[slot]] = same.get(operand, numbers.of(operand))
    values = {read.results[0]: stack.value for stack in loops.stacks for read in stack.reads}
    _read_body(numbers, second, loops.second_index, values)
    return numbers


def _read_body(
    numbers: Numbering,
    block: mlir.Block,
    index: mlir.Value,
    values: dict[mlir.Value, mlir.Value] | None = None,
) -> None:
    numbers.number[index] = _INDEX
    for op in [op.operation for op in block.operations]:
        if index in list(op.results):
            continue
        numbers.read(op)
        for result in op.results:
            if values is not None and result in values:
                numbers.number[result] = numbers.of(values[result])


def _indices(loop: mlir.Operation, trips: int) -> list[mlir.Value]:
    """What parts of carried arrays are taken by."""
    found: list[mlir.Value] = []
    for op in body_of(loop).operations:
        if op.operation.name == "stablehlo.dynamic_slice":
            array, index = list(op.operation.operands)[:2]
            shape = mlir.RankedTensorType(array.type).shape
            if isinstance(array, mlir.BlockArgument) and shape[0] == trips and index not in found:
                found.append(index)
    return found


def _is_trip(loop: mlir.Operation, index: mlir.Value, trips: int) -> bool:
    """Does a value of a loop's body go through the numbers of all trips, up or down?"""
    return trip_line(loop, index) in ((1, 0), (-1, trips - 1))


def _same(value: mlir.Value) -> mlir.Value:
    return value
