"""A step as one list: what is run and what is sent, in the order of the schedule.

before  program: F, B on each of 2 stages; schedule: F0 F1 B0 ..
after   Run(F, (0, 3), (7, 8), 0)  Send((7,), (9,))  Run(..)

Values of all micro-batches are in numbered slots. A slot is dropped after the last instruction that
reads it, so that its memory is free as soon as that has run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import cast

from autoshard.rewrites.stage_tasks.program import Call, Carried, StageProgram, Step, Transfer
from autoshard.schedule.list_scheduler import Schedule


@dataclass(frozen=True, slots=True)
class Run:
    """A task runs."""

    task: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    micro_batch: int
    """-1 outside of the loop."""
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Arrays go from one stage to another one."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    values: tuple[int, ...]
    """The values of the program that they become."""
    origin: int
    """The stage that they leave."""
    target: int
    dropped: tuple[int, ...] = ()


Instruction = Run | Send


@dataclass(frozen=True)
class Instructions:
    """One step."""

    slots: int
    """How many there are."""
    arguments: tuple[int, ...]
    numbers: tuple[tuple[int, int, int], ...]
    """Slot, stage and micro-batch of the numbers of micro-batches that tasks read."""
    steps: tuple[Instruction, ...]
    results: tuple[int, ...]


def instructions_of(program: StageProgram, schedule: Schedule) -> Instructions:
    """The list.

    Args:
        program: Its tasks and transfers.
        schedule: Its works are the calls of the loop.
    """
    return _Writer(program).write(schedule)


class _Writer:
    def __init__(self, program: StageProgram) -> None:
        self.program = program
        self.slots: dict[tuple[int, int], int] = {}
        """Slot of a value of a micro-batch; of what is outside of the loop: -1."""
        self.numbers: dict[tuple[int, int], int] = {}
        """Slot of the number of a micro-batch on a stage."""
        self.carried = {one.argument: one for one in program.carried}
        self.in_loop = {
            value
            for step in program.loop
            for value in (step.results if isinstance(step, Call) else (step.result,))
        }
        self.finished = {one.result: one for one in program.carried}
        self.steps: list[Instruction] = []

    def write(self, schedule: Schedule) -> Instructions:
        program = self.program
        arguments = tuple(self._slot(value, -1) for value in program.arguments)
        self._around(program.before)
        sent: defaultdict[int, list[Transfer]] = defaultdict(list)
        for transfer in program.transfers:
            sent[transfer.operand].append(transfer)
        for run in schedule.runs:
            call = program.calls[run.work]
            self._run(call, run.micro_batch)
            self._send([one for value in call.results for one in sent[value]], run.micro_batch)
        self._around(program.after)
        results = tuple(self._slot(value, -1) for value in program.results)
        numbers = tuple((slot, *key) for key, slot in self.numbers.items())
        count = len(self.slots) + len(self.numbers)
        steps = _with_drops(self.steps, {*results, *(slot for slot, _, _ in numbers)})
        return Instructions(count, arguments, numbers, steps, results)

    def _around(self, steps: Sequence[Step]) -> None:
        """What is outside of the loop."""
        for is_call, group in groupby(steps, lambda step: isinstance(step, Call)):
            if is_call:
                for call in group:
                    self._run(cast(Call, call), -1)
            else:
                self._send([cast(Transfer, step) for step in group], -1)

    def _run(self, call: Call, micro_batch: int) -> None:
        operands = tuple(
            self._number(call.task.stage, micro_batch)
            if value == self.program.number
            else self._slot(value, micro_batch)
            for value in call.operands
        )
        results = tuple(self._slot(value, micro_batch) for value in call.results)
        self.steps.append(Run(call.task.name, operands, results, micro_batch))

    def _send(self, transfers: Sequence[Transfer], micro_batch: int) -> None:
        """What follows one another between the same stages is one instruction."""
        for stages, group in groupby(transfers, lambda one: (one.origin, one.target)):
            pairs = [(one.operand, one.result) for one in group]
            operands = tuple(self._slot(operand, micro_batch) for operand, _ in pairs)
            results = tuple(self._slot(result, micro_batch) for _, result in pairs)
            values = tuple(result for _, result in pairs)
            self.steps.append(Send(operands, results, values, *stages))

    def _number(self, stage: int, micro_batch: int) -> int:
        key = stage, micro_batch
        if key not in self.numbers:
            self.numbers[key] = len(self.slots) + len(self.numbers)
        return self.numbers[key]

    def _slot(self, value: int, micro_batch: int) -> int:
        if value in self.finished:
            return self._carried(self.finished[value], self.program.micro_batches)
        if value in self.carried:
            return self._carried(self.carried[value], micro_batch)
        key = value, micro_batch if value in self.in_loop else -1
        if key not in self.slots:
            self.slots[key] = len(self.slots) + len(self.numbers)
        return self.slots[key]

    def _carried(self, one: Carried, micro_batch: int) -> int:
        """What is carried into a micro-batch; into the one behind the last: the result."""
        if one.update == one.argument or micro_batch == 0:
            return self._slot(one.start, -1)
        return self._slot(one.update, micro_batch - 1)


def _with_drops(steps: Sequence[Instruction], kept: set[int]) -> tuple[Instruction, ...]:
    found: list[Instruction] = []
    for step in reversed(steps):
        ended = tuple(dict.fromkeys(s for s in (*step.operands, *step.results) if s not in kept))
        kept.update(ended)
        found.append(replace(step, dropped=ended))
    return tuple(reversed(found))
