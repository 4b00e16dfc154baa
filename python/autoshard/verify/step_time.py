"""How long one step of a compiled program takes, by one rule for every program.

    compute        sum over instructions of trips * seconds on one device
    communication  sum over collectives of trips * seconds by the cluster's formulas
    host transfers bytes over the link / the chip's host bandwidth
    step           compute + communication - what is hidden + host transfers that are not hidden

Seconds of an instruction are the compiler's own where its HLO has them: XLA:TPU writes
``estimated_cycles``. Elsewhere they follow from a roofline. docs/results/step_estimate.md has the
formulas, what they miss, and where the constants come from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES
from autoshard.errors import ClusterError
from autoshard.planned.collective import Collective
from autoshard.sharding.mesh import Mesh
from autoshard.verify.collective_seconds import CollectiveSeconds
from autoshard.verify.hlo_collectives import find_collectives, is_collective
from autoshard.verify.hlo_program import (
    CALLS,
    HloArray,
    HloComputation,
    HloInstruction,
    HloProgram,
    Run,
    arrays_of,
)
from autoshard.verify.instruction_costs import PRODUCTS, InstructionCosts
from autoshard.verify.kernel_costs import KernelCosts, kernel_cost

SLOWEST_OPS = 32
"""Ops that an estimate names; the others are in its sums."""

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_CYCLES = 2**63 - 1
"""What XLA:TPU writes where its cost model gives up; seen on fusions of 2 GiB results."""
_MOVES = ("copy", "slice", "dynamic-slice", "dynamic-update-slice")
_COPIES = frozenset(f"{name}-start" for name in _MOVES)
"""What the compiler starts early, beside other work."""


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """A collective of the compiled program with its time."""

    collective: Collective
    seconds: float
    """Seconds of one run."""

    @property
    def total_seconds(self) -> float:
        """Seconds of all runs of one step."""
        return self.seconds * self.collective.times


@dataclass(frozen=True, slots=True)
class TimedOp:
    """An instruction of the compiled program with its time on one device."""

    name: str
    """In the HLO text, ``fusion.12``."""
    opcode: str
    op_name: str
    """JAX's name of the op it comes from; empty where the compiler kept none."""
    place: str | None
    """``file:line`` of the user's code."""
    seconds: float
    """Seconds of one run."""
    times: int
    """Trip counts of the loops around it."""
    flops: float
    """Operations of one run; ``bytes`` are of one run, too."""
    bytes: float
    from_cycles: bool
    """Whether the seconds are the compiler's own cycles, or else a roofline."""

    @property
    def total_seconds(self) -> float:
        """Seconds of all runs of one step."""
        return self.seconds * self.times


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """One step of a compiled program on one device."""

    compute_seconds: float
    communication_seconds: float
    """Seconds of all collectives, hidden or not."""
    overlap: float
    """Share of the communication that is taken to hide behind compute."""
    flops: float
    """As XLA counts them, loops multiplied; custom calls have none, but for known kernels."""
    bytes_accessed: float
    """Read and written by all ops, in any memory of the device."""
    cycle_seconds: float
    """The part of ``compute_seconds`` that comes from the compiler's own cycles."""
    hidden_copy_bytes: float
    """Moved within the device by asynchronous copies, which the compiler puts beside other work:
    they take no time here."""
    host_transfer_bytes: float
    """Copied between the memories of the device and of its host, both ways together."""
    host_transfer_seconds: float
    """Seconds of these copies, one after the other, as planning counts them."""
    host_exposed_seconds: float
    """What of them no other work of the same loop hides."""
    collectives: tuple[TimedCollective, ...]
    """In program order."""
    slowest_ops: tuple[TimedOp, ...]
    """Largest ``total_seconds`` first."""
    unknown: tuple[TimedOp, ...]
    """Custom calls, of which only operands and results are known: they are charged with reading
    and writing these once."""
    uncounted_loops: tuple[str, ...]
    """Name of each loop without a trip count, with its line; it counts as the caller stated."""

    @property
    def trips_known(self) -> bool:
        """Whether every loop has a trip count."""
        return not self.uncounted_loops

    @property
    def step_seconds(self) -> float:
        """Compute, and what of communication and of transfers to and from hosts is not hidden."""
        hidden = min(self.overlap * self.communication_seconds, self.compute_seconds)
        on_device = self.compute_seconds + self.communication_seconds - hidden
        return on_device + self.host_exposed_seconds


def estimate_step(
    hlo_text: str,
    mesh: Mesh,
    cluster: Cluster,
    *,
    unknown_trip_count: int = 1,
    overlap: float = 0.0,
    kernels: KernelCosts | None = None,
) -> StepEstimate:
    """Estimate one step from a compiled program.

    Args:
        hlo_text: ``compiled.as_text()``: one partition's optimised HLO.
        mesh: The plan's mesh, whose device numbers are the partition numbers.
        cluster: What the program was compiled for; devices are numbered as ``Cluster`` says.
        unknown_trip_count: Trips of a loop for which the compiler knows none.
        overlap: Share of communication that is hidden behind compute, 0 to 1, as for planning.
        kernels: What TPU kernels cost (``kernel_costs``); of others the operands and results.

    Raises:
        ParseError: The text cannot be read, or is for another number of devices.
        ClusterError: The mesh does not fit the cluster, or the text has cycles and the chip no
            known clock.
    """
    program = HloProgram.parse(hlo_text)
    seconds_of = CollectiveSeconds(cluster, mesh)
    collectives = tuple(
        TimedCollective(found.collective, seconds_of.of(found.collective, found.groups))
        for found in find_collectives(program, mesh, unknown_trip_count)
    )
    ops = _Ops(program, cluster, kernels or {})
    link = _HostLink()
    compute = cycles = flops = touched = hidden = 0.0
    uncounted: dict[str, None] = {}
    timed: list[TimedOp] = []
    unknown: list[TimedOp] = []
    for run in program.runs(unknown_trip_count):
        instruction = run.instruction
        if instruction.opcode == "while" and program.trips(run.computation, instruction) is None:
            uncounted[_named(instruction, program)] = None
        if _runs_others(instruction) or _is_communication(instruction, program):
            continue
        if instruction.opcode.endswith(("-done", "-update")):
            continue
        over_link = _host_bytes(instruction, run.computation)
        if over_link:
            link.add(run, over_link)
            continue
        if instruction.opcode in _COPIES:
            hidden += run.times * _copied_bytes(instruction, run.computation)
            continue
        op, is_known = ops.timed(instruction, run.computation, run.times)
        compute += op.total_seconds
        link.beside[run.computation.name] += op.total_seconds
        cycles += op.total_seconds if op.from_cycles else 0.0
        flops += op.flops * op.times
        touched += op.bytes * op.times
        if op.seconds > 0:
            timed.append(op)
        if not is_known:
            unknown.append(op)
    bandwidth = cluster.chip.host_bandwidth.value
    return StepEstimate(
        compute_seconds=compute,
        communication_seconds=sum((one.total_seconds for one in collectives), 0.0),
        overlap=overlap,
        flops=flops,
        bytes_accessed=touched,
        cycle_seconds=cycles,
        hidden_copy_bytes=hidden,
        host_transfer_bytes=link.bytes,
        host_transfer_seconds=link.bytes / bandwidth,
        host_exposed_seconds=link.exposed_seconds(bandwidth),
        collectives=collectives,
        slowest_ops=tuple(sorted(timed, key=lambda op: -op.total_seconds)[:SLOWEST_OPS]),
        unknown=tuple(unknown),
        uncounted_loops=tuple(uncounted),
    )


def _named(loop: HloInstruction, program: HloProgram) -> str:
    """A loop as a user finds it: its name in the text, and the line where there is one."""
    place = program.place(loop)
    return loop.name if place is None else f"{loop.name} ({place})"


def _runs_others(instruction: HloInstruction) -> bool:
    """Whether the time of an instruction is that of computations it calls, which are counted."""
    opcode = instruction.opcode
    if opcode == "custom-call-start":
        return bool(instruction.called)
    return opcode == "while" or opcode in CALLS


def _is_communication(instruction: HloInstruction, program: HloProgram) -> bool:
    """Whether the time of an instruction is that of its collectives.

    A fusion with a collective has other work beside it where the compiler gives it cycles, or where
    a product of matrices is in it.
    """
    opcode = instruction.opcode
    if opcode == "fusion" and _CYCLES.search(instruction.rest) is None:
        opcodes = set(_opcodes_inside(instruction, program))
        return any(map(is_collective, opcodes)) and opcodes.isdisjoint(PRODUCTS)
    return is_collective(opcode) or opcode.removesuffix("-done") in ("send", "recv")


def _opcodes_inside(fusion: HloInstruction, program: HloProgram) -> Iterator[str]:
    """Opcodes of all instructions of a fusion and of the fusions in it."""
    for name in fusion.called:
        for each in program.computations[name].instructions:
            yield each.opcode
            if each.opcode == "fusion":
                yield from _opcodes_inside(each, program)


def _copied(instruction: HloInstruction, computation: HloComputation) -> list[HloArray]:
    """What a copy or slice makes."""
    done = computation.end_of(instruction)
    return instruction.arrays[:1] if done is None else done.arrays


def _copied_bytes(instruction: HloInstruction, computation: HloComputation) -> float:
    """What an asynchronous copy or slice moves."""
    return sum(array.bytes for array in _copied(instruction, computation))


def _host_bytes(instruction: HloInstruction, computation: HloComputation) -> float:
    """What a copy or slice moves from the host's memory to the device's, or back; else 0."""
    name = instruction.opcode.removesuffix("-start")
    if name not in _MOVES:
        return 0.0
    made = _copied(instruction, computation)
    operands = [arrays_of(computation.by_name[name].result) for name in instruction.operands]
    # An update moves what it writes, and gives back the whole array.
    moved = operands[1] if name == "dynamic-update-slice" else made
    read = moved if name == "dynamic-update-slice" else operands[0]
    crosses = any(array.on_host for array in read) != any(array.on_host for array in made)
    return sum(array.bytes for array in moved) if crosses else 0.0


@dataclass
class _HostLink:
    """What a program moves to and from its host, and what else devices do meanwhile."""

    bytes: float = 0.0
    early: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Bytes that a loop's body moves without waiting, by the body's name."""
    beside: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the other ops of each computation."""

    def add(self, run: Run, moved: float) -> None:
        """A transfer of so many bytes."""
        self.bytes += run.times * moved
        if run.instruction.opcode in _COPIES and not run.computation.is_entry:
            self.early[run.computation.name] += run.times * moved

    def exposed_seconds(self, bandwidth: float) -> float:
        """Seconds of all but what other ops of the same loop hide, as planning counts it."""
        hidden = (min(moved / bandwidth, self.beside[name]) for name, moved in self.early.items())
        return self.bytes / bandwidth - sum(hidden)


def _cycles(instruction: HloInstruction) -> int | None:
    """The compiler's own count; None where it has none."""
    found = _CYCLES.search(instruction.rest)
    if found is None or int(found[1]) == _NO_CYCLES:
        return None
    return int(found[1])


class _Ops:
    """Times of a program's instructions."""

    def __init__(self, program: HloProgram, cluster: Cluster, kernels: KernelCosts) -> None:
        self.program = program
        self.kernels = kernels
        # Cycles have the start of a kernel in them; what has none beside them is scalar arithmetic.
        has_cycles = any(
            _CYCLES.search(instruction.rest)
            for computation in program.computations.values()
            for instruction in computation.instructions
        )
        launch = 0.0 if has_cycles else cluster.chip.launch_seconds.value
        self.costs = InstructionCosts(program, cluster, launch)
        self.cluster = cluster

    def timed(
        self, instruction: HloInstruction, computation: HloComputation, times: int
    ) -> tuple[TimedOp, bool]:
        """The instruction with its time, and whether all of it is known."""
        if instruction.opcode.endswith("-start"):
            done = computation.end_of(instruction) or instruction
            opcode = instruction.opcode.removesuffix("-start")
            instruction = replace(instruction, opcode=opcode, result=done.result)
        cost = kernel_cost(instruction, self.kernels) or self.costs.of(instruction, computation)
        cycles = _cycles(instruction)
        seconds = cost.seconds if cycles is None else cycles / self._clock()
        op = TimedOp(
            name=instruction.name,
            opcode=instruction.opcode,
            op_name=instruction.op_name,
            place=self.program.place(instruction),
            seconds=seconds,
            times=times,
            flops=cost.flops,
            bytes=cost.bytes,
            from_cycles=cycles is not None,
        )
        return op, cost.is_known or cycles is not None

    def _clock(self) -> float:
        family = FAMILIES.get(self.cluster.chip.name)
        clock = None if family is None else family.clock
        if clock is None:
            raise ClusterError(
                f"the compiled program has the compiler's estimates in cycles, but the clock of"
                f" chip {self.cluster.chip.name} is not known. Name the chip as one of"
                f" {', '.join(name for name, one in FAMILIES.items() if one.clock)}."
            )
        return clock.value
