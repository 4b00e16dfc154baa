"""Problems in the JSON format of the IOPDDL contest (google/iopddl).

One object ``problem`` with ``nodes.intervals``, ``nodes.costs``, ``nodes.usages``, ``edges.nodes``,
``edges.costs`` (row-major tables) and ``usage_limit``. Costs of 2^53 and more mean "not allowed".
"""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import SolverError
from autoshard.solver.problem import Problem
from autoshard.writing import write_file

NOT_ALLOWED = 10**18
"""What we write for "not allowed"."""

_MOST_BYTES = 2**63

SMALLEST_NOT_ALLOWED = 2.0**53
"""From here on a cost is read as "not allowed": doubles do not hold every integer above it."""


def read_iopddl(path: str | Path) -> Problem:
    """Read a ``.json`` or ``.json.gz`` file.

    Raises:
        SolverError: The file cannot be read or is malformed; says which field of which node.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        parsed = json.loads(data)
    except OSError as error:
        raise SolverError(f"cannot be read: {error.strerror or error}", str(path)) from None
    except (ValueError, EOFError, RecursionError) as error:
        raise SolverError(f"is not JSON: {error}", str(path)) from None
    del data
    return problem_of(parsed, str(path))


def problem_of(parsed: Any, place: str | None = None) -> Problem:
    """The problem in a parsed file; ``place`` is named in errors."""
    problem: dict[str, Any] = _field(parsed, "problem", dict, place, "")
    nodes: dict[str, Any] = _field(problem, "nodes", dict, place, "problem.")
    edges: Any = problem.get("edges", {"nodes": [], "costs": []})
    if not isinstance(edges, dict):
        raise SolverError("problem.edges: must be an object", place)
    rows: list[Any] = _field(nodes, "costs", list, place, "problem.nodes.")
    limit = problem.get("usage_limit")
    is_number = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is not None and not (is_number and 0 <= limit < _MOST_BYTES):
        raise SolverError(
            f"problem.usage_limit: must be an integer >= 0 and < 2^63, is {limit!r}", place
        )
    costs = _read_costs(rows, place)
    sizes = [len(row) for row in costs]
    memory = _Memory([], np.zeros((0, 2), np.int64))
    if limit is not None or "usages" in nodes:
        memory = _read_memory(nodes, sizes, place)
    read = _read_edges(cast(dict[str, Any], edges), sizes, place)
    try:
        return Problem(
            option_offset=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
            option_cost=_allowed(_joined(costs)),
            edge_from=read.ends[:, 0],
            edge_to=read.ends[:, 1],
            edge_table=read.table_of,
            tables=tuple(read.tables),
            option_memory=_joined(memory.usages).astype(np.int64),
            live_first=memory.spans[:, 0],
            live_last=memory.spans[:, 1],
            memory_limit=limit,
        )
    except SolverError as error:
        raise SolverError(error.message, place) from None


@dataclass(frozen=True, slots=True)
class _Memory:
    """What options take, and when."""

    usages: list[NDArray[np.float64]]
    """Bytes of each option, node by node."""
    spans: NDArray[np.int64]
    """First program point of each node and the one behind its last, of shape ``(nodes, 2)``."""


@dataclass(frozen=True, slots=True)
class _Edges:
    """Pairs of nodes, with tables that several may share."""

    ends: NDArray[np.int32]
    """Both nodes of each edge, of shape ``(edges, 2)``."""
    table_of: NDArray[np.int32]
    """Number of each edge's table."""
    tables: list[NDArray[np.float64]]


def _read_costs(rows: list[Any], place: str | None) -> list[NDArray[np.float64]]:
    found = [_numbers(row, f"problem.nodes.costs[{i}]", place) for i, row in enumerate(rows)]
    for i, row in enumerate(found):
        if not len(row):
            raise SolverError(f"problem.nodes.costs[{i}]: node {i} has no options", place)
    return found


def _read_memory(nodes: dict[str, Any], sizes: list[int], place: str | None) -> _Memory:
    """``sizes`` are numbers of options, by node."""
    rows: list[Any] = _field(nodes, "usages", list, place, "problem.nodes.")
    _same_length(rows, len(sizes), "problem.nodes.usages", "node", place)
    usages: list[NDArray[np.float64]] = []
    for i, row in enumerate(rows):
        values = _numbers(row, f"problem.nodes.usages[{i}]", place)
        if len(values) != sizes[i]:
            raise SolverError(
                f"problem.nodes.usages[{i}]: has {len(values)} entries, node {i} has "
                f"{sizes[i]} options",
                place,
            )
        if not ((values >= 0) & (values <= SMALLEST_NOT_ALLOWED)).all():
            raise SolverError(f"problem.nodes.usages[{i}]: must be 0 to 2^53", place)
        usages.append(values)
    intervals: list[Any] = _field(nodes, "intervals", list, place, "problem.nodes.")
    _same_length(intervals, len(sizes), "problem.nodes.intervals", "node", place)
    spans = [
        _numbers(pair, f"problem.nodes.intervals[{i}]", place) for i, pair in enumerate(intervals)
    ]
    for i, span in enumerate(spans):
        whole = (np.abs(span) < SMALLEST_NOT_ALLOWED) & (span == np.floor(span))
        if len(span) != 2 or not whole.all():
            raise SolverError(
                f"problem.nodes.intervals[{i}]: must be [first, last), two integers below 2^53, is"
                f" {intervals[i]!r}",
                place,
            )
    return _Memory(usages, np.array(spans, np.int64).reshape(-1, 2))


def _read_edges(edges: dict[str, Any], sizes: list[int], place: str | None) -> _Edges:
    """``sizes`` are numbers of options, by node."""
    pairs: list[Any] = _field(edges, "nodes", list, place, "problem.edges.")
    costs: list[Any] = _field(edges, "costs", list, place, "problem.edges.")
    _same_length(costs, len(pairs), "problem.edges.costs", "edge", place)
    tables: list[NDArray[np.float64]] = []
    known: dict[tuple[int, int, bytes], int] = {}
    table_of = np.zeros(len(pairs), np.int32)
    ends = np.zeros((len(pairs), 2), np.int32)
    for e, pair in enumerate(pairs):
        name = f"problem.edges.nodes[{e}]"
        if not _is_pair(pair, len(sizes)):
            raise SolverError(f"{name}: must be two nodes 0..{len(sizes) - 1}, is {pair!r}", place)
        i, j = cast(tuple[int, int], pair)
        table = _numbers(costs[e], f"problem.edges.costs[{e}]", place)
        costs[e] = None  # millions of Python integers go as soon as they are read
        if len(table) != sizes[i] * sizes[j]:
            raise SolverError(
                f"problem.edges.costs[{e}]: has {len(table)} entries, nodes {i} and {j} have "
                f"{sizes[i]} x {sizes[j]} options",
                place,
            )
        ends[e] = i, j
        key = (sizes[i], sizes[j], table.tobytes())
        found = known.setdefault(key, len(tables))
        if found == len(tables):
            tables.append(_allowed(table).reshape(sizes[i], sizes[j]))
        table_of[e] = found
    return _Edges(ends, table_of, tables)


def iopddl_of(problem: Problem, name: str = "autoshard") -> dict[str, Any]:
    """See ``Problem.to_iopddl``."""
    tables = [problem.edge_costs(e) for e in range(problem.edges)]
    scale = _cost_scale([problem.option_cost, *tables])

    def written(costs: NDArray[np.float64]) -> list[int]:
        return [
            NOT_ALLOWED if cost == math.inf else round(cost * scale)
            for cost in costs.ravel().tolist()
        ]

    spans = [problem.options(i) for i in range(problem.nodes)]
    has_memory = len(problem.option_memory) > 0
    has_life = len(problem.live_first) > 0
    result: dict[str, Any] = {
        "name": name,
        "cost_scale": scale,
        "nodes": {
            "intervals": [
                [int(problem.live_first[i]), int(problem.live_last[i])] if has_life else [0, 0]
                for i in range(problem.nodes)
            ],
            "costs": [written(problem.option_cost[span]) for span in spans],
            "usages": [
                problem.option_memory[span].tolist()
                if has_memory
                else [0] * (span.stop - span.start)
                for span in spans
            ],
        },
        "edges": {
            "nodes": [
                [int(i), int(j)] for i, j in zip(problem.edge_from, problem.edge_to, strict=True)
            ],
            "costs": [written(table) for table in tables],
        },
    }
    if problem.memory_limit is not None:
        result["usage_limit"] = problem.memory_limit
    return {"problem": result}


def write_iopddl(problem: Problem, path: str | Path, name: str = "autoshard") -> None:
    """Write ``problem.to_iopddl()``; compressed if the path ends in ``.gz``.

    Raises:
        OutputError: It cannot be written.
    """
    text = json.dumps(iopddl_of(problem, name), separators=(",", ":")).encode()
    data = gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text
    write_file(str(path), data)


def _is_pair(pair: Any, nodes: int) -> bool:
    return (
        isinstance(pair, list)
        and len(cast(list[Any], pair)) == 2
        and all(isinstance(end, int) and 0 <= end < nodes for end in cast(list[Any], pair))
    )


def _cost_scale(groups: list[NDArray[np.float64]]) -> float:
    finite = [group[np.isfinite(group)] for group in groups]
    if all((values == np.floor(values)).all() for values in finite):
        return 1.0
    total = sum(float(np.abs(values).max()) for values in finite if len(values))
    return 2.0 ** (52 - math.ceil(math.log2(max(total, 2.0**-900))))


def _field(parent: Any, name: str, kind: type, place: str | None, prefix: str) -> Any:
    if not isinstance(parent, dict) or name not in parent:
        raise SolverError(f"{prefix}{name}: is missing", place)
    found = cast(dict[str, Any], parent)[name]
    if not isinstance(found, kind):
        wanted = "an object" if kind is dict else "a list"
        raise SolverError(f"{prefix}{name}: must be {wanted}", place)
    return found


def _same_length(rows: list[Any], wanted: int, name: str, what: str, place: str | None) -> None:
    if len(rows) != wanted:
        raise SolverError(
            f"{name}: has {len(rows)} entries, needs one for each of {wanted} {what}s", place
        )


def _numbers(row: Any, name: str, place: str | None) -> NDArray[np.float64]:
    if not isinstance(row, list):
        raise SolverError(f"{name}: must be a list of numbers", place)
    try:
        values = np.array(row, np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.zeros((0, 0))
    if values.ndim != 1 or np.isnan(values).any() or (values == -math.inf).any():
        entries = cast(list[Any], row)
        wrong: Any = next(
            (v for v in entries if not isinstance(v, int | float) or not v > -math.inf), entries
        )
        raise SolverError(f"{name}: must be a list of numbers, holds {wrong!r}", place)
    return values


def _allowed(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(costs >= SMALLEST_NOT_ALLOWED, np.inf, costs)


def _joined(rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(rows) if rows else np.zeros(0)
