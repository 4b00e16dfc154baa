"""The headline of a plan: what a step is spent on, where, and how far that is from the roofline.

    step = compute + exposed communication + exposed transfers to and from the host
    exposed communication of a collective = its seconds * exposed / communication of the plan
    wasted = compute - roofline + exposed communication

The model knows one share of communication that hides, not which collective does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoshard.errors import PlanError
from autoshard.explain.bound import Bound
from autoshard.explain.folding import of_any_layer
from autoshard.explain.record import Record, RecordedCollective, RecordedOp
from autoshard.explain.record_names import Phase
from autoshard.ir.locations import LIBRARIES, Frame
from autoshard.planned.summary import PlanSummary

SLICES = "slices of reshards"
"""Cutting values before and after collectives, which is compute of no op."""

_ROUNDED = 1e-9
"""Part of the compute by which its sum may be off."""


@dataclass(frozen=True, slots=True)
class Share:
    """Something that a step is spent on."""

    what: str
    """``matrix units``, ``links of axis model (x1,y0)``."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step: a phase, or a function of the user."""

    name: str
    """``backward``; ``layers/*/mlp``, or a function without scopes, ``loss``."""
    place: str
    """``model.py:41-43``: its file and lines; empty for a phase."""
    ops: int
    compute_seconds: float
    exposed_seconds: float
    """Seconds of communication that nothing hides."""
    roofline_seconds: float
    """Compute at the peak of the chip, split evenly."""
    spent: tuple[Share, ...]
    """What its time is spent on, largest first."""

    @property
    def bound(self) -> str:
        """What most of its time is spent on; empty for no time."""
        return self.spent[0].what if self.spent else ""

    def spent_on(self, what: str) -> float:
        """Seconds that it spends on something."""
        return next((share.seconds for share in self.spent if share.what == what), 0.0)

    @property
    def seconds(self) -> float:
        """Seconds of the step that it takes."""
        return self.compute_seconds + self.exposed_seconds

    @property
    def wasted_seconds(self) -> float:
        """What it takes beyond the roofline."""
        return self.seconds - self.roofline_seconds


@dataclass(frozen=True)
class Headline:
    """What a plan's step is spent on; seconds of one device in one step."""

    name: str
    mesh: str
    summary: PlanSummary
    missing: str | None
    """Why something does not add up; None if all does."""
    exposed_seconds: float
    """Seconds of communication that are a part of the step."""
    shares: tuple[Share, ...]
    """Together the step, largest first."""
    phases: tuple[Part, ...]
    """In their order; without seconds of reshards that belong to no op."""
    functions: tuple[Part, ...]
    """Those that take longest first; likewise."""

    @property
    def bottleneck(self) -> Share:
        """What most of the step is spent on."""
        return self.shares[0]

    @property
    def worst_function(self) -> Part | None:
        """The function that spends most on the bottleneck; None if none does."""
        what = self.bottleneck.what
        worst = max(self.functions, key=lambda part: part.spent_on(what), default=None)
        return worst if worst is not None and worst.spent_on(what) > 0 else None


def headline_of(record: Record) -> Headline:
    """The headline of a record.

    Raises:
        PlanError: The plan was made without a cluster.
    """
    summary = record.summary
    if summary is None:
        raise PlanError(
            f"plan of {record.name or 'a module'}: {record.missing}. What a step is spent on is"
            ' known of plans for a cluster: cluster="v5e:4x4".'
        )
    hosted = summary.host_exposed_seconds
    exposed = max(0.0, summary.step_seconds - summary.compute_seconds - hosted)
    sent = summary.communication_seconds
    parts = _Parts(record, exposed / sent if sent > 0 else 0.0)
    return Headline(
        name=record.name,
        mesh=record.mesh,
        summary=summary,
        missing=record.missing,
        exposed_seconds=exposed,
        shares=_shares(record, parts.spending(record.ops, record.collectives), summary),
        phases=tuple(parts.phases()),
        functions=tuple(parts.functions()),
    )


def _shares(record: Record, spent: _Spending, summary: PlanSummary) -> tuple[Share, ...]:
    """Shares of the whole step."""
    of_ops = sum(spent.found.get(bound.value, 0.0) for bound in Bound)
    # Slices before and after collectives, and what a collective matmul takes more.
    rest = SLICES if record.ops else "compute"
    beyond = summary.compute_seconds - of_ops
    spent.add(rest, beyond if beyond > summary.compute_seconds * _ROUNDED else 0.0)
    spent.add(Bound.HOST.value, summary.host_exposed_seconds)
    return spent.shares() or (Share("nothing", 0.0),)


class _Spending:
    """Seconds by what they are spent on."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def add(self, what: str, seconds: float) -> None:
        """Nothing is not spent on anything."""
        if seconds > 0:
            self.found[what] = self.found.get(what, 0.0) + seconds

    def shares(self) -> tuple[Share, ...]:
        """Largest first."""
        ordered = sorted(self.found.items(), key=lambda entry: -entry[1])
        return tuple(Share(what, seconds) for what, seconds in ordered)


def _links(one: RecordedCollective, physical: dict[str, str]) -> str:
    """``links of axis model (x1,y0)``, ``links of axes data and model (x; 2 of y, z)``."""
    axes = one.axes or ()
    parts = [part for axis in axes if (part := physical.get(axis, ""))]
    made_of = ("; " if any(", " in part for part in parts) else ",").join(parts)
    named = " and ".join(axes) or "irregular groups"
    plural = "axes" if len(axes) > 1 else "axis"
    on = f" ({made_of})" if made_of and made_of != ",".join(axes) else ""
    return f"{Bound.LINKS.value} of {plural} {named}{on}"


class _Parts:
    """Ops and collectives, grouped."""

    def __init__(self, record: Record, exposed: float) -> None:
        self.record = record
        self.exposed = exposed
        """Share of the seconds of a collective that nothing hides."""
        axes = () if record.summary is None else record.summary.axes
        self.physical = {axis.name: axis.physical for axis in axes}
        self.users = [user_frame(record.frames, frame) for frame in range(len(record.frames))]

    def phases(self) -> Iterable[Part]:
        """In the order of the step."""
        for phase in Phase:
            ops = [op for op in self.record.ops if op.phase == phase.value]
            moves = [one for one in self.record.collectives if one.phase == phase.value]
            if ops:
                yield self._part(phase.value, "", ops, moves)

    def functions(self) -> list[Part]:
        """Those that take longest first."""
        groups: dict[tuple[str, str, str], tuple[list[RecordedOp], list[RecordedCollective]]] = {}
        for op in self.record.ops:
            groups.setdefault(self._key(op.scope, op.frame), ([], []))[0].append(op)
        for one in self.record.collectives:
            groups.setdefault(self._key(one.scope, one.frame), ([], []))[1].append(one)
        found: list[Part] = []
        for (scope, function, file), (ops, moves) in groups.items():
            place = self._place(file, [row.frame for row in (*ops, *moves)])
            found.append(self._part(scope or function or "elsewhere", place, ops, moves))
        return sorted((part for part in found if part.seconds > 0), key=lambda part: -part.seconds)

    def _key(self, scope: str, frame: int) -> tuple[str, str, str]:
        if frame < 0:
            return of_any_layer(scope), "", ""
        user = self.record.frames[self.users[frame]]
        return of_any_layer(scope), function_name(user), user.file

    def _place(self, file: str, frames: Sequence[int]) -> str:
        """``model.py:41-43``."""
        if not file:
            return ""
        lines = [self.record.frames[self.users[frame]].line for frame in frames]
        first, last = min(lines), max(lines)
        return f"{file.rpartition('/')[2]}:{first}" + (f"-{last}" if last > first else "")

    def _part(
        self,
        name: str,
        place: str,
        ops: Sequence[RecordedOp],
        moves: Sequence[RecordedCollective],
    ) -> Part:
        return Part(
            name=name,
            place=place,
            ops=sum(op.count for op in ops),
            compute_seconds=sum(op.seconds or 0.0 for op in ops),
            exposed_seconds=sum(one.seconds or 0.0 for one in moves) * self.exposed,
            roofline_seconds=sum(op.roofline_seconds or 0.0 for op in ops),
            spent=self.spending(ops, moves).shares(),
        )

    def spending(self, ops: Sequence[RecordedOp], moves: Sequence[RecordedCollective]) -> _Spending:
        """What ops, and collectives as far as they are exposed, are spent on."""
        spent = _Spending()
        for op in ops:
            spent.add(op.bound, op.seconds or 0.0)
        for one in moves:
            spent.add(_links(one, self.physical), (one.seconds or 0.0) * self.exposed)
        return spent


def user_frame(frames: Sequence[Frame], number: int) -> int:
    """The innermost frame outside of installed libraries; the innermost of all if there is none."""
    found = number
    while found >= 0:
        if not any(part in frames[found].file for part in LIBRARIES):
            return found
        found = frames[found].caller
    return number


def function_name(frame: Frame) -> str:
    """``step.loss`` of ``step.<locals>.loss``."""
    return frame.function.replace(".<locals>", "")
