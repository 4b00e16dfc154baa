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
    table = new_table("of one device", "planned", "compiled")
    planned, compiled = found.step, found.compiled
    for stage, peak in enumerate(planned.peak_bytes):
        made = "" if compiled is None else bytes_text(compiled.peak_bytes[stage])
        table.add_row(f"bytes at the peak, stage {stage}", bytes_text(peak), made)
    made = "" if compiled is None else seconds_text(compiled.step_seconds)
    table.add_row("step", seconds_text(planned.step_seconds), made)
    return table


def _tasks(found: StagedVerification) -> Table:
    table = new_table("task", "planned", "compiled", "temporaries planned", "compiled")
    for name, one in found.tasks.items():
        cost, program = found.step.costs[name], one.program
        seconds = "" if one.estimate is None else seconds_text(one.estimate.step_seconds)
        temporaries = program.temporary_bytes
        table.add_row(
            name,
            seconds_text(cost.seconds),
            seconds,
            bytes_text(cost.transient_bytes),
            f"of {bytes_text(program.needed_bytes)}, does not fit"
            if temporaries is None
            else bytes_text(temporaries),
        )
    return table
