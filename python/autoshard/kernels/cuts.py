"""Which dims of a kernel's grid may be cut: each device then runs a part of the places along it.

A device that has the places ``[s, s + n)`` along dim ``d`` runs the same kernel on a grid of ``n``
places there, on its blocks of operands and results. That computes the same if, for some ``unit``
that divides every ``s`` and ``n``:

1.  Each block's index is, along each dim of an array, either free of ``d`` or ``d`` divided by a
    constant that divides ``unit`` (several query heads read one head of keys); it depends on no
    other dim of the grid then, and on no table. Every result that is used has one dim of the
    second kind, so that no two devices write the same block. What is read from a table that is
    cut with ``d`` is free of ``d``: the device reads from its part of the table what it would read
    from the whole (``table_loads.py``).
2.  Whatever the body computes from its place along ``d`` repeats every ``unit`` places, so that it
    is the same at ``s + i`` as at ``i``.
3.  No place needs what places of other devices left in scratch memory or in a block of a result:
    the dim is declared parallel, or at the first place of every ``unit`` all such memory is written
    before it is read.

1 and 2 are found by computing the integers in question for every place along ``d``, 3 by walking
through the body with the conditions that are known at those first places.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import lcm, prod

import numpy as np

from autoshard.ir import mlir
from autoshard.kernels.mosaic import Kernel, Window, op_name
from autoshard.kernels.scalars import (
    Integers,
    Scalars,
    divisor_of,
    is_arithmetic,
    is_load,
    roots,
)
from autoshard.kernels.table_loads import Tables, parts_of_tables, tables_along

_LOADS = ("vector.load", "memref.load", "tpu.load", "tpu.vector_load")
_STORES = ("tpu.vector_store", "vector.store", "tpu.store", "memref.store")


@dataclass(frozen=True, slots=True)
class Cut:
    """A dim of the grid that may be cut, in units."""

    grid_dim: int
    unit: int
    """Places along it that stay together."""
    dims: tuple[int | None, ...]
    """Dim of each operand and result that is cut with it, in as many parts; the first operands are
    the tables."""


def cuts_of(
    kernel: Kernel, shapes: tuple[tuple[int, ...], ...], used: tuple[bool, ...]
) -> tuple[Cut, ...]:
    """The dims of the grid that may be cut; arguments as of ``cuts_or_reasons``."""
    return tuple(it for it in cuts_or_reasons(kernel, shapes, used) if isinstance(it, Cut))


@lru_cache(maxsize=64)
def cuts_or_reasons(
    kernel: Kernel, shapes: tuple[tuple[int, ...], ...], used: tuple[bool, ...]
) -> tuple[Cut | str, ...]:
    """For each dim of the grid how it may be cut, or in a few words why it may not.

    Args:
        kernel: A kernel that talks to no other device.
        shapes: Of tables, and of the array behind each window.
        used: Of each result, whether anything reads it; kernels have results that are no more than
            memory.
    """
    dims = range(len(kernel.grid))
    if _depends_on_the_run(kernel.body):
        return ("the body asks how large the grid is, or draws random numbers",) * len(dims)
    return tuple(_cut(kernel, shapes, used, dim) for dim in dims)


def _cut(
    kernel: Kernel, shapes: tuple[tuple[int, ...], ...], used: tuple[bool, ...], dim: int
) -> Cut | str:
    size = kernel.grid[dim]
    if size == 1:
        return "it has one place"
    num_operands = kernel.num_tables + len(kernel.windows) - kernel.num_results
    tables = tables_along(kernel, shapes[: kernel.num_tables], dim)
    follows: list[tuple[int | None, int]] = [table or (None, 1) for table in tables]
    for window, shape in zip(kernel.windows, shapes[kernel.num_tables :], strict=True):
        placed = _placed(window, shape, dim, size, tables)
        if isinstance(placed, str):
            number = len(follows)
            is_result = number >= num_operands
            side = f"result {number - num_operands}" if is_result else f"operand {number}"
            return f"{placed} {side}"
        follows.append(placed)
    dims = tuple(array_dim for array_dim, _ in follows)
    results = dims[len(dims) - kernel.num_results :]
    period = _period_in_body(kernel, dim, tables)
    if period is None:
        return "the body computes with its place along it"
    if not any(used):
        return "nothing reads its results"
    for number, (cut, is_used) in enumerate(zip(results, used, strict=True)):
        if is_used and cut is None:
            return f"all its places write the same blocks of result {number}"
    unit = lcm(period, *(divisor for _, divisor in follows))
    if size % unit or size == unit:
        return f"{unit} of its places belong together"
    if not kernel.is_parallel[dim] and _leaves_something(kernel, dim, unit):
        return "a place reads what the one before it left in memory"
    return Cut(dim, unit, dims)


def _placed(
    window: Window | None, shape: tuple[int, ...], dim: int, size: int, tables: Tables
) -> tuple[int | None, int] | str:
    """Which dim of its array a window follows along a dim of the grid, and at how many places it
    stays the same; where it follows in another way, what it does.
    """
    if window is None:  # the whole array, which the body reads as it likes
        return None, 1
    found: tuple[int | None, int] = (None, 1)
    place = window.grid[dim]
    parts = parts_of_tables(window.tables, tables)
    for array_dim, value in enumerate(window.place):
        needed = roots(value, parts)
        if place not in needed:
            continue
        along = Scalars({place: np.arange(size)}).value(value) if needed == {place} else None
        divisor = None if along is None else divisor_of(along, size)
        if divisor is None:
            return "it is not alone, or not in steps of one, in what says the block of"
        filled = window.block[array_dim] * (size // divisor)
        if filled != shape[array_dim]:
            return f"blocks fill {filled:,} of {shape[array_dim]:,} along dim {array_dim} of"
        if found[0] is not None:
            return "blocks follow it along two dims of"
        found = array_dim, divisor
    return found


def _period_in_body(kernel: Kernel, dim: int, tables: Tables) -> int | None:
    """After how many places along a dim the body computes the same again; None: after none."""
    size, start = kernel.grid[dim], kernel.place[dim]
    scalars = Scalars({start: np.arange(size)})
    parts = parts_of_tables(kernel.tables, tables)
    period = 1
    waiting, seen = [start], {start}
    while waiting:
        for use in waiting.pop().uses:
            op = use.owner.operation
            if is_load(op) and op.operands[0] in parts:
                continue
            if not is_arithmetic(op) or roots(op.results[0]) != {start}:
                return None
            made = op.results[0]
            values = scalars.value(made)
            if values is None:
                return None
            if made in seen:
                continue
            seen.add(made)
            repeats = _repeats(np.broadcast_to(values, size), size)
            if repeats < size:
                period = lcm(period, repeats)
            else:
                waiting.append(made)
    return period


def _depends_on_the_run(block: mlir.Block) -> bool:
    """Whether the body asks how large the grid is, or draws random numbers from a state."""
    return any(
        any(part in op_name(op.operation) for part in ("iteration_bound", "prng", "device_id"))
        or any(map(_depends_on_the_run, (b for region in op.regions for b in region.blocks)))
        for op in block.operations
    )


def _repeats(values: Integers, size: int) -> int:
    """The smallest part of ``size`` after which values repeat."""
    return next(
        each
        for each in range(1, size + 1)
        if size % each == 0 and np.array_equal(values[each:], values[:-each])
    )


# What one place leaves to the next -----------------------------------------------------------


def _leaves_something(kernel: Kernel, dim: int, unit: int) -> bool:
    """Whether the first place of a unit may read what a place before it left in memory."""
    size, rank = kernel.grid[dim], len(kernel.grid)
    known: dict[mlir.Value, Integers] = {}
    for other, value in enumerate(kernel.place):
        if other < dim:  # any place
            shape = [1] * rank
            shape[other] = kernel.grid[other]
            known[value] = np.arange(kernel.grid[other]).reshape(shape)
        elif other > dim:  # the first one
            known[value] = np.zeros([1] * rank, np.int64)
    shape = [1] * rank
    shape[dim] = size // unit
    known[kernel.place[dim]] = (np.arange(size // unit) * unit).reshape(shape)
    memory = {*kernel.scratch, *kernel.result_blocks}
    walk = _Walk(Scalars(known), memory)
    return not walk.is_written_first(kernel.body)


class _Walk:
    """Follows the body, and finds out whether memory is written before it is read."""

    def __init__(self, scalars: Scalars, memory: set[mlir.Value]) -> None:
        self.scalars = scalars
        self.memory = memory
        self.written: set[mlir.Value] = set()

    def is_written_first(self, block: mlir.Block) -> bool:
        return all(self._passes(op.operation) for op in block.operations)

    def _passes(self, op: mlir.Operation) -> bool:
        name = op_name(op)
        if name == "scf.if":
            return self._passes_if(op)
        if len(op.regions):
            return not self._unwritten_in(op)
        touched = [value for value in op.operands if value in self.memory]
        if name in _STORES:
            value, target = op.operands[0], op.operands[1]
            if target in self.memory:
                if self._fills(op, value, target):
                    self.written.add(target)
                return value not in self.memory
        if name in _LOADS and _is_dead(op):
            return True
        return all(value in self.written for value in touched)

    def _passes_if(self, op: mlir.Operation) -> bool:
        condition = self.scalars.value(op.operands[0])
        blocks = [region.blocks[0] for region in op.regions if len(region.blocks)]
        if condition is not None and bool(np.all(condition)):
            return self.is_written_first(blocks[0])
        if condition is not None and not bool(np.any(condition)):
            return len(blocks) < 2 or self.is_written_first(blocks[1])
        before = set(self.written)
        after: list[set[mlir.Value]] = []
        for block in blocks:
            self.written = set(before)
            if not self.is_written_first(block):
                return False
            after.append(self.written)
        both = set[mlir.Value].intersection(*after) if len(after) == 2 else before
        self.written = both
        return True

    def _unwritten_in(self, op: mlir.Operation) -> bool:
        """Whether an op, or one inside of it, uses memory that is not written yet."""
        if any(value in self.memory - self.written for value in op.operands):
            return True
        return any(
            self._unwritten_in(inner.operation)
            for region in op.regions
            for block in region.blocks
            for inner in block.operations
        )

    def _fills(self, op: mlir.Operation, value: mlir.Value, target: mlir.Value) -> bool:
        """Whether a store writes all of ``target``."""
        type_, memory = value.type, mlir.MemRefType(target.type)
        shape = list(type_.shape) if isinstance(type_, mlir.VectorType) else []
        if prod(shape) != prod(memory.shape):
            return False
        names = [op.attributes[number].name for number in range(len(op.attributes))]
        if "add" in names and mlir.BoolAttr(op.attributes["add"]).value:
            return False
        if "operandSegmentSizes" in names:
            segments = list(mlir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
            if len(segments) > 3 and any(segments[3:]):  # a mask
                return False
        if "strides" in names and any(
            stride != 1 for stride in mlir.DenseI32ArrayAttr(op.attributes["strides"])
        ):
            return False
        places = [self.scalars.value(operand) for operand in list(op.operands)[2:]]
        return all(place is not None and not np.any(place) for place in places)


def _is_dead(op: mlir.Operation) -> bool:
    """Whether nothing is made of what an op reads."""
    for result in op.results:
        for use in result.uses:
            user = use.owner.operation
            if op_name(user) != "vector.shape_cast" or not _is_dead(user):
                return False
    return True
