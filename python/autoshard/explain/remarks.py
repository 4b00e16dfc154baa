"""Remarks on a plan at the user's lines, in the three kinds of LLVM: passed, missed, analysis.

passed     something was done: a parameter is cut, a value is computed again
missed     something was not: devices compute the same, communication is not hidden
analysis   why a line takes as long as it does, and what fills the memory

Source: LLVM, "Remarks", https://llvm.org/docs/Remarks.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod

from autoshard.explain.bound import Bound
from autoshard.explain.headline import function_name, headline_of, user_frame
from autoshard.explain.headline_text import short_scope
from autoshard.explain.record import Record, RecordedOp, RecordedValue
from autoshard.planned.summary import bytes_text, seconds_text

LEAST_SHARE = 0.005
"""Share of the step's seconds, or of the peak's bytes: what is less gets no remark."""


class RemarkKind(Enum):
    """Kinds of remarks, as LLVM has them."""

    PASSED = "passed"
    MISSED = "missed"
    ANALYSIS = "analysis"


class Rule(Enum):
    """What remarks are about: a name for files, and what it means."""

    CUT = ("Cut", "An argument is cut, so that each device holds a part of it.")
    WHOLE = ("Whole", "An argument is whole on every device.")
    ON_HOST = ("OnHost", "A value lives in the memory of the host.")
    COMPUTED_AGAIN = ("ComputedAgain", "A value is computed again instead of being kept.")
    COMPUTED_ALIKE = ("ComputedAlike", "Several devices compute the same.")
    EXPOSED = ("ExposedCommunication", "A step waits for a collective.")
    TIME = ("Time", "What the time of an op is spent on.")
    PEAK = ("Peak", "A tensor that fills the memory at the worst moment of a step.")

    def __init__(self, label: str, meaning: str) -> None:
        self.label = label
        self.meaning = meaning


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to know of a line of the user's code."""

    kind: RemarkKind
    rule: Rule
    message: str
    file: str | None
    """None where no line has to do with it, as of an argument."""
    line: int
    """0 without a file."""
    function: str
    """Name of the function around the line; that of the program without a file."""
    seconds: float
    """Seconds of a step that it is about; 0 if it is about none."""
    bytes: float
    """Bytes of a device that it is about; 0 if it is about none."""


def remarks_of(record: Record, least_share: float = LEAST_SHARE) -> list[Remark]:
    """All remarks on a plan; what they are about most first, of each kind.

    Args:
        record: Of a plan for a cluster.
        least_share: Of the step's seconds or the peak's bytes: what is less is left out.

    Raises:
        PlanError: The plan was made without a cluster.
    """
    found = list(_Remarks(record, least_share).all())
    order = list(RemarkKind)
    return sorted(found, key=lambda one: (order.index(one.kind), -one.seconds, -one.bytes))


class _Remarks:
    """One walk over a record."""

    def __init__(self, record: Record, least_share: float) -> None:
        headline = headline_of(record)
        self.record = record
        self.summary = headline.summary
        sent = self.summary.communication_seconds
        self.exposed = headline.exposed_seconds / sent if sent > 0 else 0.0
        self.least_seconds = least_share * self.summary.step_seconds
        self.least_bytes = least_share * self.summary.peak_bytes_per_device
        self.sizes = {axis.name: axis.size for axis in self.summary.axes}

    def all(self) -> Iterator[Remark]:
        for value in self.record.arguments:
            yield from self._of_argument(value)
        for one in self.summary.recomputed:
            text = f"{_times(one.name, one.count)} computed again: {bytes_text(one.bytes)} not kept"
            yield self._at(
                RemarkKind.PASSED, Rule.COMPUTED_AGAIN, text, one.location, 0.0, one.bytes
            )
        for op in self.record.ops:
            yield from self._of_op(op)
        yield from self._of_collectives()
        yield from self._of_peak()

    def _of_argument(self, value: RecordedValue) -> Iterator[Remark]:
        if value.bytes < self.least_bytes:
            return
        name = _times(value.id, value.count)
        held = f"{bytes_text(value.bytes)} on each device"
        if value.is_on_host:
            kind, rule, text = RemarkKind.PASSED, Rule.ON_HOST, f"{name} in the host's memory"
        elif any(sign.isalnum() for sign in value.sharding):
            kind, rule = RemarkKind.PASSED, Rule.CUT
            text = f"{name} of {value.type} cut as {value.sharding}: {held}"
        else:
            kind, rule = RemarkKind.MISSED, Rule.WHOLE
            text = f"{name} of {value.type} is whole: {held}"
        yield Remark(kind, rule, text, None, 0, self.record.name, 0.0, value.bytes)

    def _of_op(self, op: RecordedOp) -> Iterator[Remark]:
        seconds = op.seconds or 0.0
        what = f"{_times(op.op, op.count)} of {op.type}{_in_scope(op.scope)}"
        if seconds >= self.least_seconds:
            distance = ""
            if op.roofline_seconds and op.bound != Bound.LAUNCH.value:
                distance = f", {seconds / op.roofline_seconds:.2f} x the roofline"
            text = (
                f"{what} takes {seconds_text(seconds)} a step ({op.phase}), bound by"
                f" {op.bound}{distance}"
            )
            yield self._in_frame(RemarkKind.ANALYSIS, Rule.TIME, text, op.frame, seconds)
        devices = prod(self.sizes.get(axis, 1) for axis in op.idle_axes)
        wasted = seconds * (1 - 1 / devices)
        if wasted >= self.least_seconds:
            text = (
                f"{what} is computed alike on {devices} devices ({', '.join(op.idle_axes)}),"
                f" {seconds_text(wasted)} a step{self._why_idle(op)}"
            )
            yield self._in_frame(RemarkKind.MISSED, Rule.COMPUTED_ALIKE, text, op.frame, wasted)

    def _why_idle(self, op: RecordedOp) -> str:
        """``: none of its dims 25, 7 is divided by 4``; nothing where one is."""
        sizes = [self.sizes[axis] for axis in op.idle_axes if axis in self.sizes]
        if any(left % size == 0 for left in op.uncut for size in sizes):
            return ""
        dims = ", ".join(map(str, op.uncut)) or "1"
        by = " or ".join(map(str, sorted(set(sizes))))
        return f": of its dims, {dims} on a device, none is divided by {by}"

    def _of_collectives(self) -> Iterator[Remark]:
        for one in self.record.collectives:
            seconds = (one.seconds or 0.0) * self.exposed
            if seconds < self.least_seconds:
                continue
            value = f"{one.value} {one.type}".strip() or "a scalar"
            text = (
                f"{_times(one.kind, one.count)} over {', '.join(one.axes or ())} of {value}"
                f" ({one.of}){_in_scope(one.scope)}: {seconds_text(seconds)} a step are not hidden,"
                f" {bytes_text(one.total_bytes)} sent"
            )
            if one.frame >= 0:
                yield self._in_frame(RemarkKind.MISSED, Rule.EXPOSED, text, one.frame, seconds)
            else:
                yield self._at(RemarkKind.MISSED, Rule.EXPOSED, text, one.location, seconds)

    def _of_peak(self) -> Iterator[Remark]:
        for one in self.summary.peak_values:
            if one.bytes >= self.least_bytes:
                text = (
                    f"{_times(one.name, one.count)} of {one.type} as {one.sharding}:"
                    f" {bytes_text(one.bytes)} at the peak"
                )
                yield self._at(RemarkKind.ANALYSIS, Rule.PEAK, text, one.location, bytes_=one.bytes)

    def _in_frame(
        self, kind: RemarkKind, rule: Rule, text: str, frame: int, seconds: float
    ) -> Remark:
        """At the user's line of a call stack."""
        if frame < 0:
            return Remark(kind, rule, text, None, 0, self.record.name, seconds, 0.0)
        user = self.record.frames[user_frame(self.record.frames, frame)]
        name = function_name(user) or self.record.name
        return Remark(kind, rule, text, user.file, user.line, name, seconds, 0.0)

    def _at(
        self,
        kind: RemarkKind,
        rule: Rule,
        text: str,
        location: str | None,
        seconds: float = 0.0,
        bytes_: float = 0.0,
    ) -> Remark:
        """At ``file:line``."""
        file, _, line = (location or "").rpartition(":")
        if not file or not line.isdigit():
            return Remark(kind, rule, text, None, 0, self.record.name, seconds, bytes_)
        return Remark(kind, rule, text, file, int(line), self.record.name, seconds, bytes_)


def _in_scope(scope: str) -> str:
    return f" in {short_scope(scope)}" if scope else ""


def _times(name: str, count: int) -> str:
    return name if count == 1 else f"{name} x {count}"
