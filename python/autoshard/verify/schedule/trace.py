"""A simulated step as a file for https://ui.perfetto.dev, in the trace event format.

One row a stream, times in microseconds. Of a loop the trips are drawn until they repeat; one event
stands for all others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autoshard.verify.schedule.schedule import Schedule, Stream
from autoshard.writing import write_file

_MICROSECOND = 1e-6


def trace_json(schedule: Schedule) -> dict[str, Any]:
    """The events as a JSON object.

    Source: "Trace Event Format", Google, complete events (``ph: X``) and names of threads.
    """
    rows = {stream: number for number, stream in enumerate(Stream)}
    used = [stream for stream in Stream if stream in schedule.busy_seconds]
    named: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 0,
            "tid": rows[stream],
            "args": {"name": stream.value},
        }
        for stream in used
    ]
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "name": event.name,
            "pid": 0,
            "tid": rows[event.stream],
            "ts": event.start / _MICROSECOND,
            "dur": event.seconds / _MICROSECOND,
            "args": {
                key: value for key, value in (("line", event.place), ("op", event.op_name)) if value
            },
        }
        for event in schedule.events
    ]
    return {"displayTimeUnit": "ns", "traceEvents": named + events}


def write_trace(schedule: Schedule, path: Path) -> None:
    """Write the events of a step.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(str(path), f"{json.dumps(trace_json(schedule))}\n".encode())
