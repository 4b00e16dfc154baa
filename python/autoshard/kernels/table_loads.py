"""Tables that are cut along with a dim of the grid: each place reads its own entries.

Splash attention keeps for each block of queries which blocks of keys it needs, in a table with a
dim of query blocks. A device that has some of the query blocks reads the same from its part of the
table as it would from the whole, if every entry that is read along that dim is the one of the
place, and if the table is used in no other way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from autoshard.ir import mlir
from autoshard.kernels.mosaic import Kernel
from autoshard.kernels.scalars import Scalars, divisor_of, is_load, roots

Tables = Sequence[tuple[int, int] | None]
"""The dim along which each table is cut, and how many places along the dim of the grid share an
entry; None where a table stays whole."""


def tables_along(kernel: Kernel, shapes: Sequence[tuple[int, ...]], dim: int) -> Tables:
    """How the tables of a kernel follow a dim of its grid.

    Args:
        kernel: Any.
        shapes: Of its tables.
        dim: Of the grid.
    """
    readers = [(kernel.place, kernel.tables)]
    readers += [(window.grid, window.tables) for window in kernel.windows if window is not None]
    return [
        _along([(place[dim], tables[number]) for place, tables in readers], shape, kernel.grid[dim])
        for number, shape in enumerate(shapes)
    ]


def parts_of_tables(values: Sequence[mlir.Value], tables: Tables) -> Collection[mlir.Value]:
    """Those of the tables, as a function is given them, that are cut."""
    return {value for value, table in zip(values, tables, strict=True) if table is not None}


def _along(
    readers: Sequence[tuple[mlir.Value, mlir.Value]], shape: tuple[int, ...], size: int
) -> tuple[int, int] | None:
    """How one table follows the grid, by all functions that are given a place and the table."""
    found: set[tuple[int, int] | None] = set()
    for place, table in readers:
        for use in table.uses:
            op = use.owner.operation
            is_read = is_load(op) and op.operands[0] == table
            found.add(_followed(op, place, shape, size) if is_read else None)
    return found.pop() if len(found) == 1 else None


def _followed(
    load: mlir.Operation, place: mlir.Value, shape: tuple[int, ...], size: int
) -> tuple[int, int] | None:
    """The dim of the table along which a load follows the place; None where it does otherwise."""
    found: tuple[int, int] | None = None
    for dim, index in enumerate(list(load.operands)[1:]):
        needed = roots(index)
        if place not in needed:
            continue
        along = Scalars({place: np.arange(size)}).value(index) if needed == {place} else None
        divisor = None if along is None else divisor_of(along, size)
        if divisor is None or shape[dim] * divisor != size or found is not None:
            return None
        found = dim, divisor
    return found
