"""Which ops are one task: those that agree in time, stage and level."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import STAGE
from autoshard.ir.module import operations_of
from autoshard.ir.reading import shape_of

_HEAVY = frozenset(
    {"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.custom_call", "stablehlo.while"}
)
"""Ops for which a task of their own is worth its launch."""


class When(Enum):
    """The part of the program that something belongs to."""

    BEFORE = "before"
    LOOP = "loop"
    """Once for every micro-batch."""
    AFTER = "after"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What the ops of a task agree in, besides their time; in the order in which tasks run."""

    level: int
    stage: int
    is_deferred: bool = False
    """No other task of the loop waits for it."""


@dataclass(slots=True, eq=False)
class Task:
    """Ops that run together."""

    when: When
    key: Key
    ops: list[mlir.Operation] = field(default_factory=list["mlir.Operation"])
    """In program order."""

    @property
    def name(self) -> str:
        """``stage0_loop2``, and ``stage0_loop2_deferred``."""
        deferred = "_deferred" if self.key.is_deferred else ""
        return f"stage{self.key.stage}_{self.when.value}{self.key.level}{deferred}"


Use = tuple[mlir.Operation, int]
"""An op, and which of its operands."""


def outer_uses(op: mlir.Operation) -> list[Use]:
    """Operands of an op, and of those that stand in it, that are made outside of it."""
    found: list[Use] = [(op, number) for number in range(len(op.operands))]
    if not len(op.regions):
        return found
    inner = operations_of(op)[1:]
    made: set[mlir.Value] = {value for each in inner for value in each.results}
    for each in (op, *inner):
        for region in each.regions:
            made.update(argument for block in region.blocks for argument in block.arguments)
    found += [
        (each, number)
        for each in inner
        for number, value in enumerate(each.operands)
        if value not in made
    ]
    return found


def outer_values(op: mlir.Operation) -> list[mlir.Value]:
    """Values that an op reads, and those that stand in it, and that are made outside of it."""
    if not len(op.regions):
        return list(op.operands)
    return [user.operands[number] for user, number in outer_uses(op)]


def reads_of(task: Task) -> tuple[mlir.Value, ...]:
    """Values that a task reads and does not make, in the order of their first use."""
    made = {value for op in task.ops for value in op.results}
    read = dict.fromkeys(value for op in task.ops for value in outer_values(op))
    return tuple(value for value in read if value not in made)


def is_copied(op: mlir.Operation) -> bool:
    """Is it cheaper to make again than to send? Constants, iotas, and broadcasts of less."""
    if op.name in ("stablehlo.constant", "stablehlo.iota"):
        return True
    if op.name != "stablehlo.broadcast_in_dim":
        return False
    return prod(shape_of(op.operands[0])) < prod(shape_of(op.results[0]))


def keys_of(ops: Sequence[mlir.Operation], stages: int) -> list[Key]:
    """Stage and level of every op of a part of the program.

    The level follows from the stages: changes of stage on the longest way to an op, where what is
    copied is on the stage of its reader. What planning has added has no stage, and stands with what
    it reads last, else with what reads it first.

    Args:
        ops: In program order.
        stages: How many there are.

    Raises:
        PlanError: A label that cannot be.
    """
    said = [_stage_of(op, stages) for op in ops]
    makers: dict[mlir.Value, tuple[Key, ...]] = {}
    keys: list[Key] = []
    for number, op in enumerate(ops):
        read = {key for value in outer_values(op) for key in makers.get(value, ())}
        stage, is_free = said[number], is_copied(op)
        if is_free:
            makers.update(dict.fromkeys(op.results, tuple(read)))
        elif stage is None:
            stage = max(read).stage if read else _first_reader(ops, said, number)
        stage = stage or 0
        key = Key(max((k.level + (k.stage != stage) for k in read), default=0), stage)
        if not is_free:
            makers.update(dict.fromkeys(op.results, (key,)))
        keys.append(key)
    return keys


def _first_reader(
    ops: Sequence[mlir.Operation], said: Sequence[int | None], number: int
) -> int | None:
    made = set(ops[number].results)
    for reader, stage in zip(ops[number + 1 :], said[number + 1 :], strict=True):
        if stage is not None and not made.isdisjoint(outer_values(reader)):
            return stage
    return None


def _stage_of(op: mlir.Operation, stages: int) -> int | None:
    if STAGE not in op.attributes:
        return None
    stage = mlir.IntegerAttr(op.attributes[STAGE]).value
    if not 0 <= stage < stages:
        raise PlanError(
            f"{op.name} is on stage {stage}, and there are {stages} stages. Label ops with stages"
            f" 0 to {stages - 1}.",
            place(op.location),
        )
    return stage


@dataclass
class _Copies:
    """Ops that a task makes again for itself."""

    makers: Mapping[mlir.Value, mlir.Operation]
    """The ops whose results are copied."""
    ops: list[mlir.Operation]
    """Those of the task; get the copies."""
    made: dict[mlir.Value, mlir.Value] = field(default_factory=dict["mlir.Value", "mlir.Value"])

    def read(self, op: mlir.Operation) -> None:
        """Let an op, and what stands in it, read copies."""
        if self.makers.keys().isdisjoint(outer_values(op)):
            return
        for user, number in outer_uses(op):
            value = user.operands[number]
            if value in self.makers:
                user.operands[number] = self._copy(value, mlir.InsertionPoint(op))

    def _copy(self, value: mlir.Value, where: mlir.InsertionPoint) -> mlir.Value:
        if value not in self.made:
            copy = self.makers[value].clone(ip=where).operation
            for number, operand in enumerate(copy.operands):
                if operand in self.makers:
                    copy.operands[number] = self._copy(operand, mlir.InsertionPoint(copy))
            self.ops.append(copy)
            self.made[value] = copy.results[0]
        return self.made[value]


def tasks_of(
    when: When, ops: Sequence[mlir.Operation], keys: Sequence[Key], read: Collection[mlir.Value]
) -> list[Task]:
    """The tasks of one part of the program.

    Args:
        when: Which part.
        ops: All of it, in program order; what is copied where it is read stays behind.
        keys: Of each.
        read: Values that are read outside of these ops.
    """
    tasks: dict[Key, Task] = {}
    copies: dict[Key, _Copies] = {}
    copied = _makers_of_copies(ops)
    kept = set(read)
    for op, key in zip(ops, keys, strict=True):
        if op.results and op.results[0] in copied and kept.isdisjoint(op.results):
            continue
        task = tasks.setdefault(key, Task(when, key))
        copies.setdefault(key, _Copies(copied, task.ops)).read(op)
        task.ops.append(op)
    return sorted(tasks.values(), key=lambda task: task.key)


def _makers_of_copies(ops: Sequence[mlir.Operation]) -> dict[mlir.Value, mlir.Operation]:
    return {value: op for op in ops if is_copied(op) for value in op.results}


def with_deferred(tasks: Sequence[Task]) -> list[Task]:
    """Tasks of the loop, with what no other one waits for as tasks of their own.

    Those are gradients of weights. A task without a matmul among such ops stays whole, as does one
    for which nothing waits at all.
    """
    found: list[Task] = []
    read_by: dict[mlir.Value, set[Key]] = {}
    for task in tasks:
        for op in task.ops:
            for value in outer_values(op):
                read_by.setdefault(value, set()).add(task.key)
    for task in tasks:
        makers: dict[mlir.Value, int] = {}
        for number, op in enumerate(task.ops):
            makers.update(dict.fromkeys(op.results, number))
        waiting = [n for value, n in makers.items() if read_by.get(value, set()) - {task.key}]
        waited: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number in waited:
                continue
            waited.add(number)
            read = outer_values(task.ops[number])
            waiting += [makers[value] for value in read if value in makers]
        rest = [op for number, op in enumerate(task.ops) if number not in waited]
        if waited and any(op.name in _HEAVY for op in rest):
            first = [op for number, op in enumerate(task.ops) if number in waited]
            key = Key(task.key.level, task.key.stage, is_deferred=True)
            deferred = Task(task.when, key)
            copies = _Copies(_makers_of_copies(first), deferred.ops)
            for op in rest:
                copies.read(op)
                deferred.ops.append(op)
            found += [Task(task.when, task.key, first), deferred]
        else:
            found.append(task)
    return sorted(found, key=lambda task: task.key)


def with_late_slices(tasks: Sequence[Task]) -> list[Task]:
    """Tasks of the loop, without such that wait for nothing and for which one stage waits.

    What they do, as taking the part of the labels that belongs to a micro-batch, is light, and is
    done by the first task that reads it.
    """
    made: dict[mlir.Value, Key] = {}
    for task in tasks:
        for op in task.ops:
            made.update(dict.fromkeys(op.results, task.key))
    readers: dict[Key, set[Key]] = {}
    waiting: set[Key] = set()
    for task in tasks:
        for op in task.ops:
            for value in outer_values(op):
                maker = made.get(value)
                if maker is not None and maker != task.key:
                    readers.setdefault(maker, set()).add(task.key)
                    waiting.add(task.key)
    found = {task.key: task for task in tasks}
    for task in tasks:
        read_by = readers.get(task.key, set())
        is_light = not any(op.name in _HEAVY for op in task.ops)
        if (
            is_light
            and read_by
            and task.key not in waiting
            and {key.stage for key in read_by} == {task.key.stage}
        ):
            first = found[min(read_by)]
            first.ops[:0] = task.ops
            del found[task.key]
    return list(found.values())
