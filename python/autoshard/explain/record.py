"""The record of a plan: all that is told of it, as one JSON of a version.

``docs/design/record.md`` says what every key means. Equal layers are one row of it, with their
count; a row has the id of its first member.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from typing import Any, ClassVar, TypeVar

from autoshard.errors import ParseError
from autoshard.explain.timeline import Timeline, TimelineBar, TimelineRepeat
from autoshard.ir.locations import Frame
from autoshard.planned.summary import PlanSummary

_KEY = "autoshard_record"


@dataclass(frozen=True, slots=True)
class RecordedValue:
    """An argument or a result, or those of several layers."""

    id: str
    """Its name in the user's tree, ``params['w']``; with stars where it stands for several."""
    type: str
    """``4096x11008xbf16``, on all devices together."""
    sharding: str
    """``[{data}, {}]``; empty for what is no tensor."""
    bytes: float
    """On one device, all of them."""
    count: int
    """How many."""
    is_on_host: bool
    """Whether it lives in the memory of the host."""


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """An op, or those of equal layers.

    Numbers are those of one device, in one step, of all of them; None where no cluster is known.
    """

    id: str
    """Id of the first: ``model/layers/0/mlp/dot_general@mlp.py:41#0``: the names of the user's
    scopes, the op, file and line, and which one it is of those."""
    name: str
    """The same without the last number, stars where it stands for several."""
    op: str
    """``dot_general``; of a call of something opaque what it calls."""
    phase: str
    """A value of ``Phase``."""
    frame: int
    """Number of the innermost frame of its call stack; -1: none is known."""
    count: int
    """How many ops."""
    runs: float
    """Runs of each of them in a step, trips of loops."""
    type: str
    """Types of its results, ``8x16xf32, 8xf32``."""
    strategy: str
    """``[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]``."""
    seconds: float | None
    roofline_seconds: float | None
    """What it would take at the peak rates of the chip, split evenly over all devices."""
    flops: float | None
    bytes: float | None
    """Read from and written to memory."""
    bound: str
    """A value of ``Bound``: what its seconds are spent on; empty without seconds."""
    idle_axes: tuple[str, ...]
    """Axes of the mesh along which all devices compute the same."""
    uncut: tuple[int, ...]
    """If there are idle axes: sizes of the op's indices on one device, as far as they are cut."""
    reads: tuple[int, ...] = ()
    """Numbers of the rows whose results the first of them reads, also into and around loops; not of
    those that make scalars, which are not told apart."""

    @property
    def scope(self) -> str:
        """The names of the user's scopes around it, ``model/layers/*/mlp``; empty if none."""
        return self.name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective of the plan, or those of equal layers."""

    id: str
    """``all-gather of params['w'] for operand 1 of ID``, ID being that of the op."""
    kind: str
    """``all-gather``, ``all-reduce``, ..: a value of ``CollectiveKind``."""
    axes: tuple[str, ...] | None
    """Mesh axes whose devices take part; None for irregular groups."""
    bytes: float
    """What one device sends in one run, on a ring."""
    times: float
    """Runs in one step, of all of them."""
    seconds: float | None
    """Seconds of all runs, before overlap; None where no cluster is known."""
    location: str | None
    """``file:line`` of the op that asks for it."""
    of: str
    """``operand 1 of dot_general``: what is moved."""
    value: str
    """Name of the value that is moved; empty for scalars and edges of a halo."""
    type: str
    """Its type, on all devices together."""
    phase: str
    """A value of ``Phase``."""
    frame: int
    """As of an op."""
    scope: str
    """As of an op."""
    count: int
    """How many collectives."""
    ops: tuple[int, ...] = ()
    """Numbers of the rows of ops whose operands they make, or which make what they move."""
    is_operand: bool = False
    """Whether they make operands, so that those ops read them; else they read what these make."""
    exposed_seconds: float | None = None
    """Seconds of all runs in which nothing else is done, as scheduled; None where that is not
    known."""
    slack_seconds: float | None = None
    """How much longer one run could take until something waited for it: the least of all."""

    @property
    def total_bytes(self) -> float:
        """What one device sends in all runs."""
        return self.bytes * self.times


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """How full the memory of one device is at the fullest point of a stretch of the program."""

    op: int
    """Number of the op that runs then, of all that are planned."""
    name: str
    """The op; ``end`` behind the last."""
    location: str | None
    """``file:line``."""
    phase: str
    """A value of ``Phase``."""
    bytes: float


@dataclass(frozen=True)
class Record:
    """All that is told of a plan."""

    name: str
    """The function, or the file."""
    mode: str | None
    """The mode that it was planned in; None where a module alone is known."""
    mesh: str
    """``data=4,model=2``."""
    summary: PlanSummary | None
    """What it costs, without collectives, which are those of the record; None where it was planned
    without a cluster."""
    resharded_bytes: float | None
    """What one device sends in a step, by a plan that was made small in that."""
    missing: str | None
    """Why there is something that nothing is known of."""
    arguments: tuple[RecordedValue, ...] = ()
    results: tuple[RecordedValue, ...] = ()
    frames: tuple[Frame, ...] = ()
    """Frames of the call stacks of ops."""
    ops: tuple[RecordedOp, ...] = ()
    """In the order of the program."""
    collectives: tuple[RecordedCollective, ...] = ()
    """Those that take longest first."""
    memory: tuple[MemoryPoint, ...] = ()
    """Over the step."""
    timeline: Timeline = field(default_factory=Timeline)
    """The step as the plan models it; without bars where nothing is known of it. In the file its
    ``bars`` and ``repeats``."""

    VERSION: ClassVar[int] = 4
    """Version of the JSON."""

    def to_json(self) -> str:
        """The whole file; keys stand in the order of the fields."""
        summary = dict.fromkeys(_SUMMARY_KEYS)
        if self.summary is not None:
            summary = json.loads(self.summary.to_json())
        del summary["collectives"]
        written: dict[str, Any] = {
            _KEY: Record.VERSION,
            "written_by": metadata.version("autoshard"),
            "name": self.name,
            "mode": self.mode,
            **summary,
            "mesh": self.mesh,
            "resharded_bytes": self.resharded_bytes,
            "missing": self.missing,
        }
        for name in _TABLES:
            of = self.timeline if name in _OF_TIMELINE else self
            written[name] = [asdict(row) for row in getattr(of, name)]
        if self.summary is None:
            written["cost_model"] = "bytes"
        return json.dumps(written, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str = "a record") -> Record:
        """Read what ``to_json`` wrote, of this version or an older one.

        Args:
            text: The whole file.
            path: Its name, for errors.

        Raises:
            ParseError: It is no record, or one of a newer version.
        """
        try:
            read = json.loads(text)
            version = read.get(_KEY, 0)
        except (ValueError, AttributeError, RecursionError) as error:
            raise ParseError(
                f"no record can be read: {error}. Give a file that --plan-json or Record.to_json"
                " wrote.",
                path,
            ) from error
        if version not in _UPGRADES and version != Record.VERSION:
            raise ParseError(
                f"the record has version {version}, written by autoshard"
                f" {read.get('written_by', 'of an unknown release')}; this one reads versions up to"
                f" {Record.VERSION}. Use that release, or write the record again.",
                path,
            )
        try:
            return _read(_UPGRADES[version](read) if version in _UPGRADES else read)
        except (ParseError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ParseError(
                f"the record is damaged: {error}. Write it again: plan.record.to_json(), or"
                " autoshard-opt --plan-json.",
                path,
            ) from error


_SUMMARY_KEYS = (*(one.name for one in fields(PlanSummary)), "gap")

_TABLES: dict[str, type[Any]] = {
    "arguments": RecordedValue,
    "results": RecordedValue,
    "frames": Frame,
    "ops": RecordedOp,
    "collectives": RecordedCollective,
    "memory": MemoryPoint,
    "bars": TimelineBar,
    "repeats": TimelineRepeat,
}

_OF_TIMELINE = ("bars", "repeats")

Row = TypeVar("Row")


def _read(read: Mapping[str, Any]) -> Record:
    summary = None
    if read["step_seconds"] is not None:
        taken = {key: read[key] for key in _SUMMARY_KEYS if key in read and key not in _TABLES}
        summary = PlanSummary.from_json(json.dumps(taken))
    tables = {
        name: tuple(_row(kind, entry) for entry in read[name]) for name, kind in _TABLES.items()
    }
    timeline = Timeline(*(tables.pop(name) for name in _OF_TIMELINE))
    return Record(
        name=read["name"],
        mode=read["mode"],
        mesh=read["mesh"],
        summary=summary,
        resharded_bytes=read["resharded_bytes"],
        missing=read["missing"],
        timeline=timeline,
        **tables,
    )


def _row(kind: type[Row], entry: Mapping[str, Any]) -> Row:
    """A row of a table; lists are tuples in it. TypeError if keys are missing or unknown."""
    return kind(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    )


def _of_version_3(read: Mapping[str, Any]) -> dict[str, Any]:
    """Before there was a schedule of a plan: what is exposed of a collective is not known."""
    return dict(read)


def _of_version_2(read: Mapping[str, Any]) -> dict[str, Any]:
    """Before ops said which others read what they make, and collectives which op is theirs."""
    older = "the record was written before version 3: it does not say which op reads which"
    return {**read, "missing": read["missing"] or older}


def _of_version_1(read: Mapping[str, Any]) -> dict[str, Any]:
    """Before there was an order of what a step does."""
    older = "the record was written before version 2: it has no timeline"
    return {**read, "missing": read["missing"] or older, "bars": (), "repeats": ()}


def _of_version_0(read: Mapping[str, Any]) -> dict[str, Any]:
    """What ``--plan-json`` wrote before records had a version: a summary alone.

    Raises:
        KeyError: It is something else.
    """
    collectives = [
        {
            "id": f"{one['kind']} at {one['location']}",
            "of": "",
            "value": "",
            "type": "",
            "phase": "",
            "frame": -1,
            "scope": "",
            "count": 1,
            **one,
        }
        for one in read["collectives"]
    ]
    older = "the record was written before version 1: it has no ops, arguments and memory"
    return {
        **read,
        "name": "",
        "mode": None,
        "resharded_bytes": read.get("resharded_bytes"),
        "missing": read.get("missing") or older,
        **dict.fromkeys(_TABLES, ()),
        "collectives": collectives,
    }


_UPGRADES: dict[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    0: _of_version_0,
    1: _of_version_1,
    2: _of_version_2,
    3: _of_version_3,
}
"""What makes a record of an older version one of this version."""


def without_collectives(summary: PlanSummary) -> PlanSummary:
    """The summary as a record has it."""
    return replace(summary, collectives=())
