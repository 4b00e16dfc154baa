"""The frontier of time and memory as a table, with a bar for the memory of each plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.explain.page_frontier import frontier_cells
from autoshard.planned.summary import bytes_text
from autoshard.report.plan_table import new_table

if TYPE_CHECKING:
    from autoshard.explain.frontier import Frontier

_BAR_WIDTH = 24


def frontier_table(found: Frontier) -> RenderableType:
    """A row a plan, fastest first."""
    head = Text(
        f"{found.name} on {found.mesh}: plans that no other beats in time and memory; allowed are"
        f" {bytes_text(found.memory_limit)} a device"
    )
    table = new_table("", "step", "compute", "communication", "peak", "mem_coeff", "", "")
    most = max(point.peak_bytes for point in found.points)
    for number, point in enumerate(found.points, start=1):
        *cells, said = frontier_cells(point)
        table.add_row(
            str(number),
            *cells,
            Bar(size=most or 1.0, begin=0, end=point.peak_bytes, width=_BAR_WIDTH),
            said,
            style="bold" if point.is_plan else "",
        )
    return Group(head, table)
