"""Answers to questions about a plan, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.report.diff_table import diff_table
from autoshard.report.plan_table import short_line

if TYPE_CHECKING:
    from autoshard.explain.causes import Why
    from autoshard.explain.why_not import WhyNot

_FEW_ROWS = 8


def why_not_table(found: WhyNot) -> RenderableType:
    """``why not w = P('model')? dearer: ..``, and what changes."""
    head = Text(f"why not {', '.join(found.asked)}? ")
    head.append(found.verdict, style="bold")
    head.append(f": {found.reason}")
    if found.diff is None:
        return head
    return Group(head, diff_table(found.diff, _FEW_ROWS))


def why_table(found: Why) -> RenderableType:
    """``why all-gather ..``, and under it every cause with its end."""
    where = "" if found.location is None else f" ({short_line(found.location)})"
    takes = f", {seconds_text(found.seconds)} a step" if found.seconds else ""
    lines: list[RenderableType] = [Text(f"{found.what}{where}{takes}", style="bold")]
    for link in found.links:
        head = "; ".join(filter(None, (link.because and f"because {link.because}", link.instead)))
        text = Text(f"  {head}: {link.why}")
        if link.extra_bytes:
            sign = "+" if link.extra_bytes > 0 else "-"
            text.append(f", peak {sign}{bytes_text(abs(link.extra_bytes))}")
        text.append(f"  [{link.end}]", style="italic")
        lines.append(text)
    return Group(*lines)
