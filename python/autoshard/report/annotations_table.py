"""Lines of user code that reproduce a plan, and what they leave out, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.report.plan_table import new_table

if TYPE_CHECKING:
    from autoshard.explain.annotations import Annotations
    from autoshard.explain.compiled_lines import CompiledLines
    from autoshard.explain.reproduced import Share

_MOST_SHARES = 5
"""Collectives that are listed."""


def annotations_table(found: Annotations) -> RenderableType:
    """A row a line; then the collectives that it does not reproduce, and those besides."""
    lines = "1 line reproduces" if len(found.lines) == 1 else f"{len(found.lines)} lines reproduce"
    head = Text(
        f"{found.name} on {found.mesh}: {lines} {found.reproduced:.1%} of"
        f" {bytes_text(found.planned_bytes)} that a device sends; a step of"
        f" {seconds_text(found.step_seconds)}, planned {seconds_text(found.planned_seconds)}"
    )
    if found.writable < len(found.lines):
        by_hand = len(found.lines) - found.writable
        head.append(f"; {by_hand} of the lines are inside the backward half, which no line names")
    apart = sum(line.is_by_custom_vjp for line in found.lines)
    if apart:
        head.append(f"; {apart} of the lines hold only a value or its cotangent, by jax.custom_vjp")
    if found.untried:
        head.append(f"; without {found.untried} of the lines it was not tried")
    if found.lacking_bytes:
        head.append(f"; it lacks {bytes_text(found.lacking_bytes)} of memory")
    if found.not_by_shardy:
        head.append(f"; as the planner propagates, not Shardy: {found.not_by_shardy}")
    if found.as_compiled is not None:
        head.append(_as_compiled(found.as_compiled))
    table = new_table("", "value", "type", "line", "sharding", "values")
    for number, line in enumerate(found.lines, start=1):
        where = "" if line.location is None else line.location.rpartition("/")[2]
        cells = (line.what, line.type, where, line.spec_text)
        table.add_row(str(number), *map(Text, cells), str(line.count))
    parts: list[RenderableType] = [head, table]
    listed = [("not reproduced", found.missing), ("besides", found.other)]
    if found.as_compiled is not None and found.as_compiled.program.fits:
        made = found.as_compiled
        listed += [("not as compiled", made.missing), ("besides as compiled", made.other)]
    for title, shares in listed:
        if shares:
            parts.append(_shares(title, shares))
    return Group(*parts)


def _as_compiled(made: CompiledLines) -> str:
    said = f"; as compiled by {made.program.compiler}"
    if not made.program.fits:
        return f"{said} it does not fit: {bytes_text(made.lacking_bytes)} too much"
    besides = sum(one.bytes for one in made.other)
    return (
        f"{said} {made.reproduced:.1%} of {bytes_text(made.planned_bytes)},"
        f" {bytes_text(besides)} besides, a step of {seconds_text(made.step_seconds)},"
        f" {seconds_text(made.planned_seconds)} by the whole plan"
    )


def _shares(title: str, shares: tuple[Share, ...]) -> RenderableType:
    table = new_table(title, "over", "line", "bytes sent by one device")
    for one in shares[:_MOST_SHARES]:
        where = "" if one.location is None else one.location.rpartition("/")[2]
        table.add_row(one.kind, ", ".join(one.axes), Text(where), bytes_text(one.bytes))
    if len(shares) > _MOST_SHARES:
        rest = shares[_MOST_SHARES:]
        size = bytes_text(sum(one.bytes for one in rest))
        table.add_row(f"{len(rest)} more", "", "", size)
    return table
