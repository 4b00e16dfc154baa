"""The step as a plan models it: ops and collectives in the order of the program.

    compute   | dot      |        | dot      |
    links                | reduce |
    to host              | copy ........ |

One thing runs after the other. A collective stands before the op whose operand it makes, behind the
one whose result it takes, and outside of the loops that it was taken out of. Transfers to and from
the host run beside the rest, one after the other, from where their moves stand. A loop, and layers
that are written out and alike, are there once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from autoshard import _core
from autoshard.cluster.axes import parts_of
from autoshard.explain.folding import common_name, of_any_layer
from autoshard.explain.record import RecordedCollective
from autoshard.explain.record_names import OpNames
from autoshard.explain.repeats import repeated
from autoshard.explain.timeline import Timeline, TimelineBar, TimelineRepeat, joined
from autoshard.ir.host_memory import PINNED_HOST, moved_to
from autoshard.planned.given_plan import Costed
from autoshard.planned.host_traffic import move_seconds
from autoshard.verify.schedule.schedule import STREAMS, Stream

_LEAST_REPEAT = 0.01
"""Part of a step that equal layers take at least to be there once."""


@dataclass(frozen=True, slots=True)
class PlacedCollective:
    """A collective, and where in the program it is."""

    row: RecordedCollective
    place: _core.Place
    number: int | None
    """Number of the op that asks for it; None where that is none of the core: an argument's."""


def timeline_of(
    costed: Costed,
    names: OpNames,
    alike: Iterable[Sequence[int]],
    collectives: Sequence[PlacedCollective],
    step_seconds: float,
    exposed: float,
) -> Timeline:
    """The step of a plan.

    Args:
        costed: The plan.
        names: Of its ops.
        alike: Numbers of the ops of equal layers.
        collectives: All, in the order of their reshards.
        step_seconds: Seconds of a step.
        exposed: Share of the seconds of collectives that does not hide.
    """
    order = _Order(costed, alike, collectives, exposed)
    nodes = _Folding(step_seconds * _LEAST_REPEAT).folded(order.nodes())
    drawing = _Drawing(costed, names, collectives, exposed)
    drawing.draw(nodes, -1, 0)
    bars = sorted(drawing.bars, key=lambda bar: bar.start)
    return Timeline(joined(bars, step_seconds), tuple(drawing.repeats))


@dataclass(slots=True)
class _Node:
    """Something that the step does: an op, a collective, or a stretch that runs several times."""

    key: Hashable
    """Equal for what is alike."""
    seconds: float
    """By which it makes the step longer, all members or rounds together."""
    members: list[int]
    """Numbers of ops; of collectives their numbers behind those of all ops. Empty for a stretch."""
    inner: list[_Node] = field(default_factory=list["_Node"])
    """What a stretch does in one round, each with all rounds as members."""
    times: float = 1.0
    is_loop: bool = False


class _Order:
    """What stands where in the program."""

    def __init__(
        self,
        costed: Costed,
        alike: Iterable[Sequence[int]],
        collectives: Sequence[PlacedCollective],
        exposed: float,
    ) -> None:
        program = costed.imported.program
        self.trips = program.op_trips
        self.seconds = [
            once * runs for once, runs in zip(costed.plan.op_seconds, self.trips, strict=True)
        ]
        self.is_move = set(costed.imported.host.moves)
        self.key_of = [0] * len(self.trips)
        for key, members in enumerate(alike):
            for number in members:
                self.key_of[number] = key
        # The core has inner loops before those around them.
        loops = [(loop.first_op, loop.last_op, loop.trips) for loop in reversed(program.loops)]
        self.loops = sorted(loops, key=lambda loop: (loop[0], -loop[1]))
        self.before: defaultdict[int, list[_Node]] = defaultdict(list)
        """By the number of an op; loops count down from -1."""
        self.behind: defaultdict[int, list[_Node]] = defaultdict(list)
        for number, one in enumerate(collectives, start=len(self.trips)):
            self._place(one, number, exposed)

    def _place(self, one: PlacedCollective, number: int, exposed: float) -> None:
        row = one.row
        key = (of_any_layer(row.id), row.kind, row.axes, row.bytes, row.times, row.frame)
        node = _Node(key, (row.seconds or 0.0) * exposed, [number])
        if one.number is None:
            self.before[0].append(node)
        elif one.place in (_core.Place.OPERAND, _core.Place.HALO):
            self.before[self._beside(one.number, row.times)].append(node)
        else:
            self.behind[self._beside(one.number, row.times)].append(node)

    def _beside(self, op: int, times: float) -> int:
        """The op, or the loop around it that runs so many times, if the op does not."""
        runs = 1.0
        if not isclose(self.trips[op], times):
            for number, (first, last, trips) in enumerate(self.loops):
                if first <= op < last:
                    if isclose(runs, times):
                        return -1 - number
                    runs *= trips
        return op

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
        while loop < len(self.loops) and self.loops[loop][0] < last:
            number, (begin, end, trips) = loop, self.loops[loop]
            found += self._ops(first, begin)
            found += self.before[-1 - number]
            inner, loop = self._range(begin, end, loop + 1)
            found += _loop(inner, trips)
            found += self.behind[-1 - number]
            first = end
        return found + self._ops(first, last), loop

    def _ops(self, first: int, last: int) -> list[_Node]:
        found: list[_Node] = []
        for op in range(first, last):
            found += self.before.get(op, ())
            if self.seconds[op] > 0 or op in self.is_move:
                found.append(_Node(self.key_of[op], self.seconds[op], [op]))
            found += self.behind.get(op, ())
        return found


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
            inner = self.folded([_together(column) for column in zip(*rounds, strict=True)])
            seconds = sum(node.seconds for node in inner)
            key = "layers", stretch.times, *(one.key for one in inner)
            found += nodes[at : stretch.first]
            found.append(_Node(key, seconds, [], inner, stretch.times))
            at = stretch.end
        return [*found, *nodes[at:]]


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
        self.core_ops = costed.imported.core_ops
        self.trips = costed.imported.program.op_trips
        dims = costed.cluster.dims
        self.host_seconds = move_seconds(costed.imported, costed.plan, costed.mesh, costed.cluster)
        parts = parts_of(costed.mesh, dims, costed.cluster.name)
        self.streams = {
            axis: [STREAMS[dims[dim].kind] for dim, _ in one]
            for axis, one in zip(costed.mesh.without_unit_axes().axis_names, parts, strict=True)
        }
        self.now = 0.0
        self.link_is_free = 0.0
        """When the link to the host is done with what was sent so far."""
        self.bars: list[TimelineBar] = []
        self.repeats: list[TimelineRepeat] = []

    def draw(self, nodes: Iterable[_Node], repeat: int, depth: int) -> None:
        """All of them.

        Args:
            nodes: In order.
            repeat: Number of the stretch that they are in.
            depth: How many are around them.
        """
        for node in nodes:
            if not node.inner:
                self.bars.append(self._bar(node, repeat))
                self.now += node.seconds
                continue
            number, start = len(self.repeats), self.now
            self.repeats.append(
                TimelineRepeat(start, node.seconds, node.times, node.is_loop, depth)
            )
            self.draw(node.inner, number, depth + 1)

    def _bar(self, node: _Node, repeat: int) -> TimelineBar:
        first = node.members[0]
        if first >= len(self.core_ops):
            return self._collective(node, repeat)
        bar = TimelineBar(
            lanes=(Stream.COMPUTE.value,),
            name=self.names.common_name(node.members),
            location=self.names.location(first),
            phase=self.names.phases[first].value,
            start=self.now,
            seconds=node.seconds,
            hidden_seconds=0.0,
            runs=sum(self.trips[member] for member in node.members),
            count=1,
            repeat=repeat,
        )
        return self._moved(bar, node.members) if first in self.host_seconds else bar

    def _moved(self, bar: TimelineBar, members: Sequence[int]) -> TimelineBar:
        """A transfer to or from the host."""
        is_out = moved_to(self.core_ops[members[0]]) == PINNED_HOST
        stream = Stream.TO_HOST if is_out else Stream.FROM_HOST
        start = max(self.now, self.link_is_free)
        seconds = sum(self.host_seconds[member] for member in members)
        self.link_is_free = start + seconds
        return replace(bar, lanes=(stream.value,), start=start, seconds=seconds)

    def _collective(self, node: _Node, repeat: int) -> TimelineBar:
        rows = [self.collectives[member - len(self.core_ops)].row for member in node.members]
        first = rows[0]
        streams = dict.fromkeys(one for axis in first.axes or () for one in self.streams[axis])
        return TimelineBar(
            lanes=tuple(stream.value for stream in streams),
            name=common_name([row.id for row in rows]),
            location=first.location,
            phase=first.phase,
            start=self.now,
            seconds=node.seconds,
            hidden_seconds=sum(row.seconds or 0.0 for row in rows) * (1 - self.exposed),
            runs=sum(row.times for row in rows),
            count=1,
            repeat=repeat,
        )
