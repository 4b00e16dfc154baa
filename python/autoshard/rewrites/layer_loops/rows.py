"""Which values of a program have a row a layer: stacks of loops, and what is made of them by rows.

An op makes rows of rows if one factor of its rule is the major one of a dim of each. So rows go
from a loop's gradients through an optimizer to arguments and results, with no word about these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from autoshard._core import CutKind, FactorKind
from autoshard.importer.factors import Dims
from autoshard.importer.micro_batch_cuts import adds_up, factors_of, kind_of
from autoshard.ir import mlir
from autoshard.ir.constants import is_zeros, splat_of
from autoshard.rewrites.layer_loops.loops import LayerLoop
from autoshard.rewrites.recomputation.loops import maker_of

_WITH_BODIES = ("stablehlo.reduce", "stablehlo.sort")
"""Ops with regions that say nothing of sizes."""
_SIZED = (
    "stablehlo.convolution",
    "stablehlo.custom_call",
    "stablehlo.composite",
    "stablehlo.constant",
    "stablehlo.iota",
    "stablehlo.reduce_window",
    "stablehlo.scatter",
    "chlo.ragged_dot",
)
"""Ops whose attributes, or whose values, are others for a part of their rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The dim of a value that has a row for each trip of a group of loops."""

    dim: int
    group: int


@dataclass(frozen=True, slots=True)
class RowOp:
    """How an op works by rows."""

    group: int
    operands: tuple[int | None, ...]
    """The dim of each operand that has rows; None: all rows read all of it."""
    results: tuple[int | None, ...]
    """The dim of each result that has rows; None: ``combines`` makes one of those of parts."""
    combines: str | None = None
    """The op that makes one of the results of parts."""


@dataclass(eq=False)
class RowValues:
    """What has rows in a block. Ops are numbers, values themselves."""

    ops: Sequence[mlir.Operation]
    loops: Mapping[int, LayerLoop]
    """By number of the op."""
    frozen: Set[mlir.Value]
    """Arguments that are not cut."""
    ties: Mapping[mlir.Value, mlir.Value] = field(default_factory=dict["mlir.Value", "mlir.Value"])
    """Values that take each other's memory: cut alike."""
    rows: dict[mlir.Value, Rows] = field(default_factory=dict["mlir.Value", Rows])
    row_ops: dict[int, RowOp] = field(default_factory=dict[int, RowOp])

    def __post_init__(self) -> None:
        self._parents = list(range(len(self.loops)))
        self._trips = [loop.trips for loop in self.loops.values()]
        self._group_of = {number: group for group, number in enumerate(self.loops)}
        self._readers: dict[mlir.Value, list[int]] = {}
        self._makers: dict[mlir.Value, int] = {}
        for number, op in enumerate(self.ops):
            for value in op.operands:
                self._readers.setdefault(value, []).append(number)
            self._makers.update(dict.fromkeys(op.results, number))
        self._waiting: deque[mlir.Value] = deque()
        for number, loop in self.loops.items():
            for slot in loop.stacks:
                for value in (loop.op.operands[slot], loop.op.results[slot]):
                    self._label(value, 0, self._group_of[number])
        while self._waiting:
            self._follow(self._waiting.popleft())

    def group(self, number: int) -> int:
        """The group that one has become a part of."""
        while self._parents[number] != number:
            number = self._parents[number]
        return number

    def group_of_loop(self, number: int) -> int:
        """The group of the loop with this number."""
        return self.group(self._group_of[number])

    def loops_of(self, group: int) -> list[int]:
        """Numbers of the loops of a group."""
        return [number for number in self.loops if self.group_of_loop(number) == group]

    def rows_of(self, value: mlir.Value) -> Rows | None:
        """The rows of a value, by the group as it is now."""
        found = self.rows.get(value)
        return None if found is None else Rows(found.dim, self.group(found.group))

    def _label(self, value: mlir.Value, dim: int, group: int) -> None:
        """Say that a value has rows; where it has others already these stay.

        Equal elements have none: the same zeros may stand for rows of several groups.
        """
        maker = self._makers.get(value)
        if value in self.frozen or (maker is not None and is_filler(self.ops[maker])):
            return
        found = self.rows.get(value)
        if found is None:
            self.rows[value] = Rows(dim, group)
            self._waiting.append(value)
        elif found.dim == dim:
            self._join(found.group, group)

    def _join(self, first: int, second: int) -> None:
        first, second = self.group(first), self.group(second)
        if self._trips[first] == self._trips[second]:
            self._parents[max(first, second)] = min(first, second)

    def _follow(self, value: mlir.Value) -> None:
        rows = self.rows[value]
        if value in self.ties:
            self._label(self.ties[value], rows.dim, rows.group)
        numbers = list(self._readers.get(value, ()))
        if value in self._makers:
            numbers.append(self._makers[value])
        for number in numbers:
            if number not in self.loops and number not in self.row_ops:
                self._read(number, value, rows)

    def _read(self, number: int, value: mlir.Value, rows: Rows) -> None:
        """Let an op work by rows if it does so along those of ``value``."""
        op = self.ops[number]
        found = row_op(op, value, rows, self._trips[self.group(rows.group)])
        if found is None:
            return
        self.row_ops[number] = found
        pairs = (*zip(op.operands, found.operands, strict=True),)
        pairs += (*zip(op.results, found.results, strict=True),)
        for each, dim in pairs:
            if dim is not None:
                self._label(each, dim, rows.group)


def is_filler(op: mlir.Operation) -> bool:
    """Does an op make equal elements, so that each reader can have as many as it needs?"""
    if op.name == "stablehlo.broadcast_in_dim":
        return not mlir.RankedTensorType(op.operands[0].type).rank
    return splat_of(op) is not None


def row_op(op: mlir.Operation, value: mlir.Value, rows: Rows, trips: int) -> RowOp | None:
    """How an op works by the rows of a value that it reads or makes; None: it does not."""
    if kind_of(op) == CutKind.IDENTITY:
        if len(op.operands) != 1 or len(op.results) != 1:
            return None
        return RowOp(rows.group, (rows.dim,), (rows.dim,))
    if op.name in _SIZED or (len(op.regions) and op.name not in _WITH_BODIES):
        return None
    rule = factors_of(op)
    tensors: tuple[Dims, ...] = (*rule.operands, *rule.results)
    values = (*op.operands, *op.results)
    if len(tensors) != len(values):
        return None
    for factor in _factors_at(values, tensors, value, rows.dim):
        its = rule.factors[factor]
        if its.size % trips or its.halo:
            continue
        places = [_place(dims, factor) for dims in tensors]
        if any(place is not None and place[1] for place in places):  # not the major one
            continue
        dims = [None if place is None else place[0] for place in places]
        count = len(op.operands)
        operands, results = tuple(dims[:count]), tuple(dims[count:])
        if its.kind == FactorKind.PASS_THROUGH and None not in results:
            is_made = op.name == "stablehlo.broadcast_in_dim"
            if is_made or any(dim is not None for dim in operands):
                return RowOp(rows.group, operands, results)
        if its.kind == FactorKind.REDUCTION and (combines := _combines(op)) is not None:
            return RowOp(rows.group, operands, results, combines)
    return None


def _factors_at(
    values: Sequence[mlir.Value], tensors: Sequence[Dims], value: mlir.Value, dim: int
) -> Iterator[int]:
    """The major factor of a dim of a value, wherever an op has it."""
    for each, dims in zip(values, tensors, strict=True):
        if each == value and dim < len(dims) and dims[dim]:
            yield dims[dim][0]


def _place(dims: Dims, factor: int) -> tuple[int, int] | None:
    """The dim of a factor, and how many factors of that dim are more major."""
    for dim, factors in enumerate(dims):
        if factor in factors:
            return dim, factors.index(factor)
    return None


def _combines(op: mlir.Operation) -> str | None:
    """The op that makes what ``op`` reduces to of what parts of it reduce to."""
    if len(op.results) != 1:
        return None
    if op.name == "stablehlo.dot_general":
        return "stablehlo.add" if adds_up(op) else None
    if op.name != "stablehlo.reduce":
        return None
    if adds_up(op):
        start = maker_of(op.operands[1])
        return "stablehlo.add" if start is not None and is_zeros(start) else None
    block = op.regions[0].blocks[0]
    first, *rest = (inner.operation for inner in block.operations)
    is_plain = len(rest) == 1 and list(rest[0].operands) == [first.results[0]]
    takes_both = {*first.operands} == {*block.arguments}
    return first.name if is_plain and takes_both and first.name in _IDEMPOTENT else None


_IDEMPOTENT = ("stablehlo.maximum", "stablehlo.minimum", "stablehlo.and", "stablehlo.or")
