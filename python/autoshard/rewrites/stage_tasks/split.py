"""Split a program in micro-batches into tasks, by the stages and levels of its ops."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.boundary import replaced_arguments
from autoshard.rewrites.stage_tasks.source import CarriedValue, SourceProgram
from autoshard.rewrites.stage_tasks.tasks import (
    Key,
    Task,
    When,
    keys_of,
    outer_values,
    reads_of,
    tasks_of,
    with_deferred,
    with_late_slices,
)
from autoshard.rewrites.stage_tasks.write import Tasks, write_tasks


def split_stages(module: mlir.Module, *, defers: bool) -> None:
    """Let ``main`` be a list of calls of tasks, and of transfers between stages.

    Args:
        module: In micro-batches, its ops labelled; planned or not. Expects its context.
        defers: What nothing in the loop waits for, as gradients of weights, is tasks of its own.

    Raises:
        PlanError: It has no stages or no loop, or the loop carries something that more than one
            task reads.
    """
    source = SourceProgram(module)
    write_tasks(source, find_tasks(source, defers))


def find_tasks(source: SourceProgram, defers: bool) -> Tasks:
    """The tasks of a program, and on which stage each of its values is.

    Args:
        source: The program; what is copied where it is read is copied.
        defers: As for ``split_stages``.

    Raises:
        PlanError: As for ``split_stages``.
    """
    stages, ends = source.stages, set(source.end.operands)
    inside, after = source.inside, source.after
    updates = {carried.update for carried in source.carried}
    loop = tasks_of(When.LOOP, inside, keys_of(inside, stages), updates)
    loop = with_late_slices(loop)
    if defers:
        loop = with_deferred(loop)
    behind = tasks_of(When.AFTER, after, keys_of(after, stages), ends)
    before = source.before
    reads = {task: reads_of(task) for task in (*loop, *behind)}
    source.label_held({task: reads[task] for task in loop})
    read = {value for values in reads.values() for value in values}
    ahead = tasks_of(When.BEFORE, before, keys_of(before, stages), {*read, *ends})
    carrying = _tasks_that_carry(source, loop)
    tasks = Tasks(_with_starts(carrying, ahead), loop, behind)
    tasks.reads = {task: reads_of(task) for task in tasks.before} | reads
    for task in tasks.all:
        for op in task.ops:
            tasks.made_by.update(dict.fromkeys(op.results, task))
            tasks.home.update(dict.fromkeys(op.results, task.key.stage))
    for carried, task in carrying:
        tasks.home[carried.argument] = tasks.home[carried.result] = task.key.stage
    _find_homes(source, tasks)
    return tasks


_Carrying = Sequence[tuple[CarriedValue, Task]]
"""What is carried, with the task that makes its next value."""


def _with_starts(carrying: _Carrying, ahead: Sequence[Task]) -> list[Task]:
    """Tasks before the loop, with zeros made where they are added to."""
    tasks = {task.key: task for task in ahead}
    for carried, task in carrying:
        key = Key(0, task.key.stage)
        tasks.setdefault(key, Task(When.BEFORE, key)).ops.append(carried.start)
    return sorted(tasks.values(), key=lambda task: task.key)


def _tasks_that_carry(source: SourceProgram, loop: Sequence[Task]) -> _Carrying:
    """For all that is carried the task that makes its next value.

    Raises:
        PlanError: There is none, or another one reads it.
    """
    makers: dict[mlir.Value, Task] = {}
    for task in loop:
        for op in task.ops:
            makers.update(dict.fromkeys(op.results, task))
    readers: dict[mlir.Value, list[tuple[Task, mlir.Operation]]] = {
        carried.argument: [] for carried in source.carried
    }
    for task in loop:
        for op in task.ops:
            for value in outer_values(op):
                if value in readers:
                    readers[value].append((task, op))
    found: list[tuple[CarriedValue, Task]] = []
    for carried in source.carried:
        maker = makers.get(carried.update)
        others = [op for task, op in readers[carried.argument] if task is not maker]
        if maker is None or others:
            raise PlanError(
                f"the loop over micro-batches carries a value of type {carried.argument.type} that"
                " is not read and made anew by one task. Such programs are not split into stages.",
                place((others[0] if others else source.loop).location),
            )
        found.append((carried, maker))
    return found


def _find_homes(source: SourceProgram, tasks: Tasks) -> None:
    """Say where arguments lie: where they are made anew, else where they are read first."""
    readers: dict[mlir.Value, int] = {}
    for task in tasks.all:
        for value in tasks.reads[task]:
            stage = readers.get(value, task.key.stage)
            readers[value] = min(stage, task.key.stage)
    arguments = source.block.arguments
    for argument in arguments:
        tasks.home[argument] = readers.get(argument, 0)
    for result, argument in replaced_arguments(source.main).items():
        value = source.end.operands[result]
        if value in tasks.home:
            tasks.home[arguments[argument]] = tasks.home[value]
