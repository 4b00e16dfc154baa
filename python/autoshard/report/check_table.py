"""What a check found, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from autoshard.planned.summary import seconds_text

if TYPE_CHECKING:
    from autoshard.verify.check.check import Check

_SHOWN = 8
"""Sizes and ops that are listed."""


def check_table(found: Check) -> RenderableType:
    """The verdict, what was run, and the op that is wrong."""
    verdict = "RIGHT" if found.is_right else "WRONG"
    parts: list[RenderableType] = [Text(f"{verdict}: {line}") for line in _verdict(found)]
    parts += [Text(f"  {line}") for line in _run(found)]
    return Group(*parts)


def _verdict(found: Check) -> Iterator[str]:
    if not found.is_right:
        wrong = found.differs
        where = "" if wrong is None or wrong.location is None else f"{wrong.location}: "
        inside = " It stands in a loop or branch." if wrong is not None and wrong.is_inside else ""
        yield f"{where}{found.message}{inside}"
        return
    yield (
        f"{found.compared - found.unjudged} results are what one device computes, {found.exact} of"
        " them bit for bit"
    )


def _run(found: Check) -> Iterator[str]:
    mesh = found.mesh
    if found.checked_mesh != found.mesh:
        mesh = f"{found.checked_mesh} for {found.mesh}"
    taken = seconds_text(found.seconds)
    yield f"run on virtual CPU devices, mesh {mesh}, with {found.form}; {taken}"
    if found.looked_at < found.ops:
        yield f"{found.looked_at} of {found.ops} ops: where ops repeat, one of each kind"
    smaller = [f"{old} as {new}" for old, new in found.sizes if old != new]
    if smaller:
        yield f"sizes: {_some(smaller)}"
    if found.unjudged:
        yield f"{found.unjudged} more differ by rounding only: their ops are right by themselves"
    if found.not_finite > 0:
        yield f"{found.not_finite:.1%} of the elements are infinite or no numbers"
    if found.not_run:
        yield f"not run: {_some(list(found.not_run))}"


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
