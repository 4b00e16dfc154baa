"""A plan for Google's Model Explorer: the program as its graph, and node data on it.

Ops of equal layers are one node, and a collective is one, within the user's scopes, below the phase
of the step. Data flows forward in the order of the program; what goes back to the top of a loop, or
from a layer to the next one, has no edge.

Source: https://github.com/google-ai-edge/model-explorer, ``graph_builder.py`` and
``node_data_builder.py``, 2026.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from autoshard.explain.record import Record, RecordedCollective, RecordedOp
from autoshard.planned.summary import bytes_text, seconds_text

_GRADIENT = ({"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e8743b"})
"""Colours of the least and of the most seconds."""


def graph_json(record: Record) -> str:
    """A collection of one graph, as Model Explorer opens it from a file."""
    graph = {"id": _graph_id(record), "nodes": list(_Nodes(record).all())}
    return json.dumps({"label": _graph_id(record), "graphs": [graph]}, indent=1) + "\n"


def node_data_json(record: Record) -> str:
    """Seconds of a step that each node of ``graph_json`` takes, of all its members and runs.

    Those of collectives are before overlap. What nothing is known of has no data.
    """
    nodes = _Nodes(record)
    seconds = {
        name: row.seconds
        for names, rows in ((nodes.op_ids, record.ops), (nodes.ids, record.collectives))
        for name, row in zip(names, rows, strict=True)
        if row.seconds is not None
    }
    data = {
        "results": {name: {"value": value} for name, value in seconds.items()},
        "gradient": _GRADIENT,
    }
    return json.dumps({_graph_id(record): data}, indent=1) + "\n"


def _graph_id(record: Record) -> str:
    return record.name or "plan"


class _Nodes:
    """Nodes of the graph of a record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.op_ids = _told_apart([op.id for op in record.ops])
        self.ids = _told_apart([one.id for one in record.collectives])
        """Those of collectives."""
        self.sources: defaultdict[str, list[str]] = defaultdict(list)
        """For each node those whose results it reads."""
        for number, op in enumerate(record.ops):
            self.sources[self.op_ids[number]] = [
                self.op_ids[source] for source in op.reads if source < number
            ]
        for name, one in zip(self.ids, record.collectives, strict=True):
            for row in one.ops:
                if one.is_operand:
                    self.sources[self.op_ids[row]].append(name)
                else:
                    self.sources[name].append(self.op_ids[row])

    def all(self) -> Iterator[dict[str, Any]]:
        """Ops in the order of the program, then collectives."""
        for name, op in zip(self.op_ids, self.record.ops, strict=True):
            yield self._node(name, op.op, op.phase, op.scope, _attributes(op, self._line(op.frame)))
        for name, one in zip(self.ids, self.record.collectives, strict=True):
            said = _attributes_of_collective(one)
            yield self._node(name, one.kind, one.phase, one.scope, said)

    def _node(
        self, name: str, label: str, phase: str, scope: str, attributes: dict[str, str]
    ) -> dict[str, Any]:
        edges = [
            {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(number)}
            for number, source in enumerate(self.sources[name])
        ]
        return {
            "id": name,
            "label": label,
            "namespace": "/".join(part for part in (phase, scope) if part),
            "attrs": [{"key": key, "value": value} for key, value in attributes.items() if value],
            "incomingEdges": edges,
        }

    def _line(self, frame: int) -> str:
        if frame < 0:
            return ""
        found = self.record.frames[frame]
        return f"{found.file}:{found.line}"


def _told_apart(names: list[str]) -> list[str]:
    """The same with a number behind those that were there before."""
    count: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        count[name] = count.get(name, 0) + 1
        found.append(name if count[name] == 1 else f"{name} ({count[name]})")
    return found


def _attributes(op: RecordedOp, line: str) -> dict[str, str]:
    return {
        "type": op.type,
        "strategy": op.strategy,
        "line": line,
        "count": str(op.count),
        "runs": f"{op.runs:g}",
        "seconds": "" if op.seconds is None else seconds_text(op.seconds),
        "at the roofline": "" if op.roofline_seconds is None else seconds_text(op.roofline_seconds),
        "bound by": op.bound,
        "computed alike along": ", ".join(op.idle_axes),
    }


def _attributes_of_collective(one: RecordedCollective) -> dict[str, str]:
    return {
        "of": one.of,
        "value": one.value,
        "type": one.type,
        "over": "irregular groups" if one.axes is None else ", ".join(one.axes),
        "line": one.location or "",
        "count": str(one.count),
        "bytes sent by one device": bytes_text(one.total_bytes),
        "seconds before overlap": "" if one.seconds is None else seconds_text(one.seconds),
    }
