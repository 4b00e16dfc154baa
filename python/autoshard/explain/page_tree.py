"""The program of a record as a tree of calls: functions of the user with what they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autoshard.explain.headline import function_name
from autoshard.explain.record import Record, RecordedOp
from autoshard.ir.locations import Frame


@dataclass(slots=True)
class CallNode:
    """A line of a function, and what it calls and computes."""

    frames: list[Frame]
    """It, and those around it that do nothing else."""
    seconds: float = 0.0
    """Seconds of compute in it, and in all that it calls."""
    count: int = 0
    """How many ops."""
    ops: list[RecordedOp] = field(default_factory=list[RecordedOp])
    """Its own, without those of what it calls."""
    calls: list[CallNode] = field(default_factory=list["CallNode"])
    """Those that take longest first."""

    @property
    def label(self) -> str:
        """``loss (mlp.py:41) › Dense.__call__ (linear.py:287)``."""
        return " › ".join(_frame_text(frame) for frame in self.frames)


def call_tree(record: Record) -> list[CallNode]:
    """The outermost lines; what all ops have around them is left out.

    Ops without a location are in a node without a frame.
    """
    nodes = [CallNode([frame]) for frame in record.frames]
    top = CallNode([])
    for node, frame in zip(nodes, record.frames, strict=True):
        (top if frame.caller < 0 else nodes[frame.caller]).calls.append(node)
    for op in record.ops:
        (top if op.frame < 0 else nodes[op.frame]).ops.append(op)
    # Callers stand before what they call.
    for node in (*reversed(nodes), top):
        node.count = sum(op.count for op in node.ops) + sum(call.count for call in node.calls)
        node.seconds = sum(op.seconds or 0.0 for op in node.ops)
        node.seconds += sum(call.seconds for call in node.calls)
        node.calls = [call for call in node.calls if call.count]
        node.calls.sort(key=lambda call: -call.seconds)
    while len(top.calls) == 1 and not top.ops and not top.calls[0].ops:
        (top,) = top.calls
    found = [_joined(node) for node in top.calls]
    if top.ops:
        seconds = sum(op.seconds or 0.0 for op in top.ops)
        found.append(CallNode(top.frames, seconds, sum(op.count for op in top.ops), top.ops))
    return found


def _joined(node: CallNode) -> CallNode:
    """A node with the one that is all it has."""
    while len(node.calls) == 1 and not node.ops:
        (call,) = node.calls
        node = CallNode(
            [*node.frames, *call.frames], call.seconds, call.count, call.ops, call.calls
        )
    node.calls = [_joined(call) for call in node.calls]
    return node


def _frame_text(frame: Frame) -> str:
    place = f"{frame.file.rpartition('/')[2]}:{frame.line}"
    name = function_name(frame)
    return f"{name} ({place})" if name else place


def walk(nodes: list[CallNode]) -> Iterator[CallNode]:
    """All nodes, callers first."""
    for node in nodes:
        yield node
        yield from walk(node.calls)
