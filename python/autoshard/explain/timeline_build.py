"""The step as a plan models it: ops and collectives in the order of the program.

    compute   | dot      |        | dot      |
    links                | reduce |
    to host              | copy ........ |

One thing runs after the other. A collective stands before the op whose operand it makes, behind the
one whose result it takes; where a loop keeps a value elsewhere than what comes before it, it stands
before the loop. Transfers to and from the host run beside the rest, one after the other, from where
their moves stand. A loop, and layers that are written out and alike, are there once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autoshard import _core
from autoshard.cluster.axes import parts_of
from autoshard.explain.folding import common_name, of_any_layer
from autoshard.explain.record import RecordedCollective
from autoshard.explain.record_names import OpNames
from autoshard.explain.repeats import repeated
from autoshard.explain.timeline import (
    Drawn,
    Timeline,
    TimelineBar,
    TimelineRepeat,
    short_together,
)
from autoshard.ir.garbage import no_collection
from autoshard.ir.host_memory import PINNED_HOST, moved_to
from autoshard.planned.given_plan import Costed
from autoshard.planned.host_traffic import move_seconds
from autoshard.verify.schedule.schedule import STREAMS, Stream

_LEAST_REPEAT = 0.01
"""Part of a step that equal layers take at least to be there once."""

_COMPUTE = (Stream.COMPUTE.value,)


@dataclass(frozen=True, slots=True)
class PlacedCollective:
    """A collective, and where in the program it is."""

    row: RecordedCollective
    place: _core.Place
    number: int | None
    """Number of the op that asks for it, of a join that makes what is moved; None where no op of
    the core does, as for an argument."""
    join: tuple[int, int] | None
    """The values that it is between, if it is a join."""


def timeline_of(
    costed: Costed,
    names: OpNames,
    group_of: NDArray[np.int32],
    collectives: Sequence[PlacedCollective],
    step_seconds: float,
    exposed: float,
) -> Timeline:
    """The step of a plan.

    Args:
        costed: The plan.
        names: Of its ops.
        group_of: For each op a number, equal for those of equal layers.
        collectives: All, in the order of their reshards.
        step_seconds: Seconds of a step.
        exposed: Share of the seconds of collectives that does not hide.
    """
    # What is read of the module is read now: it may be gone when somebody looks.
    drawing = _Drawing(costed, names, collectives, exposed)
    program, plan = costed.imported.program, costed.plan
    moves = frozenset(costed.imported.host.moves)

    @no_collection()
    def draw() -> Drawn:
        order = _Order(program, plan, moves, group_of, collectives, exposed)
        nodes = _Folding(step_seconds * _LEAST_REPEAT).folded(order.nodes())
        drawing.place(nodes, -1, 0)
        return Drawn(tuple(drawing.bars(step_seconds)), tuple(drawing.repeats))

    return Timeline.later(draw)


@dataclass(slots=True)
class _Node:
    """Something that the step does: an op, a collective, or a stretch that runs several times."""

    key: Hashable
    """Equal for what is alike."""
    seconds: float
    """By which it makes the step longer, all members or rounds together."""
    members: list[int]
    """Numbers of ops; of collectives their numbers behind those of all ops. Empty for a stretch."""
    inner: Sequence[_Node] = ()
    """What a stretch does in one round, each with all rounds as members."""
    times: float = 1.0
    is_loop: bool = False


class _Order:
    """What stands where in the program."""

    def __init__(
        self,
        program: _core.Program,
        plan: _core.CorePlan,
        moves: frozenset[int],
        group_of: NDArray[np.int32],
        collectives: Sequence[PlacedCollective],
        exposed: float,
    ) -> None:
        self.trips = program.op_trips
        self.seconds = [once * runs for once, runs in zip(plan.op_seconds, self.trips, strict=True)]
        self.is_move = moves
        self.key_of: list[int] = group_of.tolist()
        # The core has inner loops before those around them.
        loops = [loop for loop in reversed(program.loops) if loop.first_op < loop.last_op]
        self.loops = sorted(loops, key=lambda loop: (loop.first_op, -loop.last_op))
        self.before: defaultdict[int, list[_Node]] = defaultdict(list)
        """By the number of an op; loops count down from -1."""
        self.behind: defaultdict[int, list[_Node]] = defaultdict(list)
        for number, one in enumerate(collectives, start=len(self.trips)):
            self._place(one, number, exposed)

    def _place(self, one: PlacedCollective, number: int, exposed: float) -> None:
        row = one.row
        key = (of_any_layer(row.id), row.kind, row.axes, row.bytes, row.times, row.frame)
        node = _Node(key, (row.seconds or 0.0) * exposed, [number])
        if one.join is not None:
            side, at = self._join(one.number, *one.join)
            side[at].append(node)
        elif one.place is _core.Place.RESULT:
            self.behind[_known(one.number)].append(node)
        else:
            self.before[_known(one.number)].append(node)

    def _join(
        self, maker: int | None, source: int, target: int
    ) -> tuple[defaultdict[int, list[_Node]], int]:
        """Where a value becomes another one, beside which op or loop.

        Args:
            maker: The op that makes it, if one does.
            source: The value.
            target: The other one.
        """
        for number, loop in enumerate(self.loops):
            is_inside = maker is not None and loop.first_op <= maker < loop.last_op
            if target in loop.carried and not is_inside:
                return self.before, -1 - number
            if source in loop.carried and maker is None:
                return self.behind, -1 - number
        return (self.before, 0) if maker is None else (self.behind, maker)

    def nodes(self) -> list[_Node]:
        """The whole step."""
        found, _ = self._range(0, len(self.trips), 0)
        return found

    def _range(self, first: int, last: int, loop: int) -> tuple[list[_Node], int]:
        """What a range of ops does, and the first loop behind it.

        Args:
            first: Its first op.
            last: The op behind it.
            loop: Number of the first loop that is not around it.
        """
        found: list[_Node] = []
        while loop < len(self.loops) and self.loops[loop].first_op < last:
            this, number = self.loops[loop], -1 - loop
            found += self._ops(first, this.first_op)
            found += self.before[number]
            inner, loop = self._range(this.first_op, this.last_op, loop + 1)
            found += _loop(inner, this.trips)
            found += self.behind[number]
            first = this.last_op
        return found + self._ops(first, last), loop

    def _ops(self, first: int, last: int) -> list[_Node]:
        found: list[_Node] = []
        for op in range(first, last):
            if op in self.before:
                found += self.before[op]
            if self.seconds[op] > 0 or op in self.is_move:
                found.append(_Node(self.key_of[op], self.seconds[op], [op]))
            if op in self.behind:
                found += self.behind[op]
        return found


def _known(number: int | None) -> int:
    assert number is not None, "what is no join is asked for by an op"
    return number


def _loop(inner: list[_Node], trips: float) -> list[_Node]:
    if trips <= 1 or not inner:
        return inner
    seconds = sum(node.seconds for node in inner)
    return [_Node(None, seconds, [], inner, trips, is_loop=True)]


class _Folding:
    """Equal layers once."""

    def __init__(self, least: float) -> None:
        self.least = least
        """Seconds of all rounds of what is there once."""
        self.known: dict[Hashable, int] = {}

    def folded(self, nodes: Sequence[_Node]) -> list[_Node]:
        """The same with what repeats as stretches."""
        for node in nodes:
            if node.is_loop and node.key is None:
                node.inner = self.folded(node.inner)
                node.key = node.times, *(one.key for one in node.inner)
        keys = [self.known.setdefault(node.key, len(self.known)) for node in nodes]
        found: list[_Node] = []
        at = 0
        for stretch in repeated(keys, [node.seconds for node in nodes], self.least):
            rounds = [
                nodes[first : first + stretch.length]
                for first in range(stretch.first, stretch.end, stretch.length)
            ]
            round_ = [_together(column) for column in zip(*rounds, strict=True)]
            found += nodes[at : stretch.first]
            found.append(self._stretch(round_, stretch.times))
            at = stretch.end
        return [*found, *nodes[at:]]

    def _stretch(self, round_: list[_Node], times: int) -> _Node:
        """Rounds as one; one op that is there several times stays an op."""
        if len(round_) == 1:
            return round_[0]
        inner = self.folded(round_)
        seconds = sum(node.seconds for node in inner)
        return _Node(("layers", times, *(one.key for one in inner)), seconds, [], inner, times)


def _together(nodes: Sequence[_Node]) -> _Node:
    """What is alike, as one."""
    first = nodes[0]
    inner = [_together(column) for column in zip(*(node.inner for node in nodes), strict=True)]
    return _Node(
        first.key,
        sum(node.seconds for node in nodes),
        [member for node in nodes for member in node.members],
        inner,
        first.times,
        first.is_loop,
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """A node without others in it, where it is in the step."""

    node: _Node
    lanes: tuple[str, ...]
    start: float
    seconds: float
    repeat: int
    """Number of the stretch that it is in."""


class _Drawing:
    """Bars of what the step does, one after the other."""

    def __init__(
        self,
        costed: Costed,
        names: OpNames,
        collectives: Sequence[PlacedCollective],
        exposed: float,
    ) -> None:
        self.names = names
        self.collectives = collectives
        self.exposed = exposed
        self.num_ops = len(costed.imported.core_ops)
        self.program = costed.imported.program
        dims = costed.cluster.dims
        self.host_seconds = move_seconds(costed.imported, costed.plan, costed.mesh, costed.cluster)
        ops = costed.imported.core_ops
        self.is_out = {number: moved_to(ops[number]) == PINNED_HOST for number in self.host_seconds}
        parts = parts_of(costed.mesh, dims, costed.cluster.name, costed.cluster.order)
        self.streams = {
            axis: [STREAMS[dims[dim].kind].value for dim, _ in one]
            for axis, one in zip(costed.mesh.without_unit_axes().axis_names, parts, strict=True)
        }
        self.now = 0.0
        self.link_is_free = 0.0
        """When the link to the host is done with what was sent so far."""
        self.pieces: list[_Piece] = []
        self.repeats: list[TimelineRepeat] = []

    @cached_property
    def trips(self) -> Sequence[float]:
        """Runs of each op; read when the step is drawn."""
        return self.program.op_trips

    def place(self, nodes: Iterable[_Node], repeat: int, depth: int) -> None:
        """Put all of them one behind the other.

        Args:
            nodes: In order.
            repeat: Number of the stretch that they are in.
            depth: How many are around them.
        """
        for node in nodes:
            if not node.inner:
                self.pieces += self._pieces(node, repeat)
                self.now += node.seconds
                continue
            number = len(self.repeats)
            self.repeats.append(
                TimelineRepeat(self.now, node.seconds, node.times, node.is_loop, depth)
            )
            self.place(node.inner, number, depth + 1)

    def _pieces(self, node: _Node, repeat: int) -> Iterator[_Piece]:
        first = node.members[0]
        if first >= self.num_ops:
            axes = self._row(first).axes or ()
            lanes = dict.fromkeys(stream for axis in axes for stream in self.streams[axis])
            yield _Piece(node, tuple(lanes), self.now, node.seconds, repeat)
            return
        if node.seconds > 0:
            yield _Piece(node, _COMPUTE, self.now, node.seconds, repeat)
        if first in self.host_seconds:
            stream = Stream.TO_HOST if self.is_out[first] else Stream.FROM_HOST
            start = max(self.now, self.link_is_free)
            seconds = sum(self.host_seconds[member] for member in node.members)
            self.link_is_free = start + seconds
            yield _Piece(node, (stream.value,), start, seconds, repeat)

    def _row(self, member: int) -> RecordedCollective:
        return self.collectives[member - self.num_ops].row

    def bars(self, step_seconds: float) -> Iterator[TimelineBar]:
        """What was placed, in the order in which it starts, short pieces together."""
        pieces = sorted(self.pieces, key=lambda piece: piece.start)
        for group in short_together(
            pieces, lambda one: ((one.lanes, one.repeat), one.start, one.seconds), step_seconds
        ):
            longest = max(group, key=lambda piece: piece.seconds)
            members = [member for piece in group for member in piece.node.members]
            name, location, phase = self._said(longest.node)
            runs, hidden = self._sums(members)
            yield TimelineBar(
                lanes=longest.lanes,
                name=name,
                location=location,
                phase=phase,
                start=group[0].start,
                seconds=sum(piece.seconds for piece in group),
                hidden_seconds=hidden,
                runs=runs,
                count=len(group),
                repeat=longest.repeat,
            )

    def _said(self, node: _Node) -> tuple[str, str | None, str]:
        """Name, line and phase."""
        first = node.members[0]
        if first < self.num_ops:
            names = self.names
            return (
                names.common_name(node.members),
                names.location(first),
                names.phase(first),
            )
        row = self._row(first)
        name = common_name([self._row(member).id for member in node.members])
        return name, row.location, row.phase

    def _sums(self, members: Sequence[int]) -> tuple[float, float]:
        """Runs, and seconds that hide, of ops or of collectives."""
        if members[0] < self.num_ops:
            return sum(map(self.trips.__getitem__, members)), 0.0
        rows = [self._row(member) for member in members]
        sent = sum(row.seconds or 0.0 for row in rows)
        return sum(row.times for row in rows), sent * (1 - self.exposed)
