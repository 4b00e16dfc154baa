"""A pipeline beside its compiled tasks, as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.report.plan_table import new_table

if TYPE_CHECKING:
    from autoshard.pipeline.staged_verification import StagedVerification


def staged_verification_table(found: StagedVerification) -> RenderableType:
    """The verdict, the worst moment of each stage, each task, and what differs."""
    parts: list[RenderableType] = [Text(_head(found)), _stages(found), _tasks(found)]
    if found.differences:
        parts.append(Text("Compiled otherwise than planned:", style="bold"))
        parts += [Text(f"  {difference}") for difference in found.differences]
    return Group(*parts)


def _head(found: StagedVerification) -> str:
    programs = {id(one): one.program for one in found.tasks.values()}.values()
    first = next(iter(programs))
    seconds = sum(program.compile_seconds for program in programs)
    verdict = "fits" if found.fits else "DOES NOT FIT"
    return (
        f"{len(found.tasks)} tasks, {len(programs)} programs compiled for {first.target} with"
        f" {first.partitioner} ({first.compiler}) in {seconds_text(seconds)}: {verdict} into the"
        f" {bytes_text(found.usable_bytes)} of a device"
    )


def _stages(found: StagedVerification) -> Table:
    table = new_table("stage", "peak planned", "compiled", "a micro-batch planned", "compiled")
    step, peaks, costs = found.step, found.peak_bytes, found.costs
    planned = step.work_seconds(step.costs)
    compiled = None if costs is None else step.work_seconds(costs)
    for stage, peak in enumerate(step.peak_bytes):
        table.add_row(
            str(stage),
            bytes_text(peak),
            "" if peaks is None else bytes_text(peaks[stage]),
            seconds_text(planned[stage]),
            "" if compiled is None else seconds_text(compiled[stage]),
        )
    made = "" if found.step_seconds is None else seconds_text(found.step_seconds)
    table.add_row("step", "", "", seconds_text(step.step_seconds), made)
    return table


def _tasks(found: StagedVerification) -> Table:
    table = new_table("task", "planned", "compiled", "besides its values planned", "compiled")
    for name, one in found.tasks.items():
        cost, program = found.step.costs[name], one.program
        schedule = one.schedule
        seconds = "" if schedule is None else seconds_text(schedule.scheduled_seconds)
        table.add_row(
            name,
            seconds_text(cost.seconds),
            seconds,
            bytes_text(cost.transient_bytes),
            f"of {bytes_text(program.needed_bytes)}, does not fit"
            if program.peak_bytes is None
            else bytes_text(program.peak_bytes - found.step.held_bytes(name)),
        )
    return table
