"""A program in stages by numbers: its ops with their stages, its values with their shardings."""

from __future__ import annotations

from autoshard import _core
from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import LEVEL, STAGE
from autoshard.ir.module import operations_of, structure_of
from autoshard.rewrites.stage_tasks.shardings import shardings_of
from autoshard.rewrites.stage_tasks.source import CarriedValue, SourceProgram
from autoshard.rewrites.stage_tasks.tasks import task_op


class NumberedProgram:
    """What the core knows of a program, and the way back from its numbers."""

    def __init__(self, source: SourceProgram) -> None:
        """Read a program; stages and levels are taken off its ops.

        Args:
            source: The program, which no longer changes.

        Raises:
            PlanError: A label that cannot be.
        """
        self.source = source
        self.operations = operations_of(source.module.operation)
        self._numbers = {
            op.results[0]: number for number, op in enumerate(self.operations) if len(op.results)
        }
        """Numbers of ops, by their first results."""
        stages = [_taken_stage(op) for op in self.operations]
        self.reader = _core.TaskReader(structure_of(source.module))
        self._makers = self.reader.makers
        self.main = self.operations.index(source.main)
        self.loop = self._numbers[source.loop.results[0]]
        self.arguments = [
            self.reader.argument(self.main, 0, number)
            for number in range(len(source.block.arguments))
        ]
        """Values that are the arguments of ``main``."""
        self.carried = [
            (self.of(one.argument), self.of(one.update), self.of(one.start.results[0]))
            for one in source.carried
        ]
        """Argument, update and start of each value that is carried."""
        self.results = [self.of(one.result) for one in source.carried]
        """What is carried, behind the loop."""
        self.number = self.of(source.number)
        self.ends = self.reader.operands(self.operations.index(source.end))
        """What ``main`` returns."""
        self._sharding = {self.of(value): text for value, text in source.sharding.items()}
        self._check(stages)
        own = (source.first, source.counted, source.one)
        self.reader.say(
            main=self.main,
            loop=self.loop,
            stages=[-1 if stage is None else stage for stage in stages],
            own=[self._numbers[op.results[0]] for op in own],
            held=[self._numbers[op.results[0]] for op in source.held],
            carried=[
                (argument, update, self._numbers[one.start.results[0]])
                for (argument, update, _), one in zip(self.carried, source.carried, strict=True)
            ],
        )

    def _check(self, stages: list[int | None]) -> None:
        count = self.source.stages
        for number, stage in enumerate(stages):
            if stage is None or 0 <= stage < count:
                continue
            op = self.operations[number]
            if op.block in (self.source.block, self.source.body):
                raise PlanError(
                    f"{op.name} is on stage {stage}, and there are {count} stages. Label ops with"
                    f" stages 0 to {count - 1}.",
                    place(op.location),
                )

    def tasks(self, *, defers: bool) -> _core.StageTasks:
        """The tasks.

        Args:
            defers: What nothing in the loop waits for, as gradients of weights, is tasks of its
                own.

        Raises:
            PlanError: The loop carries something that more than one task reads.
        """
        found = self.reader.tasks(defers, lambda op: task_op(self.operations[op]))
        if found.not_carried is not None:
            raise self._not_carried(self.source.carried[found.not_carried], found)
        return found

    def _not_carried(self, one: CarriedValue, found: _core.StageTasks) -> PlanError:
        argument, update = self.of(one.argument), self.of(one.update)
        maker = next(
            (
                task
                for task in found.tasks
                if any(item.op == self._makers[update] for item in task.items)
            ),
            None,
        )
        others = (
            self.operations[item.op]
            for task in found.tasks
            if task.time == _core.TaskTime.LOOP and task is not maker
            for item in task.items
            if argument in item.reads
        )
        return PlanError(
            f"the loop over micro-batches carries a value of type {one.argument.type} that is not"
            " read and made anew by one task. Such programs are not split into stages.",
            place(next(others, self.source.loop).location),
        )

    @property
    def num_values(self) -> int:
        """How many values there are; copies that tasks make for themselves are behind them."""
        return len(self._makers)

    def of(self, value: mlir.Value) -> int:
        """The number of a value of ``main``, or of the body of its loop."""
        if not isinstance(value, mlir.BlockArgument):
            result = mlir.OpResult(value)
            maker = self._numbers[result.owner.operation.results[0]]
            return self.reader.result(maker, result.result_number)
        argument = mlir.BlockArgument(value)
        if argument.owner == self.source.block:
            return self.reader.argument(self.main, 0, argument.arg_number)
        return self.reader.argument(self.loop, 1, argument.arg_number)

    def value(self, number: int) -> mlir.Value:
        """The value of ``main``, or of the body of its loop, with a number."""
        maker = self._makers[number]
        if maker >= 0:
            return self.operations[maker].results[number - self.reader.result(maker, 0)]
        if number >= self.number:
            return self.source.body.arguments[number - self.number]
        return self.source.block.arguments[number - self.arguments[0]]

    def sharding_of(self, number: int) -> str | None:
        """How a value is sharded; None: nothing is planned."""
        if number not in self._sharding and self._makers[number] >= 0:
            maker = self._makers[number]
            first = self.reader.result(maker, 0)
            for at, text in enumerate(shardings_of(self.operations[maker])):
                self._sharding.setdefault(first + at, text)
        return self._sharding.get(number)


def _taken_stage(op: mlir.Operation) -> int | None:
    """The stage that an op says, which is taken off it, as is its level."""
    attributes, stage = op.attributes, None
    if STAGE in attributes:
        stage = mlir.IntegerAttr(attributes[STAGE]).value
        del attributes[STAGE]
    if LEVEL in attributes:
        del attributes[LEVEL]
    return stage
