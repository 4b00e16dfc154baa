"""A simulated step as a file for https://ui.perfetto.dev, in the trace event format.

One row a stream, times in microseconds. Of a loop the trips are drawn until they repeat; one event
stands for all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.verify.schedule.schedule import Schedule, Stream
from autoshard.writing import write_file

_MICROSECOND = 1e-6


def trace_json(schedule: Schedule) -> dict[str, Any]:
    """The events of a simulated step as a JSON object."""
    return events_json(
        TraceEvent(
            event.stream.value,
            event.name,
            event.start,
            event.seconds,
            {"line": event.place, "op": event.op_name},
        )
        for event in schedule.events
    )


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that takes its time on a row."""

    stream: str
    """Value of the ``Stream`` whose row it is on."""
    name: str
    start: float
    """Seconds since the step began."""
    seconds: float
    told: Mapping[str, Any]
    """What is shown where one clicks at it; what is empty is left out."""


def events_json(events: Iterable[TraceEvent]) -> dict[str, Any]:
    """Events as a JSON object, a row a stream.

    Source: "Trace Event Format", Google, complete events (``ph: X``) and names of threads.
    """
    rows = {stream.value: number for number, stream in enumerate(Stream)}
    drawn: list[dict[str, Any]] = [
        {
            "ph": "X",
            "name": event.name,
            "pid": 0,
            "tid": rows[event.stream],
            "ts": event.start / _MICROSECOND,
            "dur": event.seconds / _MICROSECOND,
            "args": {key: value for key, value in event.told.items() if value},
        }
        for event in events
    ]
    used = {event["tid"] for event in drawn}
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": stream}}
        for stream, row in rows.items()
        if row in used
    ]
    return {"displayTimeUnit": "ns", "traceEvents": named + drawn}


def write_trace(schedule: Schedule, path: Path) -> None:
    """Write the events of a step.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(str(path), f"{json.dumps(trace_json(schedule))}\n".encode())
