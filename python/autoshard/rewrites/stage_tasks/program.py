"""What a module that is split into tasks says, with stages and times as types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import (
    DEFERRED,
    LEVEL,
    MICRO_BATCHES,
    PIPELINE_STAGES,
    STAGE,
    TRANSFER,
    TRANSFER_FROM,
    TRANSFER_TO,
    attribute_of,
    custom_call_target,
)
from autoshard.ir.boundary import attributes_at, main_function
from autoshard.ir.micro_batch_loop import pipeline_chunks_of
from autoshard.ir.module import functions_of


@dataclass(frozen=True, slots=True)
class StageTask:
    """A function that runs on one stage."""

    name: str
    stage: int
    level: int
    is_deferred: bool
    """Nothing in the loop waits for it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A task that runs. Values are numbers of the program's."""

    task: StageTask
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that is sent to another stage."""

    operand: int
    result: int
    origin: int
    target: int


Step = Call | Transfer


@dataclass(frozen=True, slots=True)
class Carried:
    """What the loop over micro-batches carries. Values are numbers."""

    start: int
    argument: int
    """As a micro-batch reads it."""
    update: int
    """As a micro-batch leaves it; ``argument`` where it is only passed on."""
    result: int
    """Behind the loop."""


@dataclass(frozen=True)
class StageProgram:
    """A step as tasks and transfers: before, in and behind the loop over micro-batches."""

    stages: int
    chunks: int
    """Parts of the model on each stage."""
    micro_batches: int
    arguments: tuple[int, ...]
    """Values that are the arguments of ``main``."""
    number: int
    """The value that is the number of the micro-batch; it is on all stages."""
    before: tuple[Step, ...]
    loop: tuple[Step, ...]
    after: tuple[Step, ...]
    carried: tuple[Carried, ...]
    results: tuple[int, ...]
    stage_of: tuple[int, ...]
    """The stage that each value is on."""

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All of them, in the order of the program."""
        return (*self.before, *self.loop, *self.after)

    @cached_property
    def all_calls(self) -> tuple[Call, ...]:
        """Those before, in and behind the loop."""
        return tuple(step for step in self.steps if isinstance(step, Call))

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """Those of the loop, each behind those that it reads."""
        return tuple(step for step in self.loop if isinstance(step, Call))

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Those of the loop."""
        return tuple(step for step in self.loop if isinstance(step, Transfer))

    @cached_property
    def tasks(self) -> tuple[StageTask, ...]:
        """All of them, in the order of the program."""
        return tuple(call.task for call in self.all_calls)

    @cached_property
    def sums(self) -> tuple[Carried, ...]:
        """What micro-batches change of what is carried."""
        return tuple(one for one in self.carried if one.update != one.argument)


def is_split(module: mlir.Module) -> bool:
    """Whether functions of a module are tasks of stages."""
    return any(STAGE in function.attributes for function in functions_of(module).values())


def read_stage_program(module: mlir.Module) -> StageProgram:
    """The tasks of a module, each value at its stage.

    Raises:
        PlanError: An op of ``main`` is no task and no transfer, or a value is read on a stage on
            which it is not.
    """
    return _Reader(module).read()


@dataclass
class _Reader:
    module: mlir.Module
    numbers: dict[mlir.Value, int] = field(default_factory=dict[mlir.Value, int])
    stage_of: list[int] = field(default_factory=list[int])

    def read(self) -> StageProgram:
        attributes = self.module.operation.attributes
        for name, by in ((PIPELINE_STAGES, "pipeline-stages"), (MICRO_BATCHES, "micro-batch")):
            if name not in attributes:
                raise PlanError(f"the module has no {name}. Run autoshard-{by} before.")
        self.stages = mlir.IntegerAttr(attributes[PIPELINE_STAGES]).value
        said = json.loads(mlir.StringAttr(attributes[MICRO_BATCHES]).value)
        self.functions = functions_of(self.module)
        main = main_function(self.module)
        block = main.regions[0].blocks[0]
        entries = attributes_at(main, "arg_attrs")
        arguments = [
            self._new(argument, self._number(entry.get(STAGE), main))
            for argument, entry in zip(block.arguments, entries, strict=True)
        ]
        ops = [op.operation for op in block.operations]
        places = [at for at, op in enumerate(ops) if MICRO_BATCHES in op.attributes]
        if len(places) != 1:
            raise PlanError(
                f"the program has {len(places)} loops over micro-batches, and needs one. Run"
                " autoshard-micro-batch and autoshard-split-stages before.",
                place(main.location),
            )
        (at,) = places
        before = self._steps(ops[:at])
        number, loop, carried = self._loop(ops[at])
        after = self._steps(ops[at + 1 : -1])
        return StageProgram(
            self.stages,
            pipeline_chunks_of(self.module),
            said["count"],
            tuple(arguments),
            number,
            before,
            loop,
            after,
            carried,
            tuple(self.numbers[value] for value in ops[-1].operands),
            tuple(self.stage_of),
        )

    def _new(self, value: mlir.Value, stage: int) -> int:
        number = self.numbers[value] = len(self.stage_of)
        self.stage_of.append(stage)
        return number

    def _number(self, attribute: mlir.Attribute | None, op: mlir.Operation) -> int:
        if attribute is None:
            raise PlanError(
                f"{op.name} does not say its stage. Run autoshard-split-stages before.",
                place(op.location),
            )
        stage = mlir.IntegerAttr(attribute).value
        if not 0 <= stage < self.stages:
            raise PlanError(
                f"{op.name} is on stage {stage}, and there are {self.stages}.", place(op.location)
            )
        return stage

    def _steps(self, ops: Sequence[mlir.Operation]) -> tuple[Step, ...]:
        found: list[Step] = []
        for op in ops:
            if op.name == "func.call":
                found.append(self._call(op))
            elif custom_call_target(op) == TRANSFER:
                found.append(self._transfer(op))
            elif op.name != "stablehlo.constant":  # of the loop itself
                raise PlanError(
                    f"{op.name} is in no task. Run autoshard-split-stages before.",
                    place(op.location),
                )
        return tuple(found)

    def _call(self, op: mlir.Operation) -> Call:
        name = mlir.FlatSymbolRefAttr(op.attributes["callee"]).value
        function = self.functions[name]
        attributes = function.attributes
        stage = self._number(attribute_of(function, STAGE), function)
        level = mlir.IntegerAttr(attributes[LEVEL]).value if LEVEL in attributes else 0
        task = StageTask(name, stage, level, DEFERRED in attributes)
        operands = tuple(self._read(value, stage, op, f"@{name}") for value in op.operands)
        return Call(task, operands, tuple(self._new(value, stage) for value in op.results))

    def _transfer(self, op: mlir.Operation) -> Transfer:
        ends = (TRANSFER_FROM, TRANSFER_TO)
        origin, target = (self._number(attribute_of(op, end), op) for end in ends)
        operand = self._read(op.operands[0], origin, op, "a transfer")
        return Transfer(operand, self._new(op.results[0], target), origin, target)

    def _read(self, value: mlir.Value, stage: int, op: mlir.Operation, reader: str) -> int:
        """The number of a value that is read on a stage; -1 is a stage that stands for all."""
        number = self.numbers[value]
        if self.stage_of[number] not in (stage, EVERYWHERE):
            raise PlanError(
                f"{reader} runs on stage {stage} and reads a value of type {value.type} that is on"
                f" stage {self.stage_of[number]} only. Send it there with a custom_call"
                f" @{TRANSFER}.",
                place(op.location),
            )
        return number

    def _loop(self, op: mlir.Operation) -> tuple[int, tuple[Step, ...], tuple[Carried, ...]]:
        body = op.regions[1].blocks[0]
        number = self._new(body.arguments[0], EVERYWHERE)
        starts = [self.numbers[value] for value in list(op.operands)[1:]]
        arguments = [
            self._new(argument, self.stage_of[start])
            for argument, start in zip(list(body.arguments)[1:], starts, strict=True)
        ]
        ops = [each.operation for each in body.operations]
        counted = mlir.OpResult(ops[-1].operands[0]).owner.operation
        steps = self._steps([each for each in ops[:-1] if each != counted])
        carried: list[Carried] = []
        values = zip(list(ops[-1].operands)[1:], list(op.results)[1:], strict=True)
        for (yielded, result), start, argument in zip(values, starts, arguments, strict=True):
            stage = self.stage_of[argument]
            update = self._read(yielded, stage, ops[-1], "the loop")
            carried.append(Carried(start, argument, update, self._new(result, stage)))
        return number, steps, tuple(carried)


EVERYWHERE = -1
"""Stage of the number of the micro-batch."""
