"""The frontier of time and memory as a table, with a bar for the memory of each plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.explain.page_frontier import frontier_columns
from autoshard.planned.summary import bytes_text
from autoshard.report.plan_table import new_table

if TYPE_CHECKING:
    from autoshard.explain.frontier import Frontier

_BAR_WIDTH = 24
_NARROW_BAR_WIDTH = 12
_FEW_COLUMNS = 6
"""With more, those of what is let go, the bars are narrow."""


def frontier_table(found: Frontier) -> RenderableType:
    """A row a plan, fastest first."""
    columns = frontier_columns(found)
    mesh = f" on {found.mesh}" if found.is_of_one_mesh else ""
    head = Text(
        f"{found.name}{mesh}: plans that no other beats in time"
        f" and memory; allowed are {bytes_text(found.memory_limit)} a device"
    )
    table = new_table("", *(column.heading for column in columns[:-1]), "", "")
    width = _BAR_WIDTH if len(columns) <= _FEW_COLUMNS else _NARROW_BAR_WIDTH
    most = max(point.peak_bytes for point in found.points)
    for number, point in enumerate(found.points, start=1):
        *cells, said = (column.cell(point) for column in columns)
        table.add_row(
            str(number),
            *cells,
            Bar(size=most or 1.0, begin=0, end=point.peak_bytes, width=width),
            said,
            style="bold" if point.is_plan else "",
        )
    return Group(head, table)
