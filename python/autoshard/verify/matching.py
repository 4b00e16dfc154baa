"""Planned collectives beside those of the compiled program.

Each side is cut into rows of one kind, one set of mesh axes and one source line. Rows are matched
by what is the same, the most alike first, in units of the data they move (a gather of 1 GB is 1 GB
on both sides, whatever it is written as); what one side has more stays for the next round, unless
it is two or four times as much in as many runs: then it is the same data in wider elements.

    1  kind, axes and line
    2  kind and axes
    3  axes and line, another kind: an all-gather that XLA:TPU writes as an all-reduce
    4  axes, another kind
    5  kind and line, other axes: an all-reduce over two axes as one over each

What is left was planned and is absent, or was compiled and not planned. Axes are compared as sets
of devices: parts of one axis that adjoin are one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autoshard.cluster import Cluster
from autoshard.planned.collective import Collective, CollectiveKind, in_mesh_order
from autoshard.planned.summary import CollectiveSummary
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import AxisRef
from autoshard.verify.collective_parts import CollectivePart, collective_parts
from autoshard.verify.collective_seconds import CollectiveSeconds
from autoshard.verify.hlo_collectives import find_collectives
from autoshard.verify.hlo_program import HloProgram


class Verdict(StrEnum):
    """What became of a planned collective."""

    AS_PLANNED = "as planned"
    """Same kind, same axes; the line may be lost."""
    WRITTEN_AS = "as planned, written as another kind"
    """The partitioner did as planned, and a later pass of the compiler wrote another kind."""
    OTHER_KIND = "another kind"
    OTHER_AXES = "over other axes"
    ABSENT = "planned, but absent"
    NOT_PLANNED = "not planned"


@dataclass(frozen=True, slots=True)
class CollectiveSide:
    """Collectives of one kind over the same axes, on one side."""

    kind: CollectiveKind
    meant: CollectiveKind
    """What the partitioner wanted; of the plan the same as ``kind``."""
    axes: tuple[AxisRef, ...] | None
    """None: no set of axes gives the groups."""
    bytes: float
    """What one device sends in one step."""
    seconds: float
    """In one step, by the cluster's formulas."""


@dataclass(frozen=True, slots=True)
class CollectiveMatch:
    """Collectives of the plan beside what the compiler made of them."""

    verdict: Verdict
    planned: CollectiveSide | None
    compiled: CollectiveSide | None
    place: str | None
    """``file:line`` of the plan's, or else of the compiled program."""
    op_name: str
    """JAX's name of the op; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class Matching:
    """All collectives of a plan and of its compiled program."""

    rows: tuple[CollectiveMatch, ...]
    """Differences first, and of these what moves the most bytes; then what is as planned."""

    @property
    def planned_bytes(self) -> float:
        """What one device sends in one step."""
        return sum(row.planned.bytes for row in self.rows if row.planned)

    @property
    def compiled_bytes(self) -> float:
        """What one device sends in one step."""
        return sum(row.compiled.bytes for row in self.rows if row.compiled)

    @property
    def planned_seconds(self) -> float:
        """Seconds of the plan's collectives in one step."""
        return sum(row.planned.seconds for row in self.rows if row.planned)

    @property
    def compiled_seconds(self) -> float:
        """Seconds of the compiled program's collectives in one step."""
        return sum(row.compiled.seconds for row in self.rows if row.compiled)

    @property
    def byte_error(self) -> float:
        """``compiled / planned - 1`` of all bytes; infinite where only one side has any."""
        if self.planned_bytes == 0:
            return 0.0 if self.compiled_bytes == 0 else float("inf")
        return self.compiled_bytes / self.planned_bytes - 1

    @property
    def agreement(self) -> float:
        """Share of the bytes whose kind and axes are right: the smaller of that of the planned
        bytes and that of the compiled ones; 1 where nothing moves."""
        return self._share(Verdict.AS_PLANNED)

    @property
    def partitioner_agreement(self) -> float:
        """The same, and what was only written as another kind is right too."""
        return self._share(Verdict.AS_PLANNED, Verdict.WRITTEN_AS)

    def _share(self, *verdicts: Verdict) -> float:
        shares = [
            sum(_side_bytes(row, side) for row in self.rows if row.verdict in verdicts) / whole
            for side, whole in (("planned", self.planned_bytes), ("compiled", self.compiled_bytes))
            if whole > 0
        ]
        return min(shares, default=1.0)

    def of(self, verdict: Verdict) -> list[CollectiveMatch]:
        """Rows with this verdict."""
        return [row for row in self.rows if row.verdict is verdict]


def _side_bytes(row: CollectiveMatch, side: str) -> float:
    found = row.planned if side == "planned" else row.compiled
    return found.bytes if found else 0.0


def match_collectives(
    planned: Iterable[Collective],
    hlo_text: str,
    mesh: Mesh,
    cluster: Cluster,
    *,
    unknown_trip_count: int = 1,
) -> Matching:
    """Match a plan's collectives with those of its compiled program.

    Args:
        planned: ``plan.collectives``, or ``collectives_of_summary`` of a plan's JSON.
        hlo_text: ``compiled.as_text()``.
        mesh: The plan's mesh, whose device numbers are the partition numbers.
        cluster: For the times of both sides.
        unknown_trip_count: As for ``estimate_step``.

    Raises:
        ParseError: The text cannot be read.
        ClusterError: The mesh does not fit the cluster.
    """
    program = HloProgram.parse(hlo_text)
    found = find_collectives(program, mesh, unknown_trip_count)
    seconds = CollectiveSeconds(cluster, mesh)
    times = [seconds.of(one.collective, one.groups) for one in found]
    parts = collective_parts(program, found, times)
    left = [_planned_row(one, mesh, seconds) for one in planned]
    right = [_compiled_row(part, mesh) for part in parts]
    return match_rows(_folded(left), _folded(right))


def collectives_of_summary(summaries: Iterable[CollectiveSummary], mesh: Mesh) -> list[Collective]:
    """The collectives of a plan's JSON as such; bytes held follow from bytes sent."""
    found: list[Collective] = []
    for one in summaries:
        refs = in_mesh_order((AxisRef(name) for name in one.axes), mesh)
        kind = CollectiveKind(one.kind)
        size = 1
        for ref in refs:
            size *= mesh.axis_size(ref.name)
        size = 2 if kind is CollectiveKind.PERMUTE else size
        unit = Collective(kind, refs, size, 1.0).moved_bytes
        times = round(one.times)
        held = one.bytes * one.times / max(1, times) / unit if unit else 0.0
        found.append(Collective(kind, refs, size, held, times, place=one.location))
    return found


# Rows -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CollectiveRow:
    """Collectives of one kind, axes and line on one side; what is not matched yet."""

    kind: CollectiveKind
    meant: CollectiveKind
    axes: tuple[AxisRef, ...] | None
    place: str | None
    op_name: str
    data: float
    """Bytes of the data that moves in one step, the whole array of a gather or scatter."""
    bytes: float
    """What one device sends in one step."""
    seconds: float
    runs: float
    """Arrays that move in one step."""

    def take(self, share: float) -> CollectiveSide:
        """Split off a share of it."""
        sent, seconds = self.bytes * share, self.seconds * share
        side = CollectiveSide(self.kind, self.meant, self.axes, sent, seconds)
        self.data -= self.data * share
        self.runs -= self.runs * share
        self.bytes -= side.bytes
        self.seconds -= side.seconds
        return side


def _planned_row(one: Collective, mesh: Mesh, seconds: CollectiveSeconds) -> CollectiveRow:
    axes = None if one.axes is None else _present(in_mesh_order(one.axes, mesh), mesh)
    taken = 0.0 if axes is None else seconds.over_axes(one, axes, mesh)
    return _row(one, one.kind, axes, taken)


def _compiled_row(part: CollectivePart, mesh: Mesh) -> CollectiveRow:
    one = part.collective
    axes = None if one.axes is None else _present(one.axes, mesh)
    return _row(one, part.meant, axes, part.seconds)


def _row(
    one: Collective, meant: CollectiveKind, axes: tuple[AxisRef, ...] | None, seconds: float
) -> CollectiveRow:
    whole = one.local_bytes
    if one.kind is CollectiveKind.ALL_GATHER:
        whole *= one.group_size
    return CollectiveRow(
        kind=one.kind,
        meant=meant,
        axes=axes,
        place=_line(one.place),
        op_name=one.op_name,
        data=whole * one.times,
        bytes=one.total_bytes,
        seconds=seconds * one.times,
        runs=one.times,
    )


def _present(axes: tuple[AxisRef, ...], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Without axes of one device."""
    return tuple(ref for ref in axes if (ref.size or mesh.axis_size(ref.name)) > 1)


def _line(place: str | None) -> str | None:
    """``file:line`` of ``file:line:column``."""
    if place is None:
        return None
    parts = place.rsplit(":", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return f"{parts[0]}:{parts[1]}"
    return place


def _folded(rows: Iterable[CollectiveRow]) -> list[CollectiveRow]:
    """Those that are alike as one."""
    found: dict[Hashable, CollectiveRow] = {}
    for row in rows:
        if row.axes == ():
            continue
        known = found.setdefault((row.kind, row.meant, row.axes, row.place), row)
        if known is not row:
            known.data += row.data
            known.bytes += row.bytes
            known.seconds += row.seconds
            known.runs += row.runs
    return list(found.values())


# Rounds -----------------------------------------------------------------------------------------

_Key = Callable[[CollectiveRow], Hashable]

_SAME = 1e-3
"""Sizes that differ by less are one size."""


def _is_as_written(row: CollectiveRow) -> bool:
    return row.kind is row.meant


def match_rows(planned: Sequence[CollectiveRow], compiled: Sequence[CollectiveRow]) -> Matching:
    """The rounds of the module's text; the rows are used up."""
    found: list[CollectiveMatch] = []
    rounds: tuple[tuple[Verdict | None, _Key, _Key], ...] = (
        (None, lambda row: (row.kind, row.axes, row.place), lambda r: (r.meant, r.axes, r.place)),
        (None, lambda row: (row.kind, row.axes), lambda row: (row.meant, row.axes)),
        (
            Verdict.OTHER_KIND,
            lambda row: (row.axes, row.place),
            lambda row: (row.axes, row.place),
        ),
        (Verdict.OTHER_KIND, lambda row: row.axes, lambda row: row.axes),
        (
            Verdict.OTHER_AXES,
            lambda row: (row.kind, row.place),
            lambda row: (row.meant, row.place),
        ),
    )
    for verdict, of_planned, of_compiled in rounds:
        found.extend(_matched(planned, compiled, verdict, of_planned, of_compiled))
    for row in planned:
        if row.data > 0:
            place, name = row.place, row.op_name
            found.append(CollectiveMatch(Verdict.ABSENT, row.take(1.0), None, place, name))
    for row in compiled:
        if row.data > 0:
            place, name = row.place, row.op_name
            found.append(CollectiveMatch(Verdict.NOT_PLANNED, None, row.take(1.0), place, name))
    return Matching(tuple(sorted(found, key=_order)))


def _order(row: CollectiveMatch) -> tuple[bool, float]:
    largest = max(_side_bytes(row, "planned"), _side_bytes(row, "compiled"))
    return row.verdict is Verdict.AS_PLANNED, -largest


def _is_other_width(planned: CollectiveRow, compiled: CollectiveRow) -> bool:
    """Whether it is the same data in elements of another width: XLA:CPU sends bf16 as f32.

    More arrays of one size are more data.
    """
    more = compiled.data / planned.data
    if abs(compiled.runs / planned.runs - 1) > _SAME:
        return False
    return any(abs(more / width - 1) < _SAME for width in (4, 2, 1 / 2, 1 / 4))


def _matched(
    planned: Sequence[CollectiveRow],
    compiled: Sequence[CollectiveRow],
    verdict: Verdict | None,
    of_planned: _Key,
    of_compiled: _Key,
) -> list[CollectiveMatch]:
    """One round; without a verdict it depends on whether the kind is the one that was meant."""
    waiting: dict[Hashable, list[CollectiveRow]] = {}
    for row in compiled:
        if row.data > 0:
            waiting.setdefault(of_compiled(row), []).append(row)
    found: list[CollectiveMatch] = []
    for row in planned:
        for other in waiting.get(of_planned(row), []):
            if row.data <= 0:
                break
            if other.data <= 0:
                continue
            same = min(row.data, other.data)
            other_width = _is_other_width(row, other)
            as_meant = Verdict.AS_PLANNED if _is_as_written(other) else Verdict.WRITTEN_AS
            left, right = same / row.data, same / other.data
            found.append(
                CollectiveMatch(
                    verdict or as_meant,
                    row.take(1.0 if left >= 1 or other_width else left),
                    other.take(1.0 if right >= 1 or other_width else right),
                    row.place or other.place,
                    row.op_name or other.op_name,
                )
            )
    return found
