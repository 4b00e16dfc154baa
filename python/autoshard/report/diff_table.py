"""Two plans side by side, as tables for a terminal and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.report.plan_table import new_table, short_line

if TYPE_CHECKING:
    from autoshard.explain.diff import Diff, Term

MOST_ROWS = 20
"""Rows that a table shows one by one."""

_Rows = list[tuple[str, ...]]


def diff_table(diff: Diff, most: int = MOST_ROWS) -> RenderableType:
    """Terms, values, collectives and memory, each as a table of at most so many rows."""
    parts: list[RenderableType] = [Text(f"before  {diff.before}"), Text(f"after   {diff.after}")]
    if diff.is_same:
        return Group(*parts, Text("The plans are the same."))
    for columns, rows in _tables(diff):
        if not rows:
            continue
        table = new_table(*columns)
        for row in rows[:most]:
            table.add_row(*map(Text, row))
        if len(rows) > most:
            table.add_row(Text(f"and {len(rows) - most} more"), *[""] * (len(columns) - 1))
        parts.append(table)
    return Group(*parts)


def diff_markdown(diff: Diff, most: int) -> str:
    """The same in GitHub's Markdown, long tables folded."""
    lines = [f"**Plan** `{diff.before}` → `{diff.after}`", ""]
    if diff.is_same:
        return "\n".join([*lines, "The plans are the same.", ""])
    for number, (columns, rows) in enumerate(_tables(diff)):
        if not rows:
            continue
        table = [_markdown_row(columns), _markdown_row(["---"] * len(columns))]
        shown = rows if number == 0 else rows[:most]
        table += [_markdown_row(row) for row in shown]
        if len(rows) > len(shown):
            table.append(
                _markdown_row([f"and {len(rows) - most} more", *[""] * (len(columns) - 1)])
            )
        if number == 0:
            lines += [*table, ""]
            continue
        title = f"{columns[0]}: {len(rows)} changed"
        lines += [f"<details><summary>{title}</summary>", "", *table, "", "</details>", ""]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _tables(diff: Diff) -> Iterator[tuple[tuple[str, ...], _Rows]]:
    """Columns and rows."""
    yield ("", "before", "after", "change"), [_term(term) for term in diff.terms]
    yield (
        ("value", "type", "line", "before", "after", "values"),
        [
            (
                one.name,
                one.type,
                short_line(one.location),
                one.before or "not there",
                one.after or "not there",
                str(one.count),
            )
            for one in diff.values
        ],
    )
    yield (
        ("collective", "over", "line", "before", "after", "bytes sent by one device"),
        [
            (
                one.kind,
                ", ".join(one.axes),
                short_line(one.location),
                "none" if one.is_new else seconds_text(one.before_seconds),
                "none" if one.is_gone else seconds_text(one.after_seconds),
                f"{one.before_bytes:,.0f} -> {one.after_bytes:,.0f}",
            )
            for one in diff.collectives
        ],
    )
    yield (
        ("in memory at the peak", "type", "line", "before", "after"),
        [
            (
                one.name,
                one.type,
                short_line(one.location),
                bytes_text(one.before) if one.before else "none",
                bytes_text(one.after) if one.after else "none",
            )
            for one in diff.memory
        ],
    )


def _term(term: Term) -> tuple[str, ...]:
    text = seconds_text if term.unit == "seconds" else bytes_text
    if term.is_same:
        change = "same"
    elif term.before:
        change = f"{term.after / term.before - 1:+.1%}"
    else:
        change = "new"
    return term.name, text(term.before), text(term.after), change
