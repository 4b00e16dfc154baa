"""One page of HTML that explains a plan: a file by itself, which needs no network.

All that is shown is in the document; its script searches, colours the devices and goes along the
timeline. Folding is that of ``details``, so keyboards and screen readers have it from the browser.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from autoshard.explain.headline import Headline, headline_of
from autoshard.explain.headline_text import TextTable, headline_lines, headline_tables, short_scope
from autoshard.explain.page_frontier import frontier_svg, frontier_text
from autoshard.explain.page_memory import memory_svg
from autoshard.explain.page_mesh import (
    MOST_DEVICES,
    MOST_TENSORS,
    blocks_held,
    mesh_panels,
    physical_dims,
)
from autoshard.explain.page_timeline import not_drawn, timeline_svg
from autoshard.explain.page_tree import CallNode, call_tree
from autoshard.explain.record import Record, RecordedValue
from autoshard.explain.remarks import RemarkKind, remarks_of
from autoshard.explain.timeline import timeline_of_schedule
from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.sharding import Mesh
from autoshard.verify.schedule.schedule import Schedule

if TYPE_CHECKING:
    from autoshard.explain.frontier import Frontier

_FOLDER = Path(__file__).parent

_SECTIONS = {
    "step": "Step",
    "timeline": "Timeline (modelled)",
    "compiled": "Timeline (simulated)",
    "memory": "Memory",
    "collectives": "Collectives",
    "program": "Program",
    "tensors": "Tensors",
    "devices": "Devices",
    "frontier": "Frontier",
    "remarks": "Remarks",
}

_OPEN_SHARE = 0.25
"""A call that takes more of the step is open at first."""

_NUMBERS = frozenset(
    {
        "communication",
        "compute",
        "count",
        "exposed",
        "mem_coeff",
        "of the step",
        "on one device",
        "ops",
        "peak",
        "roofline",
        "runs",
        "seconds",
        "sent",
        "share",
        "step",
        "times",
        "wasted",
    }
)
"""Columns of numbers."""


_SAID = (
    '<p class="said">Point at a bar, or go there by Tab and the arrow keys, to read what it is.</p>'
)
"""Where the script says which bar is looked at."""


def page_html(
    record: Record, frontier: Frontier | None = None, schedule: Schedule | None = None
) -> str:
    """The whole document.

    Args:
        record: The plan.
        frontier: Of its mesh, to be shown as well.
        schedule: Of the program that a compiler made of it, likewise.

    Raises:
        PlanError: The plan was made without a cluster.
    """
    headline = headline_of(record)
    title = escape(f"{record.name or 'a module'} on {headline.summary.cluster}")
    sections = {
        "step": _step(record, headline),
        "timeline": _timeline(record, headline),
        "compiled": () if schedule is None else _compiled(schedule),
        "memory": _memory(record, headline),
        "collectives": _collectives(record, headline),
        "program": _program(record, headline),
        "tensors": _tensors(record),
        "devices": _devices(record),
        "frontier": () if frontier is None else _frontier(frontier, headline),
        "remarks": _remarks(record),
    }
    shown = {name: "\n".join(parts) for name, parts in sections.items() if parts}
    links = " ".join(f'<a href="#{name}">{_SECTIONS[name]}</a>' for name in shown)
    first, *lines = headline_lines(headline)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}: plan</title><style>{(_FOLDER / 'page.css').read_text()}</style>",
            '</head><body><a class="skip" href="#step">To the plan</a>',
            f'<header><nav aria-label="Sections">{links}</nav>',
            '<label>Search <input id="search" type="search" placeholder="name, op, line ( / )">',
            '</label><span id="found" role="status" class="quiet"></span></header><main>',
            f"<h1>{escape(first)}</h1>",
            "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>",
            *(
                f'<section id="{name}"><h2>{_SECTIONS[name]}</h2>\n{text}\n</section>'
                for name, text in shown.items()
            ),
            "</main>",
            f"<script>{(_FOLDER / 'page.js').read_text()}</script></body></html>\n",
        ]
    )


def _step(record: Record, headline: Headline) -> Iterator[str]:
    yield from [_table(table) for table in headline_tables(headline, record)][:-1]
    yield _axes(headline)


def _axes(headline: Headline) -> str:
    rows = [(axis.name, str(axis.size), axis.role, axis.physical) for axis in headline.summary.axes]
    columns = ("axis", "count", "cuts", "made of")
    return _table(TextTable("Axes of the mesh", columns, tuple(rows))) if rows else ""


def _timeline(record: Record, headline: Headline) -> Iterator[str]:
    if not record.timeline.bars:
        yield "<p>Nothing is known of it.</p>"
        return
    yield timeline_svg(record.timeline, headline.summary.step_seconds)
    yield _SAID
    yield (
        '<p class="quiet">One after the other in the order of the program, as the plan counts'
        " seconds. A loop, and layers that are alike, are drawn once, as long as all their rounds"
        f" together. {escape(not_drawn(record, headline))}</p>"
    )


def _compiled(schedule: Schedule) -> Iterator[str]:
    yield timeline_svg(timeline_of_schedule(schedule), schedule.scheduled_seconds)
    yield _SAID
    yield (
        '<p class="quiet">In the order of the compiler, simulated: links run beside compute, which'
        " is open where it waits for them. Of a loop the trips are drawn until they repeat.</p>"
    )


def _frontier(found: Frontier, headline: Headline) -> Iterator[str]:
    yield frontier_svg(found, headline.summary)
    yield (
        '<p class="quiet">Step over peak of memory on a device; numbers at the points are their'
        " mem_coeff, the option of autoshard.plan that leads to them. Points of the other color"
        " compute values again, or send them to the host.</p>"
    )
    yield _table(frontier_text(found))


def _memory(record: Record, headline: Headline) -> Iterator[str]:
    summary = headline.summary
    rows = [
        (
            value.name,
            str(value.count),
            (value.location or "").rpartition("/")[2],
            value.type,
            value.sharding,
            bytes_text(value.bytes),
        )
        for value in summary.peak_values
    ]
    columns = ("tensor", "count", "line", "type", "sharding", "on one device")
    table = _table(TextTable("Largest tensors at the peak", columns, tuple(rows)))
    said = '<p class="quiet">The fullest point of each stretch of the program, without copies'
    said += " that reshards make; point at it for the op that runs.</p>"
    yield from (memory_svg(record), said, table)


def _collectives(record: Record, headline: Headline) -> Iterator[str]:
    step = headline.summary.step_seconds
    rows: list[str] = []
    for one in record.collectives:
        seconds = one.seconds or 0.0
        share = seconds / step if step > 0 else 0.0
        cells = (
            one.kind,
            ", ".join(one.axes or ("irregular groups",)),
            f"{one.value} {one.type}",
            f"{one.of} {short_scope(one.scope)}",
            (one.location or "").rpartition("/")[2],
            one.phase,
        )
        numbers = (f"{one.times:,.0f}", bytes_text(one.total_bytes), seconds_text(seconds))
        rows.append(
            f'<tr data-name="{escape(f"{one.id} {one.location} {one.kind}")}">'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "".join(f'<td class="n">{number}</td>' for number in numbers)
            + f'<td class="share"><span class="bar" style="width:{share * 30:.2f}rem"></span>'
            + f" {share:.1%}</td></tr>"
        )
    columns = ("collective", "over", "of", "for", "line", "phase", "times", "sent", "seconds", "")
    body = _rows("Dearest first, before overlap", columns, rows)
    yield body if rows else "<p>Nothing is communicated.</p>"


def _program(record: Record, headline: Headline) -> Iterator[str]:
    step = headline.summary.step_seconds or 1.0
    said = '<p class="quiet">Seconds are those of compute, without communication. Equal layers'
    said += " are one row, with their count.</p>"
    yield said
    for node in call_tree(record):
        yield from _node(node, step)


def _node(node: CallNode, step: float) -> Iterator[str]:
    share = node.seconds / step
    opened = " open" if share > _OPEN_SHARE else ""
    yield (
        f'<details{opened}><summary><span class="cost" style="--part:{share:.1%}">'
        f"{seconds_text(node.seconds)}</span>{escape(node.label or 'no location')}"
        f' <span class="quiet">{node.count} ops</span></summary>'
    )
    if node.ops:
        rows = [
            f'<tr data-name="{escape(f"{op.name} {op.op} {op.type}")}">'
            f"<td>{escape(op.op)}{_times(op.count)}</td><td>{escape(op.scope)}</td>"
            f'<td>{op.phase}</td><td class="mono">{escape(op.type)}</td>'
            f'<td class="mono">{escape(op.strategy)}</td><td class="n">{op.runs:,.0f}</td>'
            f'<td class="n">{seconds_text(op.seconds) if op.seconds else ""}</td>'
            f"<td>{op.bound}</td></tr>"
            for op in sorted(node.ops, key=lambda op: -(op.seconds or 0.0))
        ]
        columns = ("op", "scope", "phase", "type", "strategy", "runs", "seconds", "bound by")
        yield _rows("", columns, rows)
    for call in node.calls:
        yield from _node(call, step)
    yield "</details>"


def _tensors(record: Record) -> Iterator[str]:
    def row(value: RecordedValue) -> str:
        host = "host" if value.is_on_host else ""
        return (
            f'<tr data-name="{escape(value.id)}"><td>{escape(value.id)}{_times(value.count)}</td>'
            f'<td class="mono">{escape(value.type)}</td><td class="mono">{escape(value.sharding)}'
            f'</td><td class="n">{bytes_text(value.bytes)}</td><td>{host}</td></tr>'
        )

    columns = ("name", "type", "sharding", "on one device", "")
    yield _rows("Arguments", columns, map(row, record.arguments))
    yield _rows("Results", columns, map(row, record.results))


def _devices(record: Record) -> Iterator[str]:
    mesh = Mesh.parse(record.mesh)
    values = [value for value in (*record.arguments, *record.results) if value.sharding]
    # Those that are cut first: a whole tensor is the same block everywhere.
    order = sorted(values, key=lambda one: (not any(map(str.isalnum, one.sharding)), -one.bytes))
    shown = order[:MOST_TENSORS]
    options = "".join(
        f'<option value="{escape(value.sharding)}">{escape(value.id)}{_times(value.count)}:'
        f" {escape(value.type)} {escape(value.sharding)}</option>"
        for value in shown
    )
    held = json.dumps(blocks_held([value.sharding for value in shown], mesh), separators=(",", ":"))
    dims = ", ".join(f"{name}={size}" for name, size in physical_dims(record))
    count = f"the first {MOST_DEVICES} of " if mesh.size > MOST_DEVICES else ""
    choice = (
        f'<label>Blocks of <select id="tensor">{options}</select></label>'
        ' <span id="blocks-say" role="status" class="quiet"></span>'
        if shown
        else ""
    )
    yield (
        f"<p>{count}{mesh.size} devices: {escape(dims)}; mesh {escape(record.mesh)}. Devices of"
        " one colour hold the same block.</p>"
    )
    yield choice
    yield f'<div class="scroll">{mesh_panels(record)}</div>'
    yield f'<script type="application/json" id="blocks">{_in_script(held)}</script>'


def _remarks(record: Record) -> Iterator[str]:
    found = remarks_of(record)
    if not found:
        yield "<p>None.</p>"
    for kind in RemarkKind:
        rows = [
            f'<tr data-name="{escape(one.message)}"><td>{escape(_line(one.file, one.line))}</td>'
            f"<td>{escape(one.message)}</td></tr>"
            for one in found
            if one.kind is kind
        ]
        if rows:
            yield _rows(kind.value.capitalize(), ("line", "remark"), rows)


def _line(file: str | None, line: int) -> str:
    return "" if file is None else f"{file.rpartition('/')[2]}:{line}"


def _table(table: TextTable) -> str:
    rows = (
        "<tr>"
        + "".join(
            f"<td{_class(column)}>{escape(cell)}</td>"
            for column, cell in zip(table.columns, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return _rows(table.title, table.columns, rows)


def _rows(title: str, columns: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f'<th scope="col"{_class(column)}>{escape(column)}</th>' for column in columns)
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _class(column: str) -> str:
    return ' class="n"' if column in _NUMBERS else ""


def _times(count: int) -> str:
    return f" × {count}" if count > 1 else ""


def _in_script(text: str) -> str:
    """JSON that does not end the element it stands in."""
    return text.replace("<", "\\u003c")
