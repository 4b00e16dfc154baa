"""A schedule as text: a row a stage, time from left to right.

    stage 0  F0 F1 .. .. .. B0 F2 B1 ..
    stage 1  .. F0 B0 F1 B1 .. .. F2 B2

``F0`` is the work F of micro-batch 0, ``F0'`` of the second chunk of the model that the stage has.
"""

from __future__ import annotations

from autoshard.schedule.list_scheduler import Run, Schedule
from autoshard.schedule.work import lower_bound

IDLE = "."


def gantt(schedule: Schedule, width: int = 160, transfer_seconds: float = 0) -> str:
    """The chart, with what the schedule comes to in front of it.

    Args:
        schedule: Drawn to scale.
        width: Columns at most; what has too few of them for its name is drawn with its first
            letters.
        transfer_seconds: With which it was made, for the bound.
    """
    bound = lower_bound(schedule.works, schedule.micro_batches, transfer_seconds)
    head = (
        f"{schedule.stages} stages, {schedule.micro_batches} micro-batches:"
        f" {float(schedule.seconds):.4g} s, bubble {100 * float(schedule.bubble):.1f} %,"
        f" no schedule is under {float(bound):.4g} s"
    )
    margin = len(f"stage {schedule.stages - 1}  ")
    scale = _scale(schedule, width - margin)
    flights = schedule.in_flight()
    rows = [
        f"{f'stage {stage}':{margin}}{_row(schedule, stage, scale)}  keeps {flights[stage]}"
        for stage in range(schedule.stages)
    ]
    return "\n".join([head, *rows])


def _name(schedule: Schedule, run: Run) -> str:
    work = schedule.works[run.work]
    return f"{work.name}{run.micro_batch}{chr(39) * work.chunk}"


def _scale(schedule: Schedule, width: int) -> float:
    """Columns a second: enough for every name, and a space behind it, if there are so many."""
    wanted = [
        (len(_name(schedule, run)) + 1) / float(run.end - run.start)
        for run in schedule.runs
        if run.end > run.start
    ]
    seconds = float(schedule.seconds)
    return min(max(wanted, default=1), width / seconds if seconds else 1)


def _row(schedule: Schedule, stage: int, scale: float) -> str:
    columns = [IDLE] * round(float(schedule.seconds) * scale)
    for run in schedule.runs:
        if schedule.works[run.work].stage != stage:
            continue
        first, last = round(float(run.start) * scale), round(float(run.end) * scale)
        text = _name(schedule, run)[: max(last - first - 1, 1)]
        columns[first:last] = text.ljust(last - first)[: last - first]
    return "".join(columns)
