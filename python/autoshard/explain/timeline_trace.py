"""The step as a plan models it, as a file for https://ui.perfetto.dev: a row a lane.

A loop, and layers that are alike, are there once, as wide as all of their rounds.
"""

from __future__ import annotations

import json

from autoshard.errors import PlanError
from autoshard.explain.record import Record
from autoshard.verify.schedule.trace import TraceEvent, events_json


def timeline_trace(record: Record) -> str:
    """The bars of a record's timeline, in the trace event format.

    Raises:
        PlanError: The record has none.
    """
    timeline = record.timeline
    if not timeline.bars:
        raise PlanError(
            f"{record.name}: there is no timeline to trace"
            f"{f': {record.missing}' if record.missing else ''}. Plan it with a cluster."
        )
    events = [
        TraceEvent(
            lane,
            bar.name,
            bar.start,
            bar.seconds,
            {
                "line": bar.location,
                "phase": bar.phase,
                "runs": bar.runs,
                "ops": bar.count,
                "rounds": 0 if bar.repeat < 0 else timeline.repeats[bar.repeat].times,
                "hidden us": bar.hidden_seconds * 1e6,
            },
        )
        for bar in timeline.bars
        for lane in bar.lanes
    ]
    return json.dumps(events_json(events)) + "\n"
