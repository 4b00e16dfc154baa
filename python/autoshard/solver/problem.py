"""The network the solver labels: nodes with options, edges with tables, live intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoshard import _core
from autoshard.errors import SolverError


def _no_costs() -> NDArray[np.float64]:
    return np.zeros(0)


def _no_indices() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_numbers() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Problem:
    """A cost network. Choose one option a node:

        cost = sum of option costs + sum over edges of weight * table[option of from, option of to]

    is to be small, and at every point the memory of the live nodes must fit. ``inf`` anywhere
    means "not allowed".

    Example: two nodes, options ``[0, 3]`` and ``[1, 0]``, one edge with table
    ``[[5, 9], [0, 0]]``: the best choice is ``[1, 1]`` and costs 3.

    Raises:
        SolverError: An array has the wrong length, or refers to something that does not exist.
    """

    option_offset: NDArray[np.int32]
    """Options of node i: ``option_offset[i]`` to ``option_offset[i + 1]``; shape (nodes + 1,)."""

    option_cost: NDArray[np.float64]
    edge_from: NDArray[np.int32] = field(default_factory=_no_indices)
    edge_to: NDArray[np.int32] = field(default_factory=_no_indices)

    edge_table: NDArray[np.int32] = field(default_factory=_no_indices)
    """Index into ``tables``; many edges may share one."""

    tables: tuple[NDArray[np.float64], ...] = ()
    """Shape (options of from, options of to) each."""

    edge_weight: NDArray[np.float64] = field(default_factory=_no_costs)
    """Factor on the table of every edge, finite and >= 0; empty: all 1."""

    option_memory: NDArray[np.int64] = field(default_factory=_no_numbers)
    """Bytes of every option; empty if nothing occupies memory."""

    live_first: NDArray[np.int64] = field(default_factory=_no_numbers)
    live_last: NDArray[np.int64] = field(default_factory=_no_numbers)
    """Node i occupies memory at the points ``live_first[i] <= t < live_last[i]``."""

    memory_limit: int | None = None
    """Bytes available at every program point, or None: memory does not matter."""

    def __post_init__(self) -> None:
        for name, dtype in _DTYPES.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype))
        tables = tuple(np.ascontiguousarray(table, np.float64) for table in self.tables)
        for index, table in enumerate(tables):
            if table.ndim != 2:
                raise SolverError(f"tables[{index}]: has {table.ndim} dimensions, needs 2")
        object.__setattr__(self, "tables", tables)
        _ = self.core

    @staticmethod
    def from_lists(
        costs: Sequence[ArrayLike],
        edges: Sequence[tuple[int, int, ArrayLike]] = (),
        *,
        memory: Sequence[ArrayLike] | None = None,
        live: Sequence[tuple[int, int]] | None = None,
        memory_limit: int | None = None,
    ) -> Problem:
        """A problem from one list of costs (and bytes) a node, and one table an edge."""
        offsets = np.cumsum([0, *(len(np.atleast_1d(c)) for c in costs)])
        spans = np.array(live if live is not None else [], np.int64).reshape(-1, 2)
        return Problem(
            option_offset=offsets.astype(np.int32),
            option_cost=np.concatenate([np.atleast_1d(c) for c in costs]).astype(np.float64)
            if len(costs)
            else np.zeros(0),
            edge_from=np.array([e[0] for e in edges], np.int32),
            edge_to=np.array([e[1] for e in edges], np.int32),
            edge_table=np.arange(len(edges), dtype=np.int32),
            tables=tuple(np.asarray(e[2], np.float64) for e in edges),
            option_memory=np.concatenate([np.atleast_1d(m) for m in memory]).astype(np.int64)
            if memory
            else np.zeros(0, np.int64),
            live_first=spans[:, 0],
            live_last=spans[:, 1],
            memory_limit=memory_limit,
        )

    @cached_property
    def core(self) -> _core.SolverProblem:
        """The problem as the C++ core holds it."""
        shapes = np.array([table.shape for table in self.tables], np.int32).reshape(-1, 2)
        entries = [table.ravel() for table in self.tables]
        try:
            return _core.make_solver_problem(
                self.option_offset,
                self.option_cost,
                self.option_memory,
                self.edge_from,
                self.edge_to,
                self.edge_table,
                self.edge_weight,
                np.ascontiguousarray(shapes[:, 0]),
                np.ascontiguousarray(shapes[:, 1]),
                np.concatenate(entries) if entries else np.zeros(0),
                self.live_first,
                self.live_last,
                self.memory_limit,
            )
        except ValueError as error:
            raise SolverError(str(error)) from None

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.option_offset) - 1

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.edge_from)

    def options(self, node: int) -> slice:
        """Where the options of ``node`` lie in ``option_cost`` and ``option_memory``."""
        return slice(int(self.option_offset[node]), int(self.option_offset[node + 1]))

    def edge_costs(self, edge: int) -> NDArray[np.float64]:
        """The table of one edge with its weight; 0 times inf stays inf."""
        table = self.tables[int(self.edge_table[edge])]
        if not len(self.edge_weight):
            return table
        finite = np.isfinite(table)
        return np.where(finite, np.where(finite, table, 0) * self.edge_weight[edge], np.inf)

    def to_iopddl(self, name: str = "autoshard") -> dict[str, Any]:
        """The problem in the format of the IOPDDL contest, as an object for ``json.dump``.

        Costs must be integers there: other costs are multiplied by the largest power of two at
        which their total stays below 2^53, and rounded (``cost_scale`` in the result says which).
        """
        from autoshard.solver.iopddl import iopddl_of

        return iopddl_of(self, name)


_DTYPES: dict[str, type] = {
    "option_offset": np.int32,
    "option_cost": np.float64,
    "edge_from": np.int32,
    "edge_to": np.int32,
    "edge_table": np.int32,
    "edge_weight": np.float64,
    "option_memory": np.int64,
    "live_first": np.int64,
    "live_last": np.int64,
}
