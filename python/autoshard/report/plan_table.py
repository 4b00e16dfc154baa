"""A plan as tables for a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.explain.folding import folded
from autoshard.planned.collective import total_bytes
from autoshard.planned.summary import (
    BatchSplit,
    CollectiveSummary,
    DecidedValue,
    PlanSummary,
    SumsReducedOnce,
    TriedMicroBatches,
    bytes_text,
    seconds_text,
)

if TYPE_CHECKING:
    from autoshard.frontend.plan import Plan, PlannedValue
    from autoshard.frontend.planned_lockstep import LockstepPipeline
    from autoshard.frontend.planned_pipeline import PlannedPipeline
    from autoshard.planned.ops import PlannedOp

_WIDTH = 110
"""Columns of ``str(plan)``; a terminal uses its own width."""

MOST_ROWS = 20
"""Collectives that a table shows one by one."""

MOST_PEAK_ROWS = 12
"""Tensors of the peak, likewise."""

_MOST_KEPT_ROWS = 3
"""Values that are kept and would go next, likewise."""

_MAIN_OPS = frozenset({"dot_general", "dot", "convolution", "gather", "scatter", "dynamic_gather"})
"""Ops that the table of ops shows even if they are not pinned."""


def plan_table(plan: Plan, full: bool = False) -> RenderableType:
    """Arguments, results, the ops that matter and what is resharded.

    Args:
        plan: Any plan.
        full: Every row by itself; else those that are equal but for the numbers of their layers
            are one row, ``params[*]['w'] × 32``.
    """
    on = "" if plan.cluster is None else f" of {plan.cluster}"
    head = f"{plan.name}: {plan.mode} plan on mesh {plan.mesh} ({plan.mesh.size} devices{on})"
    parts: list[RenderableType] = [Text(head)]
    if plan.pipeline is not None:
        parts += [Text(line) for line in _pipeline_lines(plan.pipeline)]
    if plan.summary is not None:
        parts += [Text(line) for line in estimate_lines(plan.summary)]
        parts += [Text(line) for line in tried_lines(plan.summary)]
    if plan.batch is not None:
        parts.append(Text(_batch_line(plan.batch)))
    parts += [
        _values("argument", plan.arguments, full),
        _values("result", plan.results, full),
    ]
    shown = [op for op in plan.ops if op.strategy and (op.is_pinned or op.name in _MAIN_OPS)]
    if shown:
        parts.append(_ops(shown, full))
    parts.append(Text(f"{len(shown)} of {len(plan.ops)} ops shown; plan.ops has all."))
    parts.append(_reshards(plan, full))
    if plan.summary is None:
        parts.append(_collectives(plan))
    else:
        parts += [collective_table(plan.summary), peak_table(plan.summary)]
    return Group(*parts)


def estimate_lines(summary: PlanSummary) -> Iterator[str]:
    """Seconds, memory, the bound, and what the axes of the mesh are for; a line each."""
    hidden = f", {summary.overlap:.0%} of it hidden" if summary.overlap else ""
    yield (
        f"one step: {seconds_text(summary.step_seconds)}, compute"
        f" {seconds_text(summary.compute_seconds)}, communication"
        f" {seconds_text(summary.communication_seconds)}{hidden}"
    )
    yield from _schedule_lines(summary)
    limit = summary.memory_limit
    allowed = "" if limit is None else f" of {bytes_text(limit)}"
    yield f"memory at the peak: {bytes_text(summary.peak_bytes_per_device)}{allowed} a device"
    if summary.host_bytes_per_device or summary.host_transfer_bytes:
        yield (
            f"in the memory of the host: {bytes_text(summary.host_bytes_per_device)} of a device;"
            f" {bytes_text(summary.host_transfer_bytes)} a step over its link,"
            f" {seconds_text(summary.host_transfer_seconds)}, of which"
            f" {seconds_text(summary.host_exposed_seconds)} no op hides"
        )
    for one in summary.recomputed:
        where = "" if one.location is None else f" ({short_line(one.location)})"
        yield f"computed again: {one.count} x {one.name}{where}, {bytes_text(one.bytes)} not kept"
    if summary.recomputed:
        yield f"computing again takes {seconds_text(summary.recompute_seconds)} of the step"
    yield from _decided_lines(summary)
    if summary.reduced_once is not None:
        yield _reduced_once_line(summary.reduced_once)
    if summary.gap is not None:
        yield (
            f"lower bound: {seconds_text(summary.lower_bound_seconds)}, the plan is"
            f" {summary.gap:.1%} above it ({summary.bound_covers})"
        )
    if summary.planning_seconds:
        yield f"planning took {seconds_text(summary.total_planning_seconds)}"
    for axis in summary.axes:
        on = "" if axis.physical in ("", axis.name) else f", on {axis.physical}"
        yield f"axis {axis.name}={axis.size} cuts {axis.role}{on}"


def _schedule_lines(summary: PlanSummary) -> Iterator[str]:
    """The three numbers of a step, where there is something to hide."""
    scheduled, least = summary.scheduled_seconds, summary.all_hidden_seconds
    if scheduled is None or least is None or not summary.communication_seconds:
        return
    yield (
        f"nothing hidden: {seconds_text(summary.nothing_hidden_seconds)}, as scheduled:"
        f" {seconds_text(scheduled)}, all hidden: {seconds_text(least)}"
    )


def _reduced_once_line(once: SumsReducedOnce) -> str:
    return (
        f"{once.count} sums of loops are reduced once, behind them, over {', '.join(once.axes)}: a"
        f" device sends {bytes_text(once.bytes_once)} a step, not"
        f" {bytes_text(once.bytes_in_trips)}, and holds {bytes_text(once.memory_bytes)} more"
    )


def tried_lines(summary: PlanSummary) -> Iterator[str]:
    """What ``micro_batches="auto"`` and ``pipeline="auto"`` chose from, and what is refused."""
    yield from _tried_lines("micro-batches tried", summary.tried_micro_batches)
    head = "pipelines tried (stages × micro-batches)"
    yield from _tried_lines(head, summary.tried_pipelines, in_stages=True)


def _tried_lines(
    head: str, tried: Sequence[TriedMicroBatches], in_stages: bool = False
) -> Iterator[str]:
    said: list[str] = []
    for one in tried:
        name = str(one.micro_batches)
        if in_stages:
            name = "none" if one.stages == 1 else f"{one.stages} × {name}"
            name += f" in {one.chunks} chunks" if one.chunks > 1 else ""
            name += " in lockstep" if one.execution == "lockstep" else ""
        step = "" if one.step_seconds is None else seconds_text(one.step_seconds)
        peak = "" if one.peak_bytes is None else bytes_text(one.peak_bytes)
        if one.outcome in ("taken", "fits"):
            said.append(f"{name}: {step}, {peak}")
        elif one.outcome == "bounded":
            said.append(f"{name}: {step} or more")
        elif one.outcome == "does not fit":
            said.append(f"{name}: does not fit, {peak}")
    if said:
        yield f"{head}: {'; '.join(said)}"
    for one in tried:
        if one.outcome == "refused":
            parts = f" in {one.chunks} chunks" if one.chunks > 1 else ""
            parts += " in lockstep" if one.execution == "lockstep" else ""
            what = f"{one.stages} stages{parts}" if in_stages else "micro-batches"
            yield f"not in {what}: {one.reason}"


def _pipeline_lines(pipeline: PlannedPipeline | LockstepPipeline) -> Iterator[str]:
    """What a step of all stages comes to; what stands below is of one stage's devices alone."""
    asked = pipeline.asked
    parts = f", {asked.chunks} parts of the model each," if asked.chunks > 1 else ""
    yield (
        f"a step of {asked.stages} stages{parts} in {asked.micro_batches} micro-batches takes"
        f" {seconds_text(pipeline.step_seconds)}; {pipeline.schedule}, bubble {pipeline.bubble:.1%}"
    )
    peaks = ", ".join(map(bytes_text, pipeline.peak_bytes))
    yield f"memory at the peak, on a device of each stage: {peaks}"
    yield from pipeline.gantt(_WIDTH).split("\n")
    if pipeline.is_one_program:
        yield "The program of one stage, without what stages send each other:"
    else:
        yield "If the devices of one stage did all of it:"


def _decided_lines(summary: PlanSummary) -> Iterator[str]:
    """What waits on the host, and what is kept but would go next."""
    for one in summary.decided:
        if one.decision == "host":
            yield f"on the host meanwhile: {_decided(one)}, adds {seconds_text(one.seconds)}"
    kept = [one for one in summary.decided if one.decision == "keep"]
    for one in kept[:_MOST_KEPT_ROWS]:
        yield f"kept, next to go: {_decided(one)}, saves {seconds_text(one.seconds)}"


def _decided(one: DecidedValue) -> str:
    where = "" if one.location is None else f" ({short_line(one.location)})"
    named = "" if one.checkpoint_name is None else f" {one.checkpoint_name!r}"
    return f"{one.count} x {one.name}{named}{where}, {bytes_text(one.bytes)}"


def _batch_line(batch: BatchSplit) -> str:
    rounds = batch.gradient_accumulation
    in_rounds = "" if rounds == 1 else f", in {rounds} rounds of {batch.micro_batch} each"
    pieces = "not cut" if batch.data_parallel == 1 else f"cut into {batch.data_parallel} pieces"
    own = ", ".join(batch.per_micro_batch)
    of_each = f"; each micro-batch by itself at {own}" if own else ""
    return f"batch of {batch.size}: {pieces}{in_rounds}{of_each}"


def collective_table(summary: PlanSummary, most: int = MOST_ROWS) -> RenderableType:
    """Collectives with seconds and lines, those that take longest first."""
    if not summary.collectives:
        return Text("Nothing is communicated.")
    table = new_table(
        *("collective", "over", "line", "times", "bytes sent by one device", "seconds"),
        *("exposed", "slack"),
    )
    for one in summary.collectives[:most]:
        table.add_row(
            Text(one.kind),
            Text(", ".join(one.axes)),
            Text(short_line(one.location)),
            Text(f"{one.times:,.0f}"),
            Text(f"{one.total_bytes:,.0f}"),
            *map(_known_seconds, (one.seconds, one.exposed_seconds, one.slack_seconds)),
        )
    rest = summary.collectives[most:]
    if rest:
        table.add_row(
            Text(f"and {len(rest)} more"),
            "",
            "",
            Text(f"{sum(one.times for one in rest):,.0f}"),
            Text(f"{sum(one.total_bytes for one in rest):,.0f}"),
            _known_seconds(sum(one.seconds or 0.0 for one in rest)),
            _known_seconds(_exposed(rest)),
            "",
        )
    table.add_section()
    together = sum(one.total_bytes for one in summary.collectives)
    seconds = seconds_text(summary.communication_seconds)
    exposed = _known_seconds(_exposed(summary.collectives))
    table.add_row("together", "", "", "", f"{together:,.0f}", seconds, exposed, "")
    return table


def _known_seconds(seconds: float | None) -> Text:
    return Text("" if seconds is None else seconds_text(seconds))


def _exposed(collectives: Sequence[CollectiveSummary]) -> float | None:
    known = [one.exposed_seconds for one in collectives if one.exposed_seconds is not None]
    return sum(known) if known else None


def peak_table(summary: PlanSummary, most: int = MOST_PEAK_ROWS) -> RenderableType:
    """The largest tensors at the worst moment of a step."""
    where = "" if summary.peak_line is None else f" at {short_line(summary.peak_line)}"
    table = new_table(f"in memory{where}", "tensors", "line", "type", "sharding", "on one device")
    for value in summary.peak_values[:most]:
        table.add_row(
            Text(value.name),
            Text(str(value.count)),
            Text(short_line(value.location)),
            Text(value.type),
            Text(value.sharding),
            Text(bytes_text(value.bytes)),
        )
    shown = sum(value.bytes for value in summary.peak_values[:most])
    rest = max(0.0, summary.peak_bytes_per_device - shown)
    table.add_row("all others", "", "", "", "", bytes_text(rest))
    table.add_section()
    table.add_row("together", "", "", "", "", bytes_text(summary.peak_bytes_per_device))
    return table


def short_line(location: str | None) -> str:
    """``model.py:42`` of ``/home/me/model.py:42``."""
    return "" if location is None else Path(location).name


def to_html(renderable: RenderableType, width: int = _WIDTH) -> str:
    """As HTML, for a notebook."""
    console = _console(width)
    console.print(renderable)
    code = '<pre style="line-height:normal;overflow-x:auto">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=code)


def print_to(file: IO[str] | None, renderable: RenderableType) -> None:
    """Print to a file, as wide as the terminal; where there is none, as ``str(plan)`` is.

    Args:
        file: None: standard output.
        renderable: What to print.
    """
    to = sys.stdout if file is None else file
    width = None if to.isatty() else _WIDTH
    Console(file=to, width=width, legacy_windows=False).print(renderable)


def _console(width: int = _WIDTH) -> Console:
    return Console(
        file=io.StringIO(), width=width, color_system=None, legacy_windows=False, record=True
    )


def render(renderable: RenderableType, width: int = _WIDTH) -> str:
    """As plain text."""
    console = _console(width)
    console.print(renderable)
    return console.export_text().rstrip("\n")


def short_place(location: str | None) -> str:
    """``model.py:42`` of ``/home/me/model.py:42:7``."""
    if location is None:
        return ""
    file, line, _ = location.rsplit(":", 2)
    return f"{Path(file).name}:{line}"


_Row = tuple[str, ...]


def _add_rows(
    table: Table,
    rows: Iterable[_Row],
    full: bool,
    key: Callable[[_Row], _Row] = lambda row: row[1:],
) -> None:
    """Rows of a table; equal ones once, with the form of their names, unless all are wanted.

    Args:
        table: Where they go.
        rows: The first cell is the name.
        full: All of them.
        key: What has to be equal.
    """
    if full:
        for row in rows:
            table.add_row(*map(Text, row))
        return
    for fold in folded(rows, lambda row: row[0], key):
        count = f" × {fold.count}" if fold.count > 1 else ""
        table.add_row(*map(Text, (f"{fold.name}{count}", *fold.first[1:])))


def _sharding(value: PlannedValue) -> str:
    if not value.is_used:
        return "unused"
    if value.stage_cut is None:
        return str(value.sharding)
    dim, stages = value.stage_cut
    return f"{value.sharding}, dim {dim} over {stages} stages"


def _values(kind: str, values: Iterable[PlannedValue], full: bool) -> Table:
    table = new_table(kind, "shape", "dtype", "sharding", "on one device")
    rows = (
        (
            value.name,
            _shape(value.shape),
            value.dtype,
            _sharding(value),
            _shape(value.local_shape),
        )
        for value in values
    )
    _add_rows(table, rows, full)
    return table


def _ops(ops: Iterable[PlannedOp], full: bool) -> Table:
    table = new_table("op", "line", "strategy", "result")
    rows = (
        (
            op.name + (" (pinned)" if op.is_pinned else ""),
            short_place(op.location),
            op.strategy or "",
            ", ".join(str(sharding) for sharding in op.shardings),
        )
        for op in ops
    )
    _add_rows(table, rows, full)
    return table


def _reshards(plan: Plan, full: bool) -> RenderableType:
    if not plan.reshards:
        return Text("No value is resharded.")
    table = new_table("resharded for", "line", "value", "from", "to")
    rows = (
        (
            f"{one.reader} operand {one.operand}",
            short_place(one.location),
            one.type.removeprefix("tensor<").removesuffix(">"),
            str(one.before),
            str(one.after),
        )
        for one in plan.reshards
    )
    # The operands of what returns are those of layers; of others each has a meaning of its own.
    _add_rows(table, rows, full, lambda row: row[1:] if row[0].startswith("return ") else row)
    return table


def _collectives(plan: Plan) -> RenderableType:
    if not plan.collectives:
        return Text("Nothing is communicated.")
    table = new_table("collective", "over", "line", "times", "bytes sent by one device")
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


def new_table(*columns: str) -> Table:
    """Without borders; long cells go on in the next line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) if shape else "scalar"
