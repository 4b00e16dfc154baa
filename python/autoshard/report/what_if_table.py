"""Steps over a range of machines and batches, and what a plan is sensitive to, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.report.plan_table import new_table

if TYPE_CHECKING:
    from autoshard.explain.sensitivity import Sensitivities
    from autoshard.explain.what_if import WhatIf
    from autoshard.frontend.largest_batch import LargestBatch

WIDTH = 140
"""Columns of the text of a table of steps."""

_BAR_WIDTH = 20


def what_if_table(found: WhatIf) -> RenderableType:
    """A row a point, with a bar for its step."""
    varied = list(dict.fromkeys(name for point in found.points for name in point.changed))
    has_batch = any(point.batch is not None for point in found.points) and "batch" not in varied
    has_rate = any(point.examples_per_second is not None for point in found.points)
    columns = [*varied, "devices", *(["batch"] if has_batch else []), "mesh", "step"]
    columns += ["communication", "peak", *(["examples/s"] if has_rate else [])]
    has_tokens = any(point.tokens_per_second is not None for point in found.points)
    columns += [*(["tokens/s"] if has_tokens else []), ""]
    table = new_table(*columns)
    longest = max((point.step_seconds or 0.0 for point in found.points), default=0.0)
    for point in found.points:
        cells = [_cell(point.changed.get(name)) for name in varied]
        cells.append(f"{point.devices:,}")
        if has_batch:
            cells.append("" if point.batch is None else f"{point.batch:,}")
        peak = "" if point.peak_bytes is None else bytes_text(point.peak_bytes)
        if point.step_seconds is None:
            cells += ["none", "", "", peak]
        else:
            communication = seconds_text(point.communication_seconds or 0.0)
            cells += [point.mesh, seconds_text(point.step_seconds), communication, peak]
        if has_rate:
            cells.append(_rate(point.examples_per_second))
        if has_tokens:
            cells.append(_rate(point.tokens_per_second))
        end: RenderableType = Text(point.reason.partition(". ")[0])
        if point.step_seconds is not None:
            end = Bar(size=longest or 1.0, begin=0, end=point.step_seconds, width=_BAR_WIDTH)
        table.add_row(*map(Text, cells), end)
    return Group(Text(f"{found.name}, planned for each row"), table)


def largest_batch_table(found: LargestBatch) -> RenderableType:
    """A row a size, the largest that fits and the best one marked."""
    has_parts = any(one.micro_batches > 1 for one in found.tried)
    columns = ["batch", "mesh", *(["micro-batches"] if has_parts else [])]
    table = new_table(*columns, "step", "an example", "peak", "")
    for one in found.tried:
        marks = ["largest"] if one.batch == found.size else []
        marks += ["fewest seconds an example"] if one.batch == found.best_size else []
        peak = "" if one.peak_bytes is None else bytes_text(one.peak_bytes)
        step, each = one.step_seconds, one.seconds_per_example
        cells = [f"{one.batch:,}", one.mesh]
        cells += [f"{one.micro_batches}" if one.fits else ""] if has_parts else []
        cells += ["none" if step is None else seconds_text(step)]
        cells += ["" if each is None else seconds_text(each), peak]
        table.add_row(*map(Text, cells), Text(", ".join(marks) or one.reason.partition(". ")[0]))
    head = f"{found.name}, planned for each size; between doublings multiples of"
    return Group(Text(f"{head} {found.multiple_of}"), table)


def sensitivity_table(found: Sensitivities) -> RenderableType:
    """A row a number of the machine, that which changes most first."""
    table = new_table("more of", "", "step")
    for row in found.rows:
        change = f"{row.change:+.2%}" if abs(row.change) >= 5e-5 else "same"
        table.add_row(Text(row.name), f"{row.more:+.0%}", change)
    head = f"{found.name} on {found.cluster}: a step of {seconds_text(found.step_seconds)}"
    return Group(Text(head), table)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.3g}"


def _cell(value: object) -> str:
    name = getattr(value, "name", value)
    text = f"{name:g}" if isinstance(name, float) else str(name)
    return Path(text).name if text.endswith(".toml") else text
