"""Integers that a kernel computes from its place in the grid, for many places at once.

A value is an array over the places that are looked at, of any shape that broadcasts to theirs, or
None where it is not known: what is read from tables that are not given, or made by other ops than
those below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from autoshard.ir import mlir
from autoshard.kernels.mosaic import op_name

Integers = NDArray[np.int64]

_LIMIT = 2**31
"""Larger integers would wrap in the kernel."""


def truncated(a: Integers, b: Integers) -> Integers:
    """Quotients, rounded towards zero."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


_BINARY: dict[str, Callable[[Integers, Integers], Integers]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": truncated,
    "arith.remsi": lambda a, b: a - truncated(a, b) * b,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
}
_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi")
_SAME = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")
_COMPARISONS: tuple[Callable[[Integers, Integers], NDArray[np.bool_]], ...] = (
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
)
"""Comparisons by the number of their predicate; the unsigned ones behind them are not known."""


def is_arithmetic(op: mlir.Operation) -> bool:
    """Whether an op makes one integer of others, in a way that is known here."""
    name = op_name(op)
    return name in _BINARY or name in _SAME or name in ("arith.cmpi", "arith.select")


class Scalars:
    """Values of scalars where some block arguments are known.

    Args:
        known: Of arguments: integers at the places that are looked at, or a table's contents.
    """

    def __init__(self, known: Mapping[mlir.Value, Integers]) -> None:
        """See the class."""
        self._values: dict[mlir.Value, Integers | None] = dict(known)

    def value(self, value: mlir.Value) -> Integers | None:
        """Its integers; those of a predicate are 0 and 1."""
        if value in self._values:
            return self._values[value]
        op = maker(value)
        if op is None:
            return None
        found = self._computed(op)
        if found is not None and bool(np.any(np.abs(found) >= _LIMIT)):
            found = None
        self._values[value] = found
        return found

    def _computed(self, op: mlir.Operation) -> Integers | None:
        name = op_name(op)
        if name == "arith.constant":
            return _constant(op)
        if is_load(op):
            return self._loaded(op)
        if name == "arith.extsi" and str(op.operands[0].type) == "i1":
            return None
        if not is_arithmetic(op):
            return None
        values = [self.value(operand) for operand in op.operands]
        given = [value for value in values if value is not None]
        if len(given) < len(values):
            return None
        if name in _SAME:
            return given[0]
        if name == "arith.select":
            return np.where(given[0] != 0, given[1], given[2])
        if name == "arith.cmpi":
            predicate = mlir.IntegerAttr(op.attributes["predicate"]).value
            if predicate >= len(_COMPARISONS):
                return None
            return _COMPARISONS[predicate](given[0], given[1]).astype(np.int64)
        if name in _DIVISIONS and bool(np.any(given[1] == 0)):
            return None
        return _BINARY[name](given[0], given[1])

    def _loaded(self, op: mlir.Operation) -> Integers | None:
        table = self._values.get(op.operands[0])
        places = [self.value(operand) for operand in list(op.operands)[1:]]
        given = [place for place in places if place is not None]
        if table is None or len(given) < len(places) or not given:
            return None
        if any(
            bool(np.any(place < 0) or np.any(place >= size))
            for place, size in zip(given, table.shape, strict=True)
        ):
            return None
        return table[tuple(np.broadcast_arrays(*given))]


def _constant(op: mlir.Operation) -> Integers | None:
    value = op.attributes["value"]
    if isinstance(value, mlir.BoolAttr | mlir.IntegerAttr):
        return np.asarray(int(value.value), np.int64)
    return None


def divisor_of(along: Integers, size: int) -> int | None:
    """The number by which places are divided to make ``along``, of shape ``(size,)`` or ``(1,)``.

    None if that is not what is computed.
    """
    counts = int(np.count_nonzero(np.broadcast_to(along, size) == 0))
    if counts == 0 or size % counts:
        return None
    return counts if np.array_equal(along, np.arange(size) // counts) else None


def is_load(op: mlir.Operation) -> bool:
    """Whether an op reads one entry of a table, or of other memory of scalars."""
    return op_name(op) == "memref.load"


def roots(value: mlir.Value, closed: Collection[mlir.Value] = ()) -> set[mlir.Value]:
    """The block arguments that a value is computed from.

    Args:
        value: A scalar.
        closed: Tables; where an entry is read from does not count.
    """
    found: set[mlir.Value] = set()
    seen: set[mlir.Value] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        op = maker(each)
        if op is None:
            found.add(each)
        elif is_load(op) and op.operands[0] in closed:
            found.add(op.operands[0])
        else:
            waiting.extend(_read_by(op))
    return found


def maker(value: mlir.Value) -> mlir.Operation | None:
    """The op that makes a value; None of block arguments."""
    owner = value.owner
    return None if isinstance(owner, mlir.Block) else owner.operation


def _read_by(op: mlir.Operation) -> list[mlir.Value]:
    """Operands of an op and of all ops inside of it."""
    read = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                read.extend(_read_by(inner.operation))
    return read
