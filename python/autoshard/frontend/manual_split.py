"""``autoshard.manual_split``: a table of sub-tables, each on the devices that look it up.

    look_up = autoshard.manual_split(lambda table, rows: table[rows], (10, 20, 30, 4))
    packed = look_up.pack(table)            # once: (64, 8) -> (120, 8), four blocks of 30 rows
    vectors = look_up(packed, indices)      # as table[indices]

Column c of the indices reads one sub-table only. With a row-split in even parts every device has
rows of several sub-tables, and what is looked up must be summed over all devices. Here device d
holds sub-table d and is given its columns: nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.errors import StrategyError
from autoshard.frontend.argnums import whole_number
from autoshard.frontend.shard import Strategy, shard
from autoshard.ir.lowering import user_line
from autoshard.sharding.sharding import Sharding

_Said = tuple[int, ...] | Sharding
"""Cuts of each dim, or a layout."""


def manual_split(
    table_lookup: Callable[[Any, Any], Any],
    split: Sequence[int],
    in_strategy: tuple[Strategy, Strategy] | None = None,
) -> ManualSplit:
    """``table_lookup`` on a table whose rows are cut unevenly, each index column by its sub-table.

    Args:
        table_lookup: Takes a table and an array of row numbers, and gives the rows:
            ``lambda table, rows: table[rows]``, ``functools.partial(jnp.take, axis=0)``.
        split: Rows of each sub-table, in their order in the table.
        in_strategy: Of the table and of the indices, two tuples of cuts or two layouts of one
            device matrix. Rows of the table and last dim of the indices have ``len(split)`` cuts
            each. None: these, and no others.

    Raises:
        StrategyError: A split or a strategy that cannot be; when it is called, arguments that do
            not fit.

    Source:
        The attribute ``manual_split`` of MindSpore's operator Gather.
    """
    return ManualSplit(table_lookup, split, in_strategy)


class ManualSplit:
    """What ``autoshard.manual_split`` returns: call it like the lookup."""

    split: tuple[int, ...]
    """Rows of each sub-table."""

    def __init__(
        self,
        table_lookup: Callable[[Any, Any], Any],
        split: Sequence[int],
        in_strategy: tuple[Strategy, Strategy] | None = None,
    ) -> None:
        """See ``autoshard.manual_split``."""
        self._lookup = table_lookup
        self._name = f"manual_split({getattr(table_lookup, '__name__', 'table_lookup')})"
        self.__name__ = self._name
        counts = _counts(tuple(split))
        if not counts:
            raise self._error(
                f"split is {tuple(split)}; it has the rows of each sub-table, one number of 1 or"
                " more for each. Write (10, 20, 30, 4) or the like."
            )
        self.split = counts
        self._strategy = self._read(in_strategy)

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return sum(self.split)

    @property
    def packed_rows(self) -> int:
        """Rows of a packed table: every sub-table is as long as the longest."""
        return len(self.split) * max(self.split)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Row of the table with which each sub-table begins."""
        return tuple(accumulate(self.split[:-1], initial=0))

    def pack(self, table: Any) -> Any:
        """The table as devices hold it: after each sub-table zeros, up to the longest.

        A table of numpy stays one. Optimizers see the zeros: their gradients are zero, so that
        rules by entry (SGD, Adam, with weight decay too) leave them zero.
        """
        self._check_rows(table, packed=False)
        xp: Any = np if isinstance(table, np.ndarray) else jnp
        longest = max(self.split)
        blocks: list[Any] = []
        for first, rows in zip(self.offsets, self.split, strict=True):
            padding = [(0, longest - rows), *[(0, 0)] * (table.ndim - 1)]
            blocks.append(xp.pad(table[first : first + rows], padding))
        return xp.concatenate(blocks)

    def unpack(self, packed: Any) -> Any:
        """The table that was packed."""
        self._check_rows(packed, packed=True)
        xp: Any = np if isinstance(packed, np.ndarray) else jnp
        longest = max(self.split)
        return xp.concatenate(
            [packed[n * longest : n * longest + rows] for n, rows in enumerate(self.split)]
        )

    def __call__(self, table: Any, indices: Any) -> Any:
        """The rows of ``table`` that ``indices`` name: ``table_lookup(table, indices)``.

        Args:
            table: Packed. The table itself will do, but is packed in every call, which moves it.
            indices: Rows of the table. Their last dim falls into as many equal parts as there are
                sub-tables, and each part names rows of its sub-table. For a number that does not,
                the result is NaN, or the smallest number of an integer type.

        Raises:
            StrategyError: Arguments that do not fit the split.
        """
        if getattr(table, "shape", (0,))[0] == self.rows != self.packed_rows:
            table = self.pack(table)
        self._check_rows(table, packed=True)
        self._check_indices(indices)
        count, longest = len(self.split), max(self.split)
        blocks = jnp.reshape(table, (count, longest, *table.shape[1:]))
        indices = _wide(jnp.asarray(indices))
        columns = jnp.reshape(indices, (*indices.shape[:-1], count, -1))
        columns = jnp.moveaxis(columns, -2, 0)
        shape = (count, *[1] * (columns.ndim - 1))
        offsets = jnp.reshape(jnp.asarray(self.offsets, columns.dtype), shape)
        lengths = jnp.reshape(jnp.asarray(self.split, columns.dtype), shape)
        local = columns - offsets
        is_inside = (local >= 0) & (local < lengths)
        strategies = self._inner_strategies(table.ndim, indices.ndim)
        look_up: Any = jax.vmap(self._look_up_one)
        look_up.__name__ = self._name
        found = shard(look_up, in_strategy=strategies)(blocks, jnp.where(is_inside, local, 0))
        is_inside = jnp.reshape(is_inside, (*is_inside.shape, *[1] * (table.ndim - 1)))
        found = jnp.where(is_inside, found, _no_row(found.dtype))
        found = jnp.moveaxis(found, 0, indices.ndim - 1)
        return jnp.reshape(found, (*indices.shape, *table.shape[1:]))

    def _look_up_one(self, table: Any, indices: Any) -> Any:
        found = self._lookup(table, indices)
        expected = (*indices.shape, *table.shape[1:])
        if tuple(found.shape) != expected:
            raise self._error(
                f"the lookup of indices {indices.shape} in a table {table.shape} has shape"
                f" {tuple(found.shape)}, not {expected}: only dim 0 of a table can be looked up."
                " Use table[rows] or jnp.take(table, rows, axis=0)."
            )
        return found

    # --- strategies ---

    def _read(self, in_strategy: Any) -> tuple[_Said, _Said] | None:
        if in_strategy is None:
            return None
        is_pair = isinstance(in_strategy, tuple | list)
        read = list(cast("Sequence[Any]", in_strategy)) if is_pair else [in_strategy]
        read = [_counts(s) if isinstance(s, tuple) else s for s in read]
        if len(read) != 2 or not all(isinstance(s, tuple | Sharding) for s in read):
            raise self._error(
                f"in_strategy is {in_strategy}; it has a strategy of the table and one of the"
                " indices. Write ((4, 2), (1, 4)), or two layouts of one Layout."
            )
        table, indices = cast("list[_Said]", read)
        wanted = len(self.split)
        for what, cuts in (
            ("dim 0 of the table", _cuts_of(table, 0)),
            ("the last dim of the indices", _cuts_of(indices, -1)),
        ):
            if cuts != wanted:
                raise self._error(
                    f"split {self.split} has {wanted} parts, but in_strategy cuts {what} in"
                    f" {cuts}: each part needs devices of its own. Cut it in {wanted}, or give"
                    " other parts."
                )
        return table, indices

    def _inner_strategies(self, table_rank: int, indices_rank: int) -> tuple[_Said, _Said]:
        """Strategies of the blocks, ``(part, row, ..)``, and columns, ``(part, .., column)``."""
        count = len(self.split)
        table: _Said
        indices: _Said
        if self._strategy is None:
            table = (count, *[1] * (table_rank - 1))
            indices = (*[1] * (indices_rank - 1), count)
        else:
            table, indices = self._strategy
        for what, said, rank in (("table", table, table_rank), ("indices", indices, indices_rank)):
            if _rank_of(said) != rank:
                raise self._error(
                    f"the strategy of the {what} is {said}, for rank {_rank_of(said)}, but the"
                    f" {what} has rank {rank}. Give one entry for each dim."
                )
        return _with_part(table, 0, 1), _with_part(indices, -1, indices_rank)

    # --- checks ---

    def _check_rows(self, table: Any, *, packed: bool) -> None:
        wanted = self.packed_rows if packed else self.rows
        shape = tuple(getattr(table, "shape", ()))
        if not shape or shape[0] != wanted:
            change = "pack" if packed else "unpack"
            raise self._error(
                f"the table has shape {shape}, but split {self.split} is for {self.rows} rows,"
                f" {self.packed_rows} when packed. Give other parts, or {change} the table first."
            )

    def _check_indices(self, indices: Any) -> None:
        shape = tuple(jnp.shape(indices))
        count = len(self.split)
        if not shape or shape[-1] % count:
            raise self._error(
                f"the indices have shape {shape}, but their last dim must fall into {count} equal"
                f" parts, one for each part of {self.split}. Give every sub-table as many columns."
            )
        columns = shape[-1] // count
        if min(self.split) < columns:
            raise self._error(
                f"each sub-table of {self.split} is read by {columns} columns, and must have as"
                " many rows at least. Join sub-tables, or give more rows."
            )

    def _error(self, message: str) -> StrategyError:
        return StrategyError(f"{self._name}: {message}", user_line())


def _counts(said: Any) -> tuple[int, ...] | None:
    """Numbers of 1 or more as ints, also those of numpy; None for anything else."""
    numbers = [whole_number(value) for value in said]
    counts = tuple(number for number in numbers if number is not None and number >= 1)
    return counts if len(counts) == len(numbers) else None


def _rank_of(said: _Said) -> int:
    return said.rank if isinstance(said, Sharding) else len(said)


def _cuts_of(said: _Said, dim: int) -> int | None:
    """Into how many parts a dim is cut; None where there is no such dim."""
    if not _rank_of(said):
        return None
    return said.num_shards(dim % said.rank) if isinstance(said, Sharding) else said[dim]


def _with_part(said: _Said, dim: int, whole: int) -> _Said:
    """The cuts of ``dim`` go to a new dim 0; dim ``whole`` of what comes out is not cut."""
    if isinstance(said, Sharding):
        dims = list(said.dims)
        axes = dims.pop(dim)
        dims.insert(whole - 1, ())
        return Sharding(said.mesh, (axes, *dims))
    counts = list(said)
    part = counts.pop(dim)
    counts.insert(whole - 1, 1)
    return (part, *counts)


def _wide(indices: Any) -> Any:
    """Integers that hold differences of rows; narrow ones need not hold the rows of a table."""
    is_narrow = jnp.issubdtype(indices.dtype, jnp.integer) and jnp.iinfo(indices.dtype).bits < 32
    return indices.astype(jnp.int32) if is_narrow else indices


def _no_row(dtype: Any) -> Any:
    """What a lookup gives for a row that is not there, as ``jnp.take`` does."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(jnp.nan, dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        return jnp.asarray(True)
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.min if info.min < 0 else info.max, dtype)
