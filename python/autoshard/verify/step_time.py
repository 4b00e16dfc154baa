"""How long one step of a compiled program takes, by one rule for every program.

    compute        sum over instructions of trips * seconds on one device
    communication  sum over collectives of trips * seconds by the cluster's formulas
    host transfers bytes over the link / the chip's host bandwidth
    step           compute + communication - what is hidden + host transfers that are not hidden

``schedule`` is the same step with what the compiler put beside each other. docs/results/
step_estimate.md has the formulas, what they miss, and where the constants come from.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from autoshard.cluster import Cluster
from autoshard.planned.collective import Collective
from autoshard.sharding.mesh import Mesh
from autoshard.verify.collective_seconds import CollectiveSeconds
from autoshard.verify.hlo_collectives import find_collectives
from autoshard.verify.hlo_program import HloInstruction, HloProgram, Run
from autoshard.verify.instruction_work import InstructionWork, TimedOp
from autoshard.verify.kernel_costs import KernelCosts
from autoshard.verify.schedule.lines import program_lines
from autoshard.verify.schedule.schedule import Schedule
from autoshard.verify.schedule.simulate import simulate

SLOWEST_OPS = 32
"""Ops that an estimate names; the others are in its sums."""


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
    product_seconds: float
    """The part of ``compute_seconds`` of matmuls, convolutions and kernels, with what is fused into
    them."""
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
    schedule: Schedule = field(repr=False)
    """The step as the compiler ordered it, simulated."""

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
    work = InstructionWork(program, cluster, kernels or {})
    link = _HostLink()
    compute = products = cycles = flops = touched = hidden = 0.0
    uncounted: dict[str, None] = {}
    timed: list[TimedOp] = []
    unknown: list[TimedOp] = []
    for run in program.runs(unknown_trip_count):
        instruction = run.instruction
        if instruction.opcode == "while" and program.trips(run.computation, instruction) is None:
            uncounted[_named(instruction, program)] = None
        own = work.of(instruction, run.computation)
        if own.host_copy is not None:
            link.add(run, own.host_copy.bytes)
        hidden += run.times * own.hidden_copy_bytes
        if own.op is None:
            continue
        op = replace(own.op, times=run.times)
        compute += op.total_seconds
        link.beside[run.computation.name] += op.total_seconds
        cycles += op.total_seconds if op.from_cycles else 0.0
        products += op.total_seconds if op.is_product else 0.0
        flops += op.flops * op.times
        touched += op.bytes * op.times
        if op.seconds > 0:
            timed.append(op)
        if not own.is_known:
            unknown.append(op)
    bandwidth = cluster.chip.host_bandwidth.value
    return StepEstimate(
        compute_seconds=compute,
        communication_seconds=sum((one.total_seconds for one in collectives), 0.0),
        overlap=overlap,
        flops=flops,
        bytes_accessed=touched,
        product_seconds=products,
        cycle_seconds=cycles,
        hidden_copy_bytes=hidden,
        host_transfer_bytes=link.bytes,
        host_transfer_seconds=link.bytes / bandwidth,
        host_exposed_seconds=link.exposed_seconds(bandwidth),
        collectives=collectives,
        slowest_ops=tuple(sorted(timed, key=lambda op: -op.total_seconds)[:SLOWEST_OPS]),
        unknown=tuple(unknown),
        uncounted_loops=tuple(uncounted),
        schedule=simulate(
            program_lines(program, mesh, cluster, work, unknown_trip_count),
            cluster.chip.overlap_slowdown.value,
        ),
    )


def _named(loop: HloInstruction, program: HloProgram) -> str:
    """A loop as a user finds it: its name in the text, and the line where there is one."""
    place = program.place(loop)
    return loop.name if place is None else f"{loop.name} ({place})"


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
        if run.instruction.opcode.endswith("-start") and not run.computation.is_entry:
            self.early[run.computation.name] += run.times * moved

    def exposed_seconds(self, bandwidth: float) -> float:
        """Seconds of all but what other ops of the same loop hide, as planning counts it."""
        hidden = (min(moved / bandwidth, self.beside[name]) for name, moved in self.early.items())
        return self.bytes / bandwidth - sum(hidden)
