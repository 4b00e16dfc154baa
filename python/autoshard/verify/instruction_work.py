"""What devices do for one instruction of a compiled program: compute, copy, or nothing.

Seconds of an instruction are the compiler's own where its HLO has them: XLA:TPU writes
``estimated_cycles``. Elsewhere they follow from a roofline (docs/results/step_estimate.md).
Collectives are in ``hlo_collectives``; an instruction may carry one and compute as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.cluster import Cluster
from autoshard.cluster.chips import FAMILIES
from autoshard.errors import ClusterError
from autoshard.verify.hlo_collectives import is_collective
from autoshard.verify.hlo_program import (
    CALLS,
    VIEWS,
    HloArray,
    HloComputation,
    HloInstruction,
    HloProgram,
    arrays_of,
)
from autoshard.verify.instruction_costs import PRODUCTS, InstructionCosts
from autoshard.verify.kernel_costs import KernelCosts, kernel_cost

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_CYCLES = 2**63 - 1
"""What XLA:TPU writes where its cost model gives up; seen on fusions of 2 GiB results."""
_MOVES = ("copy", "slice", "dynamic-slice", "dynamic-update-slice")
_COPIES = frozenset(f"{name}-start" for name in _MOVES)
"""What the compiler starts early, beside other work."""
_ONLY_MOVES = VIEWS | {"parameter", "constant", *_MOVES}
"""What a fusion has that only wraps a copy."""


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
    is_product: bool
    """Whether a matmul, a convolution or a kernel is in it."""

    @property
    def total_seconds(self) -> float:
        """Seconds of all runs of one step."""
        return self.seconds * self.times


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A transfer between the memories of a device and of its host."""

    bytes: float
    to_host: bool
    """Or else from it."""


@dataclass(frozen=True, slots=True)
class Work:
    """One run of one instruction on one device; of collectives nothing."""

    op: TimedOp | None = None
    """What the cores do; of one run."""
    is_known: bool = True
    """False for a custom call of which only the operands and results are known."""
    host_copy: HostCopy | None = None
    hidden_copy_bytes: float = 0.0
    """Moved within the device by an asynchronous copy."""


_NOTHING = Work()


class InstructionWork:
    """What each instruction of a program has devices do."""

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
        self.known: dict[int, Work] = {}

    def of(self, instruction: HloInstruction, computation: HloComputation) -> Work:
        """One run of an instruction; what it calls or loops over is not in it.

        Raises:
            ClusterError: It has cycles, and the clock of the chip is not known.
        """
        key = id(instruction)
        if key not in self.known:
            self.known[key] = self._work(instruction, computation)
        return self.known[key]

    def _work(self, instruction: HloInstruction, computation: HloComputation) -> Work:
        if _runs_others(instruction) or _is_communication(instruction, self.program):
            return _NOTHING
        if instruction.opcode.endswith(("-done", "-update")):
            return _NOTHING
        host_copy = self._host_copy(instruction, computation)
        if host_copy is not None:
            return Work(host_copy=host_copy)
        if instruction.opcode in _COPIES:
            moved = sum(array.bytes for array in _copied(instruction, computation))
            return Work(hidden_copy_bytes=moved)
        return self._timed(instruction, computation)

    def _host_copy(
        self, instruction: HloInstruction, computation: HloComputation
    ) -> HostCopy | None:
        """A copy or slice from the host's memory to the device's, or back.

        XLA:GPU wraps it into a fusion.
        """
        name = instruction.opcode.removesuffix("-start")
        if name == "fusion" and len(instruction.called) == 1:
            inner = self.program.computations[instruction.called[0]]
            if not {each.opcode for each in inner.instructions} <= _ONLY_MOVES:
                return None
            copies = (self._host_copy(each, inner) for each in inner.instructions)
            return next((copy for copy in copies if copy is not None), None)
        if name not in _MOVES:
            return None
        made = _copied(instruction, computation)
        operands = [arrays_of(computation.by_name[name].result) for name in instruction.operands]
        # An update moves what it writes, and gives back the whole array.
        moved = operands[1] if name == "dynamic-update-slice" else made
        read = moved if name == "dynamic-update-slice" else operands[0]
        to_host = any(array.on_host for array in made)
        if any(array.on_host for array in read) == to_host:
            return None
        return HostCopy(sum(array.bytes for array in moved), to_host)

    def _timed(self, instruction: HloInstruction, computation: HloComputation) -> Work:
        if instruction.opcode.endswith("-start"):
            done = computation.end_of(instruction) or instruction
            opcode = instruction.opcode.removesuffix("-start")
            instruction = replace(instruction, opcode=opcode, result=done.result)
        cost = kernel_cost(instruction, self.kernels) or self.costs.of(instruction, computation)
        cycles = _cycles(instruction)
        op = TimedOp(
            name=instruction.name,
            opcode=instruction.opcode,
            op_name=instruction.op_name,
            place=self.program.place(instruction),
            seconds=cost.seconds if cycles is None else cycles / self._clock(),
            times=1,
            flops=cost.flops,
            bytes=cost.bytes,
            from_cycles=cycles is not None,
            is_product=cost.is_product,
        )
        return Work(op, cost.is_known or cycles is not None)

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


def _cycles(instruction: HloInstruction) -> int | None:
    """The compiler's own count; None where it has none."""
    found = _CYCLES.search(instruction.rest)
    if found is None or int(found[1]) == _NO_CYCLES:
        return None
    return int(found[1])


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
        opcodes = {each.opcode for each in instructions_inside(instruction, program)}
        return any(map(is_collective, opcodes)) and opcodes.isdisjoint(PRODUCTS)
    return is_collective(opcode) or opcode.removesuffix("-done") in ("send", "recv")


def instructions_inside(fusion: HloInstruction, program: HloProgram) -> Iterator[HloInstruction]:
    """All instructions of a fusion and of the fusions in it."""
    for name in fusion.called:
        for each in program.computations[name].instructions:
            yield each
            if each.opcode == "fusion":
                yield from instructions_inside(each, program)


def _copied(instruction: HloInstruction, computation: HloComputation) -> list[HloArray]:
    """What a copy or slice makes."""
    done = computation.end_of(instruction)
    return instruction.arrays[:1] if done is None else done.arrays
