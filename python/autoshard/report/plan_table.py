"""A plan as tables for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.verify.collective import total_bytes

if TYPE_CHECKING:
    from autoshard.exporter.planned_ops import PlannedOp
    from autoshard.frontend.plan import Plan, PlannedValue

_WIDTH = 110
"""Columns of ``str(plan)``; a terminal uses its own width."""

_MAIN_OPS = frozenset({"dot_general", "dot", "convolution", "gather", "scatter", "dynamic_gather"})
"""Ops that the table of ops shows even if they are not pinned."""


def plan_table(plan: Plan) -> RenderableType:
    """Arguments, results, the ops that matter and what is redistributed."""
    parts: list[RenderableType] = [
        Text(f"{plan.name}: {plan.mode} plan on mesh {plan.mesh} ({plan.mesh.size} devices)"),
        _values("argument", plan.arguments),
        _values("result", plan.results),
    ]
    shown = [op for op in plan.ops if op.strategy and (op.is_pinned or op.name in _MAIN_OPS)]
    if shown:
        parts.append(_ops(shown))
    parts.append(Text(f"{len(shown)} of {len(plan.ops)} ops shown; plan.ops has all."))
    parts.append(_redistributions(plan))
    parts.append(_collectives(plan))
    return Group(*parts)


def render(renderable: RenderableType, width: int = _WIDTH) -> str:
    """As plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get().rstrip("\n")


def short_place(location: str | None) -> str:
    """``model.py:42`` of ``/home/me/model.py:42:7``."""
    if location is None:
        return ""
    file, line, _ = location.rsplit(":", 2)
    return f"{Path(file).name}:{line}"


def _values(kind: str, values: Iterable[PlannedValue]) -> Table:
    table = _table(kind, "shape", "dtype", "sharding", "on one device")
    for value in values:
        sharding = str(value.sharding) if value.is_used else "unused"
        table.add_row(
            Text(value.name),
            Text(_shape(value.shape)),
            Text(value.dtype),
            Text(sharding),
            Text(_shape(value.local_shape)),
        )
    return table


def _ops(ops: Iterable[PlannedOp]) -> Table:
    table = _table("op", "line", "strategy", "result")
    for op in ops:
        pinned = " (pinned)" if op.is_pinned else ""
        result = ", ".join(str(sharding) for sharding in op.shardings)
        table.add_row(
            Text(op.name + pinned),
            Text(short_place(op.location)),
            Text(op.strategy or ""),
            Text(result),
        )
    return table


def _redistributions(plan: Plan) -> RenderableType:
    if not plan.redistributions:
        return Text("No value is redistributed.")
    table = _table("redistributed for", "line", "value", "from", "to")
    for one in plan.redistributions:
        table.add_row(
            Text(f"{one.reader} operand {one.operand}"),
            Text(short_place(one.location)),
            Text(one.type.removeprefix("tensor<").removesuffix(">")),
            Text(str(one.before)),
            Text(str(one.after)),
        )
    return table


def _collectives(plan: Plan) -> RenderableType:
    if not plan.collectives:
        return Text("Nothing is communicated.")
    table = _table("collective", "over", "line", "times", "bytes sent by one device")
    for one in plan.collectives:
        axes = "irregular groups" if one.axes is None else ", ".join(map(str, one.axes))
        times = f"{one.times}" if one.times_known else f"{one.times}?"
        table.add_row(
            Text(one.kind.value),
            Text(axes),
            Text(short_place(one.place)),
            Text(times),
            Text(f"{one.total_bytes:,.0f}"),
        )
    table.add_section()
    table.add_row("together", "", "", "", f"{total_bytes(plan.collectives):,.0f}")
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) if shape else "scalar"
