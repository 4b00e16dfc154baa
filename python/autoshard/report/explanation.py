"""Why a step takes as long as it does: what ``plan.explain()`` gives and ``autoshard explain``
prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from autoshard.explain.headline import Headline, headline_of
from autoshard.explain.headline_text import TextTable, headline_lines, headline_tables
from autoshard.explain.model_explorer import graph_json, node_data_json
from autoshard.explain.page import page_html
from autoshard.explain.page_frontier import frontier_text
from autoshard.explain.record import Record
from autoshard.explain.remarks import Remark, remarks_of
from autoshard.explain.timeline_trace import timeline_trace
from autoshard.report.plan_table import new_table, render, to_html
from autoshard.verify.schedule.schedule import Schedule

if TYPE_CHECKING:
    from autoshard.explain.frontier import Frontier

_WIDTH = 140
"""Columns of text where there is no terminal."""


@dataclass(frozen=True)
class Explanation:
    """A plan, explained: it shows itself on a terminal, in a notebook and as Markdown."""

    record: Record
    frontier: Frontier | None = None
    """Other plans of its mesh, where they were asked for."""
    schedule: Schedule | None = None
    """The step that a compiler made of it, simulated; only a page shows it."""

    @cached_property
    def headline(self) -> Headline:
        """What a step is spent on.

        Raises:
            PlanError: The plan was made without a cluster.
        """
        return headline_of(self.record)

    @cached_property
    def remarks(self) -> list[Remark]:
        """What there is to know at the user's lines; missed before analysis, most seconds first.

        Raises:
            PlanError: The plan was made without a cluster.
        """
        return remarks_of(self.record)

    def to_markdown(self) -> str:
        """For a pull request."""
        first, *lines = headline_lines(self.headline)
        parts = [f"### {_markdown(first)}", "\n".join(f"- {_markdown(line)}" for line in lines)]
        parts += [_markdown_table(table) for table in self._tables()]
        return "\n\n".join(parts) + "\n"

    def to_html(self) -> str:
        """One page by itself: all of this, the step and its memory over time, tensors, devices, a
        search."""
        return page_html(self.record, self.frontier, self.schedule)

    def to_model_explorer(self) -> str:
        """The program as a graph that Google's Model Explorer opens, equal layers once."""
        return graph_json(self.record)

    def to_node_data(self) -> str:
        """Seconds of each node of ``to_model_explorer()``, as that takes node data."""
        return node_data_json(self.record)

    def to_trace(self) -> str:
        """The step as the plan models it, for https://ui.perfetto.dev.

        Raises:
            PlanError: Nothing is known of it.
        """
        return timeline_trace(self.record)

    def __rich__(self) -> Any:
        """Lines of the headline, then its tables."""
        return Group(*self._parts())

    def __str__(self) -> str:
        """The same as text."""
        return render(Group(*self._parts()), _WIDTH)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return to_html(Group(*self._parts()), _WIDTH)

    def _parts(self) -> Iterator[Any]:
        for number, line in enumerate(headline_lines(self.headline)):
            yield Text(line, style="bold" if number == 0 else "")
        for table in self._tables():
            yield Text(f"\n{table.title}", style="bold")
            shown = new_table(*table.columns)
            for row in table.rows:
                shown.add_row(*map(Text, row))
            yield shown

    def _tables(self) -> Iterator[TextTable]:
        yield from headline_tables(self.headline, self.record)
        if self.frontier is not None:
            yield frontier_text(self.frontier)


def _markdown(text: str) -> str:
    """Text with what Markdown would read as something else escaped."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return text


def _markdown_table(table: TextTable) -> str:
    head = "| " + " | ".join(map(_markdown, table.columns)) + " |"
    line = "|" + "---|" * len(table.columns)
    rows = ["| " + " | ".join(map(_markdown, row)) + " |" for row in table.rows]
    return "\n".join([f"**{table.title}**", "", head, line, *rows])
