"""Answers to questions about a plan, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.report.diff_table import diff_table

if TYPE_CHECKING:
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
