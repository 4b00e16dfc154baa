"""What tables of planned and compiled programs share: compiled rows, rows in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Point = tuple[Any, ...]


def compiled_row(found: Any) -> Row:
    """What a compiler says of a program's memory."""
    return {
        "compiler": found.compiler,
        "compile": found.compile_seconds,
        "fits": found.fits,
        "needed": found.needed_bytes,
        "live": found.live_bytes,
    }


def compiled_peak(row: Row) -> float | None:
    """The compiler's peak on a device; of what does not fit, what it says that it needs."""
    return row.get("live") or row.get("needed")


def peak_error(row: Row) -> float | None:
    """Predicted over the compiler's peak, less 1."""
    theirs = compiled_peak(row)
    return row["peak"] / theirs - 1 if theirs else None


def step_fields(estimate: Any) -> Row:
    """Seconds of a compiled step: the three numbers that tables put beside each other."""
    schedule = estimate.schedule
    return {
        "nothing hidden": schedule.nothing_hidden_seconds,
        "as scheduled": schedule.scheduled_seconds,
        "all hidden": schedule.all_hidden_seconds,
    }


STEP_FIELDS = ("nothing hidden", "as scheduled", "all hidden")


class SavedRows:
    """Rows of a table by point, kept in a file as they are made.

    A point is what ``names`` are in its row; of two rows for one point the later one counts.
    """

    def __init__(self, names: Sequence[str], path: Path | None) -> None:
        self.names = names
        self.path = path
        has_file = path is not None and path.exists()
        rows = [json.loads(line) for line in path.read_text().splitlines()] if has_file else []
        self.of_point = {self.point(row): row for row in rows}

    def point(self, row: Row) -> Point:
        """Point of a row."""
        return tuple(row[name] for name in self.names)

    def missing(self, points: Iterable[Point]) -> Iterator[Point]:
        """Points that have no row yet."""
        return (point for point in points if point not in self.of_point)

    def add(self, point: Point, measured: Row) -> Row:
        """Keep what was measured at a point; its row."""
        row = {**dict(zip(self.names, point, strict=True)), **measured}
        self.of_point[point] = row
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return row

    def __iter__(self) -> Iterator[Row]:
        return iter(self.of_point.values())
