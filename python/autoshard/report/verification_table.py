"""A plan beside its compiled program, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.report.plan_table import MOST_ROWS, new_table, short_line

if TYPE_CHECKING:
    from autoshard.planned.summary import PlanSummary
    from autoshard.verify.matching import CollectiveMatch, CollectiveSide
    from autoshard.verify.schedule.schedule import Schedule
    from autoshard.verify.verification import Verification


def verification_table(found: Verification) -> RenderableType:
    """The verdict, the numbers of plan and program side by side, collectives, and what differs."""
    parts: list[RenderableType] = [Text(line) for line in _head(found)]
    parts.append(_numbers(found))
    if found.estimate is not None and not found.estimate.trips_known:
        loops = ", ".join(found.estimate.uncounted_loops)
        parts.append(Text(f"No trip count was found for {loops}: trips are as assumed."))
    parts += _collectives(found)
    if found.schedule is not None:
        parts += _schedule(found.schedule, found.predicted)
    if found.differences:
        parts.append(Text("Compiled otherwise than planned:", style="bold"))
        parts += [Text(f"  {difference}") for difference in found.differences]
    return Group(*parts)


def _head(found: Verification) -> Iterator[str]:
    program = found.program
    yield (
        f"plan on mesh {found.mesh}, compiled for {program.target} with {program.partitioner}"
        f" ({program.compiler}) in {seconds_text(program.compile_seconds)}"
    )
    if not found.fits:
        over = program.needed_bytes - program.usable_bytes
        yield (
            f"DOES NOT FIT: needs {bytes_text(program.needed_bytes)} of the"
            f" {bytes_text(program.usable_bytes)} of a device, {bytes_text(over)} too much"
        )
        if program.refusal is not None:
            yield f"the compiler says: {program.refusal.splitlines()[0]}"
        return
    left = program.usable_bytes - program.needed_bytes
    yield (
        f"fits: needs {bytes_text(program.needed_bytes)} of the"
        f" {bytes_text(program.usable_bytes)} of a device, {bytes_text(max(0, left))} are left"
    )
    if found.as_planned is None:
        yield f"collectives are not compared: {program.no_hlo_text}"
    else:
        yield "compiled as planned" if found.as_planned else "NOT compiled as planned, see below"


def _numbers(found: Verification) -> Table:
    table = new_table("of one device, in one step", "planned", "compiled")
    program, predicted, estimate = found.program, found.predicted, found.estimate
    planned_peak, peak = predicted.peak_bytes_per_device, program.needed_bytes
    table.add_row(
        "bytes at the peak",
        *_both_sides([planned_peak, peak], bytes_text),
    )
    for name, size in (
        ("  arguments", program.argument_bytes),
        ("  results", program.output_bytes),
        ("  of these written over arguments", program.aliased_bytes),
        ("  temporaries", program.temporary_bytes),
    ):
        if size is not None:
            table.add_row(name, "", bytes_text(size))
    if found.collectives is not None:
        sent = sum(one.total_bytes for one in predicted.collectives)
        made = found.collectives.compiled_bytes
        table.add_row("bytes sent", *_both_sides([sent, made], bytes_text))
    sides = [predicted] if estimate is None else [predicted, estimate]
    uses_host = any(side.host_transfer_bytes for side in sides)
    if uses_host:
        table.add_row(
            "bytes to and from the host",
            *_both_sides([side.host_transfer_bytes for side in sides], bytes_text),
        )
    for name, field in _SECONDS.items():
        if uses_host or not field.startswith("host_"):
            numbers = [getattr(side, field) for side in sides]
            table.add_row(name, *_both_sides(numbers, seconds_text))
    return table


_SECONDS = {
    "step": "step_seconds",
    "  compute": "compute_seconds",
    "  communication": "communication_seconds",
    "  host transfers": "host_transfer_seconds",
    "    of these not hidden": "host_exposed_seconds",
}
"""Fields that a plan's summary and the compiled program's estimate both have."""


def _both_sides(numbers: Sequence[float], text: Callable[[float], str]) -> list[str]:
    """Planned, and compiled where it is known."""
    planned, *made = numbers
    return [text(planned), *(f"{text(one)}{_change(planned, one)}" for one in made)]


def _change(planned: float, compiled: float) -> str:
    return f" ({compiled / planned - 1:+.1%})" if planned > 0 else ""


def _collectives(found: Verification) -> Iterator[RenderableType]:
    if found.collectives is None:
        return
    rows = found.collectives.rows
    if not rows:
        yield Text("Nothing is communicated, in the plan or in the program.")
        return
    table = new_table("collective", "over", "line", "planned", "compiled", "seconds", "verdict")
    for row in rows[:MOST_ROWS]:
        table.add_row(*_cells(row))
    if len(rows) > MOST_ROWS:
        table.add_section()
        table.add_row(f"and {len(rows) - MOST_ROWS} more")
    table.add_section()
    table.add_row(
        "together",
        "",
        "",
        bytes_text(found.collectives.planned_bytes),
        bytes_text(found.collectives.compiled_bytes),
        seconds_text(found.collectives.compiled_seconds),
        f"{found.collectives.partitioner_agreement:.1%} of the bytes as planned",
    )
    yield table


_MOST_EXPOSED = 8
"""Transfers that a schedule names."""


def _schedule(schedule: Schedule, planned: PlanSummary) -> Iterator[RenderableType]:
    """The three numbers of a step, and what it waits for most."""
    numbers = new_table("step", "planned", "simulated", "beyond compute")
    for name, modelled, seconds in (
        ("nothing hidden", planned.nothing_hidden_seconds, schedule.nothing_hidden_seconds),
        ("as scheduled", planned.scheduled_seconds, schedule.scheduled_seconds),
        ("all hidden", planned.all_hidden_seconds, schedule.all_hidden_seconds),
    ):
        beyond = seconds_text(max(0.0, seconds - schedule.compute_seconds))
        both = ("", seconds_text(seconds))
        if modelled is not None:
            both = _both_sides([modelled, seconds], seconds_text)
        numbers.add_row(name, *both, beyond)
    yield numbers
    waited = [one for one in schedule.transfers if one.exposed_seconds > 0]
    if not waited:
        return
    table = new_table("waited for", "in the program", "line", "runs", "seconds", "exposed", "slack")
    for one in waited[:_MOST_EXPOSED]:
        table.add_row(
            one.transfer.what,
            Text(one.transfer.name),
            Text(short_line(one.transfer.place)),
            str(one.times),
            seconds_text(one.total_seconds),
            seconds_text(one.exposed_seconds),
            seconds_text(one.slack_seconds),
        )
    if len(waited) > _MOST_EXPOSED:
        table.add_section()
        rest = sum(one.exposed_seconds for one in waited[_MOST_EXPOSED:])
        more = f"and {len(waited) - _MOST_EXPOSED} more"
        table.add_row(more, "", "", "", "", seconds_text(rest), "")
    yield table


def _cells(row: CollectiveMatch) -> tuple[Text, ...]:
    side = row.compiled or row.planned
    assert side is not None
    kind = side.kind.value
    if row.planned is not None and row.compiled is not None:
        kind = _both(row.planned.kind.value, row.compiled.kind.value)
    over = _axes(side)
    if row.planned is not None and row.compiled is not None:
        over = _both(_axes(row.planned), _axes(row.compiled))
    cells = (
        kind,
        over,
        short_line(row.place),
        "" if row.planned is None else bytes_text(row.planned.bytes),
        "" if row.compiled is None else bytes_text(row.compiled.bytes),
        "" if row.compiled is None else seconds_text(row.compiled.seconds),
        row.verdict.value,
    )
    return tuple(Text(cell) for cell in cells)


def _both(planned: str, compiled: str) -> str:
    return planned if planned == compiled else f"{planned} → {compiled}"


def _axes(side: CollectiveSide) -> str:
    return "irregular groups" if side.axes is None else ", ".join(map(str, side.axes))
