"""Where the user's code can speak of a value: at its line, or where the function of it is called.

A function that many lines call, as the dense layer of a library, makes and reads values that a plan
cuts in different ways. What is to be said of them is said where it is called::

    linear.py:287   return dot_general(inputs, kernel)
    block.py:579    y = self.linear_y(x)      # cut by batch here
    block.py:583    z = self.linear_x(x)      # and by features here
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from autoshard.explain.question import Dims, Subject
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import mlir, op_name
from autoshard.ir.locations import lines_of
from autoshard.planned.summarize import line_of, short_name, type_text

_ROUNDING = 1e-9


class Place(NamedTuple):
    """Where values of one type are made, or read."""

    location: str
    """``file:line``, of the op or of a call of the function that it is in."""
    type: str
    """``4096x11008xbf16``."""
    within: str = ""
    """The op's own ``file:line``, where ``location`` is that of a call."""


@dataclass(frozen=True)
class _Item:
    """A value as an op makes or reads it."""

    op: mlir.Operation
    kind: object
    """Equal for those that one line of code speaks of."""
    dims: Dims
    weight: float
    """Its bytes, times its runs in a step."""


class CallSites:
    """The places of all values of a plan, each as near to its op as tells it from others.

    Of one line and type all values are at this line if they are cut alike. Else they are at the
    lines of the calls, from the inside out, where that tells more bytes of them apart.
    """

    def __init__(self, subject: Subject, is_backward: Callable[[mlir.Operation], bool]) -> None:
        """``is_backward`` says whether an op is of the backward half."""
        self._calls: dict[tuple[mlir.Operation, str], str] = {}
        """By ops and types those that are said at the line of a call."""
        items: defaultdict[tuple[str, str], list[_Item]] = defaultdict(list)
        for item, place in _items(subject, is_backward):
            items[place].append(item)
        for (location, type_), there in items.items():
            if _held(there) < sum(one.weight for one in there) * (1 - _ROUNDING):
                stacks = [lines_of(one.op.location) for one in there]
                for part, call in _told_apart(list(zip(there, stacks, strict=True)), location, 0):
                    if call != location:
                        self._calls.update(((one.op, type_), call) for one, _ in part)

    def of(self, op: mlir.Operation, type_: mlir.Type) -> Place | None:
        """Where what an op makes or reads of a type is said; None: no line has made the op."""
        location, text = line_of(op), type_text(type_)
        if location is None:
            return None
        call = self._calls.get((op, text))
        return Place(location, text) if call is None else Place(call, text, location)


def _items(
    subject: Subject, is_backward: Callable[[mlir.Operation], bool]
) -> Iterator[tuple[_Item, tuple[str, str]]]:
    imported, plan = subject.imported, subject.plan
    rows: list[Dims] = [tuple(map(tuple, dims)) for dims in plan.shardings]
    shapes, bits = imported.value_shapes, imported.value_bits
    trips = imported.program.op_trips
    results = dict(imported.result_values)

    def size_of(value: int) -> float:
        return prod(shapes[value]) * bits[value] / 8

    for number, (op, strategy) in enumerate(zip(imported.core_ops, plan.op_strategy, strict=True)):
        location = line_of(op)
        if number in imported.rounded or location is None:
            continue  # no op of the user's
        read = zip(imported.program.operands_of(number), op.operands, strict=False)
        made = zip(results.get(op, ()), op.results, strict=False)
        strategies = plan.strategies[strategy][0]
        name = op_name(op.location)
        about = is_backward(op), "rematted_computation" in name, short_name(op)
        for position, (value, operand) in enumerate(read):
            if value != NO_VALUE and not imported.value_is_free[value]:
                weight = size_of(value) * trips[number]
                item = _Item(op, (*about, position), rows[strategies[position]], weight)
                yield item, (location, type_text(operand.type))
        for value, result in made:
            if value != NO_VALUE and not imported.value_is_free[value]:
                weight = size_of(value) * trips[number]
                item = _Item(op, about, subject.dims[value], weight)
                yield item, (location, type_text(result.type))


def _held(items: Sequence[_Item]) -> float:
    """Bytes that are cut as most of their kind are."""
    weights: defaultdict[object, defaultdict[Dims, float]]
    weights = defaultdict(lambda: defaultdict(float))
    for one in items:
        weights[one.kind][one.dims] += one.weight
    return sum(max(by_dims.values()) for by_dims in weights.values())


_Stacked = Sequence[tuple[_Item, Sequence[str]]]
"""Items with the lines of their call stacks, the innermost first."""


def _told_apart(items: _Stacked, location: str, depth: int) -> Iterator[tuple[_Stacked, str]]:
    """Those that one line speaks of, with the line."""
    held = _held([one for one, _ in items])
    for outer in range(depth + 1, max(len(stack) for _, stack in items)):
        parts: defaultdict[str, list[tuple[_Item, Sequence[str]]]] = defaultdict(list)
        for one, stack in items:
            parts[stack[min(outer, len(stack) - 1)]].append((one, stack))
        apart = sum(_held([one for one, _ in part]) for part in parts.values())
        if apart > held * (1 + _ROUNDING):
            for call, part in parts.items():
                yield from _told_apart(part, call, outer)
            return
    yield items, location
