"""What a device does line by line, from the text of a compiled program.

A transfer begins at its start and is waited for at its done:

    all-gather-start .. -done, async-start ..    collectives of XLA:GPU and XLA:TPU
    AsyncCollectiveStart .. AsyncCollectiveDone  the first and the last of several fusions over
                                                 which XLA:TPU spreads one
    send .. recv-done                            between slices
    copy-start, dynamic-slice-start ..           to and from the memory of the host
    all-gather, a fusion of a collective         begin and are waited for at once
    a fusion of a collective and a product       begins before the product, ends behind it

Copies within a device take no time here, as in the sum of a step (``step_time``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.cluster import Cluster
from autoshard.sharding.mesh import Mesh
from autoshard.verify.collective_seconds import CollectiveSeconds
from autoshard.verify.hlo_collectives import (
    CHAIN_DONE,
    CHAIN_START,
    CollectiveReader,
    FoundCollective,
)
from autoshard.verify.hlo_program import CALLS, HloComputation, HloInstruction, HloProgram
from autoshard.verify.instruction_costs import PRODUCTS
from autoshard.verify.instruction_work import HostCopy, InstructionWork, instructions_inside
from autoshard.verify.schedule.origins import Origins
from autoshard.verify.schedule.schedule import STREAMS, Stream, Transfer

_CHAIN_ID = re.compile(r'\bchain_id="([^"]*)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")

_Placed = tuple[HloInstruction, HloComputation]
"""An instruction and where it stands."""


@dataclass(frozen=True, slots=True)
class Compute:
    """The cores are busy."""

    name: str
    seconds: float
    place: str | None = None
    op_name: str = ""


@dataclass(frozen=True, slots=True)
class Begin:
    """A run of a transfer begins as soon as its streams are free."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Wait:
    """Compute waits for the end of one run: of these transfers the one that began first, of those
    that are not waited for yet; for nothing where there is none."""

    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop, or what is called."""

    name: str
    times: int
    lines: tuple[Line, ...]


Line = Compute | Begin | Wait | Repeat


def program_lines(
    program: HloProgram,
    mesh: Mesh,
    cluster: Cluster,
    work: InstructionWork,
    unknown_trip_count: int,
) -> tuple[Line, ...]:
    """The lines of a program's entry.

    Args:
        program: As compiled, its instructions in the order that devices execute.
        mesh: As for ``estimate_step``, with the other arguments.
        cluster: Whose formulas give the seconds of collectives.
        work: Seconds of everything else.
        unknown_trip_count: Trips of a loop for which the compiler knows none.
    """
    reader = _Reader(program, mesh, cluster, work, unknown_trip_count)
    return reader.lines(program.entry)


class _Reader:
    """The lines of a program's computations."""

    def __init__(
        self,
        program: HloProgram,
        mesh: Mesh,
        cluster: Cluster,
        work: InstructionWork,
        unknown_trip_count: int,
    ) -> None:
        self.program = program
        self.work = work
        self.unknown_trip_count = unknown_trip_count
        self.collectives = CollectiveReader(program, mesh, unknown_trip_count)
        self.seconds = CollectiveSeconds(cluster, mesh)
        self.host_bandwidth = cluster.chip.host_bandwidth.value
        self.known: dict[str, tuple[Line, ...]] = {}
        self.begun: dict[int, tuple[Transfer, ...]] = {}
        self.starts = self._starts()
        self.awaited = {id(one) for starts in self.starts.values() for one, _ in starts}

    def _starts(self) -> dict[int, list[_Placed]]:
        """What begins the transfer that each instruction waits for, by the ``id`` of that."""
        everywhere = [
            (one, computation)
            for computation in self.program.computations.values()
            for one in computation.instructions
        ]
        origins = Origins(self.program)
        chains = defaultdict[str | None, list[_Placed]](list)
        sends = defaultdict[str | None, list[_Placed]](list)
        for one, where in everywhere:
            if one.opcode == "fusion":
                chains[self._chain(one, CHAIN_START)].append((one, where))
            elif one.opcode == "send":
                sends[_pair(one)].append((one, where))
        received = {_pair(one) for one, _ in everywhere if one.opcode == "recv"}
        found: dict[int, list[_Placed]] = {}
        for one, where in everywhere:
            if one.opcode == "fusion":
                chain = self._chain(one, CHAIN_DONE)
                found[id(one)] = [] if chain is None else chains[chain]
            elif one.opcode.endswith("-done"):
                starts = origins.starts(where.by_name[one.operands[0]], where)
                if one.opcode == "recv-done":
                    starts = [each for recv, _ in starts for each in sends[_pair(recv)]]
                elif one.opcode == "send-done":
                    starts = [each for each in starts if _pair(each[0]) not in received]
                found[id(one)] = starts
        return found

    def _chain(self, fusion: HloInstruction, call: str) -> str | None:
        """The chain that a fusion starts or ends by a custom call; None if it does not."""
        inside = list(instructions_inside(fusion, self.program))
        if not any(call in each.rest for each in inside):
            return None
        names = (_CHAIN_ID.search(each.rest) for each in inside)
        return next((name[1] for name in names if name), None)

    def lines(self, computation: HloComputation) -> tuple[Line, ...]:
        """What a computation does, and what it calls."""
        if computation.name not in self.known:
            self.known[computation.name] = tuple(
                line for one in computation.instructions for line in self._lines(one, computation)
            )
        return self.known[computation.name]

    def _lines(self, one: HloInstruction, computation: HloComputation) -> Iterator[Line]:
        if one.opcode == "while":
            yield from self._loop(one, computation)
        elif one.opcode in CALLS:
            yield from self._called(one, computation)
        else:
            yield from self._waits(self.starts.get(id(one), []))
            yield from self._own(one, computation)

    def _loop(self, loop: HloInstruction, computation: HloComputation) -> Iterator[Line]:
        trips = self.program.trips(computation, loop)
        condition = self.program.condition(loop)
        test = () if condition is None else self.lines(condition)
        yield from test
        times = self.unknown_trip_count if trips is None else trips
        yield Repeat(loop.name, times, self.lines(self.program.body(loop)) + test)

    def _called(self, one: HloInstruction, computation: HloComputation) -> Iterator[Line]:
        """Calls and branches, one after the other; of asynchronous ones, transfers go on."""
        go_on = self._begun_by(one, computation) if id(one) in self.awaited else ()
        for name in one.called:
            for line in self.lines(self.program.computations[name]):
                if not (isinstance(line, Wait) and set(line.transfers) <= set(go_on)):
                    yield line

    def _waits(self, starts: list[_Placed]) -> Iterator[Line]:
        """For all transfers of one of several starts."""
        begun = [self._begun_by(one, where) for one, where in starts]
        for number in range(max(map(len, begun), default=0)):
            yield Wait(tuple(each[number] for each in begun if number < len(each)))

    def _own(self, one: HloInstruction, computation: HloComputation) -> Iterator[Line]:
        """Compute and transfers of an instruction; what nobody waits for, it waits for itself."""
        op = self.work.of(one, computation).op
        compute = [] if op is None else [Compute(op.name, op.seconds, op.place, op.op_name)]
        transfers = self._begun_by(one, computation)
        begins = [Begin(each) for each in transfers]
        if id(one) in self.awaited:
            yield from (*begins, *compute)
            return
        waits = [Wait((each,)) for each in transfers]
        if transfers and self._multiplies(one):
            yield from (*begins, *compute, *waits)
        else:
            yield from (*compute, *begins, *waits)

    def _multiplies(self, one: HloInstruction) -> bool:
        """Whether it is a fusion with a product of matrices in it."""
        inside = instructions_inside(one, self.program) if one.opcode == "fusion" else ()
        return any(each.opcode in PRODUCTS for each in inside)

    def _begun_by(self, one: HloInstruction, computation: HloComputation) -> tuple[Transfer, ...]:
        """The transfers of an instruction; of one that calls others, those of these."""
        if id(one) not in self.begun:
            self.begun[id(one)] = tuple(self._transfers(one, computation))
        return self.begun[id(one)]

    def _transfers(self, one: HloInstruction, computation: HloComputation) -> Iterator[Transfer]:
        if one.opcode in CALLS:
            for name in one.called:
                inner = self.program.computations[name]
                for each in inner.instructions:
                    yield from self._begun_by(each, inner)
            return
        for found in self.collectives.carried_by(one, computation):
            yield self._collective(one, found)
        copy = self.work.of(one, computation).host_copy
        if copy is not None:
            yield self._host_copy(one, copy)

    def _collective(self, one: HloInstruction, found: FoundCollective) -> Transfer:
        collective, groups = found.collective, found.groups
        over = "irregular groups" if groups.axes is None else ",".join(map(str, groups.axes))
        links = self.seconds.links(collective, groups)
        return Transfer(
            name=one.name,
            what=f"{collective.kind.value} over {over}",
            place=collective.place,
            op_name=collective.op_name,
            seconds=self.seconds.of(collective, groups),
            streams=tuple(dict.fromkeys(STREAMS[link] for link in links)),
        )

    def _host_copy(self, one: HloInstruction, copy: HostCopy) -> Transfer:
        stream = Stream.TO_HOST if copy.to_host else Stream.FROM_HOST
        return Transfer(
            name=one.name,
            what=f"copy {stream.value}",
            place=self.program.place(one),
            op_name=one.op_name,
            seconds=copy.bytes / self.host_bandwidth,
            streams=(stream,),
        )


def _pair(one: HloInstruction) -> str | None:
    """What a ``send`` and its ``recv`` have in common."""
    found = _RENDEZVOUS.search(one.rest) or _CHANNEL.search(one.rest)
    return found[0] if found else None
