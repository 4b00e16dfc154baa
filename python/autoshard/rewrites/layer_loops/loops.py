"""What a loop takes, and writes, by the number of its trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.importer.loops import trip_count
from autoshard.ir import mlir
from autoshard.ir.attributes import constant_integers
from autoshard.ir.reading import shape_of
from autoshard.rewrites.recomputation.loops import body_of, maker_of, yielded_of
from autoshard.rewrites.trip_lines import trip_line


@dataclass(frozen=True, slots=True)
class Access:
    """An op of the body that takes or writes one row of a stack."""

    number: int
    """Among the ops of the body."""
    index: int
    """The operand that says which row."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A carried array with a row for each trip, which is only taken and written by rows."""

    accesses: tuple[Access, ...]
    is_downwards: bool
    """The first trip has the last row."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerLoop:
    """A loop that counts trips from 0 and goes through the rows of stacks."""

    op: mlir.Operation
    trips: int
    counter: int
    """The slot that the condition compares."""
    stacks: Mapping[int, Stack]
    """By slot; all in one direction."""
    others: tuple[str, ...] = ()
    """Why arrays with a row for each trip are no stacks, as clauses."""

    @property
    def is_downwards(self) -> bool:
        """Does it go from the last row to the first one?"""
        return next(iter(self.stacks.values())).is_downwards


class _NoLayers(Exception):
    """Why a loop is none that can be cut by its trips."""


def layer_loop(op: mlir.Operation) -> LayerLoop | str:
    """Read a ``stablehlo.while``; the reason, as a clause, if it cannot be cut by its trips."""
    try:
        return _read(op)
    except _NoLayers as reason:
        return str(reason)


def _read(op: mlir.Operation) -> LayerLoop:
    trips = trip_count(op, lambda value: value)
    if trips is None:
        raise _NoLayers("how often it runs is not a constant of the program")
    counter = _counter(op)
    stacks: dict[int, Stack] = {}
    others: list[str] = []
    for slot in range(len(op.operands)):
        stack = _stack(op, slot, trips)
        if isinstance(stack, Stack):
            stacks[slot] = stack
        elif stack is not None:
            others.append(stack)
    if not stacks:
        raise _NoLayers(others[0] if others else "no array has a row for each of its trips")
    if len({stack.is_downwards for stack in stacks.values()}) > 1:
        raise _NoLayers("it goes through rows of some arrays upwards and of others downwards")
    return LayerLoop(op, trips, counter, stacks, tuple(others))


def _counter(loop: mlir.Operation) -> int:
    """The slot of the number that goes up by one from 0 to a constant."""
    condition = loop.regions[0].blocks[0]
    returned = condition.operations[len(condition.operations) - 1].operands[0]
    compare = maker_of(returned)
    left, right = compare.operands if compare is not None else (None, None)
    is_plain = (
        compare is not None
        and compare.name == "stablehlo.compare"
        and "LT" in str(compare.attributes["comparison_direction"])
        and isinstance(left, mlir.BlockArgument)
        and right is not None
        and (limit := maker_of(right)) is not None
        and limit.name == "stablehlo.constant"
    )
    if not is_plain or left is None:
        raise _NoLayers("its condition is not that of a scan, which compares a counter")
    slot = mlir.BlockArgument(left).arg_number
    if trip_line(loop, body_of(loop).arguments[slot]) != (1, 0):
        raise _NoLayers("its counter does not go up by one from 0")
    return slot


def _stack(loop: mlir.Operation, slot: int, trips: int) -> Stack | str | None:
    """How a slot is taken and written by rows.

    A clause says why it is not, where it has a row for each trip and parts of it are taken; None
    stands for other values.
    """
    body, yielded = body_of(loop), yielded_of(loop)[slot]
    end = body.operations[len(body.operations) - 1].operation
    argument = body.arguments[slot]
    if not isinstance(argument.type, mlir.RankedTensorType) or argument.type.rank == 0:
        return None
    uses = [(use.owner.operation, use.operand_number) for use in argument.uses]
    uses = [use for use in uses if use != (end, slot)]
    taken = [op for op, operand in uses if op.name in _ROW_OPS and operand == 0]
    lines = [_row_line(loop, op) for op in taken]
    straight = [line in ((1, 0), (-1, trips - 1)) for line in lines]
    others = [line for line, is_one in zip(lines, straight, strict=True) if not is_one]
    has_trips = shape_of(argument)[0] == trips
    array = f"an array of shape {shape_of(argument)}"
    if others:
        another = f"in a trip it takes {_said(others[0])} of {array}, not that of the trip"
        is_by_trip = any(line is not None and line[0] for line in others)
        if is_by_trip or (has_trips and any(straight)):
            raise _NoLayers(another)
        return another if has_trips else None
    if not taken or not has_trips:
        return None
    if len(taken) < len(uses) or len(list(loop.regions[0].blocks[0].arguments[slot].uses)):
        return f"it reads all of {array}, and not only the row of the trip"
    written = [op for op in taken if op.name == _ROW_OPS[1]]
    is_passed_on = [op.results[0] for op in written] == ([] if yielded == argument else [yielded])
    is_read_again = any(len(list(op.results[0].uses)) != 1 for op in written)
    if len(set(lines)) > 1 or any(op.block != body for op in taken):
        return f"it goes through the rows of {array} both ways, or in a branch"
    if not is_passed_on or is_read_again:
        return f"it changes more of {array} than the row of the trip, or reads it again"
    ops = [op.operation for op in body.operations]
    accesses = tuple(Access(ops.index(op), 1 if op.name == _ROW_OPS[0] else 2) for op in taken)
    return Stack(accesses, lines[0] != (1, 0))


_ROW_OPS = ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")


def _row_line(loop: mlir.Operation, op: mlir.Operation) -> tuple[int, int] | None:
    """Which row an op takes or writes, of all columns, by the trip; None: another part."""
    first = 1 if op.name == _ROW_OPS[0] else 2
    sizes = shape_of(op.results[0] if first == 1 else op.operands[1])
    whole = shape_of(op.operands[0])
    if sizes[0] != 1 or sizes[1:] != whole[1:]:
        return None
    if any(not _is_zero(start) for start in list(op.operands)[first + 1 :]):
        return None
    return trip_line(loop, op.operands[first])


def _is_zero(value: mlir.Value) -> bool:
    op = maker_of(value)
    if op is None or op.name != "stablehlo.constant":
        return False
    numbers = constant_integers(op)
    return numbers is not None and [int(n) for n in numbers] == [0]


def _said(line: tuple[int, int] | None) -> str:
    if line is None:
        return "a part"
    factor = {1: "trip", -1: "-trip"}.get(line[0], f"{line[0]} * trip")
    return f"row {factor} {'+' if line[1] >= 0 else '-'} {abs(line[1])}"
