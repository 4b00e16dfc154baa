"""Split a program in micro-batches into tasks, by the stages and levels of its ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autoshard import _core
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.ir.boundary import attributes_at, replaced_arguments
from autoshard.ir.micro_batch_loop import micro_batches_of, pipeline_chunks_of
from autoshard.ir.module import functions_of
from autoshard.rewrites.stage_tasks.numbers import NumberedProgram
from autoshard.rewrites.stage_tasks.program import (
    EVERYWHERE,
    Call,
    Carried,
    StageProgram,
    StageTask,
    Step,
    Transfer,
)
from autoshard.rewrites.stage_tasks.source import SourceProgram


@dataclass(frozen=True, slots=True)
class Given:
    """What a task takes or returns."""

    value: int
    """Number of the program before it is split."""
    sharding: str | None
    """As ``mhlo.sharding``; None: nothing is planned."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitTask:
    """A task, and what goes in and out."""

    task: StageTask
    ops: _core.StageOps
    kind: int
    """Equal for those that do the same."""
    reads: tuple[Given, ...]
    gives: tuple[Given, ...]


@dataclass(frozen=True)
class SplitProgram:
    """A program as tasks, of which nothing is written yet."""

    source: NumberedProgram
    program: StageProgram
    tasks: tuple[SplitTask, ...]
    """In the order of ``program.tasks``."""
    value_of: tuple[int, ...]
    """By value of ``program``: what it is before the program is split."""


def find_tasks(source: SourceProgram | NumberedProgram, *, defers: bool) -> SplitProgram:
    """The tasks of a program, and on which stage each of its values is.

    Args:
        source: The program; stays as it is but for the labels of its ops.
        defers: What nothing in the loop waits for, as gradients of weights, is tasks of its own.

    Raises:
        PlanError: Labels that cannot be, or the loop carries something that more than one task
            reads.
    """
    numbered = NumberedProgram(source) if isinstance(source, SourceProgram) else source
    return _Finder(numbered, numbered.tasks(defers=defers)).find()


@dataclass
class _Scope:
    """Values of the new ``main``, or of the body of its loop, by what they are and stage."""

    found: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    steps: list[Step] = field(default_factory=list[Step])


class _Finder:
    def __init__(self, source: NumberedProgram, found: _core.StageTasks) -> None:
        self.source = source
        self.found = found.tasks
        self.made_by = found.made_by
        self.kinds = source.reader.kinds(found)
        self.reads = [task.reads for task in self.found]
        self.home = self._homes()
        self.sharding: dict[int, str | None] = {}
        """Shardings of what tasks return, by value."""
        self.stage_of: list[int] = []
        self.value_of: list[int] = []

    def find(self) -> SplitProgram:
        source = self.source
        tasks = self._tasks()
        by_time: dict[_core.TaskTime, list[SplitTask]] = {time: [] for time in _core.TaskTime}
        for task in tasks:
            by_time[task.ops.time].append(task)
        outside = _Scope()
        for value in source.arguments:
            outside.found[value, self.home[value]] = self._new(value, self.home[value])
        arguments = tuple(outside.found.values())
        for task in by_time[_core.TaskTime.BEFORE]:
            self._call(task, outside)
        number, loop, carried = self._loop(by_time[_core.TaskTime.LOOP], outside)
        before, outside.steps = outside.steps, []
        for task in by_time[_core.TaskTime.AFTER]:
            self._call(task, outside)
        module = source.source.module
        program = StageProgram(
            source.source.stages,
            pipeline_chunks_of(module),
            micro_batches_of(module),
            arguments,
            number,
            tuple(before),
            loop,
            tuple(outside.steps),
            carried,
            tuple(self._at(outside, value, self._home(value)) for value in source.ends),
            tuple(self.stage_of),
        )
        return SplitProgram(source, program, tasks, tuple(self.value_of))

    def _homes(self) -> dict[int, int]:
        """Where arguments lie (where they are made anew, else where they are read first), and what
        is carried."""
        source, readers = self.source, dict[int, int]()
        for task, reads in zip(self.found, self.reads, strict=True):
            for value in reads:
                readers[value] = min(readers.get(value, task.stage), task.stage)
        home = {argument: readers.get(argument, 0) for argument in source.arguments}
        for (argument, update, _), result in zip(source.carried, source.results, strict=True):
            home[argument] = home[result] = self.found[self.made_by[update]].stage
        self.home = home
        for result, argument in replaced_arguments(source.source.main).items():
            value = source.ends[result]
            if value in home or self.made_by[value] >= 0:
                home[source.arguments[argument]] = self._home(value)
        return home

    def _home(self, value: int) -> int:
        maker = self.made_by[value]
        return self.home[value] if maker < 0 else self.found[maker].stage

    def _tasks(self) -> tuple[SplitTask, ...]:
        names = set(functions_of(self.source.source.module))
        gives, found = self._gives(), list[SplitTask]()
        for number, (ops, reads) in enumerate(zip(self.found, self.reads, strict=True)):
            task = StageTask(_free_name(ops, names), ops.stage, ops.level, ops.is_deferred)
            given = tuple(Given(*one) for one in gives[number].items())
            self.sharding.update((one.value, one.sharding) for one in given)
            taken = tuple(Given(value, self._sharding_of(value)) for value in reads)
            found.append(SplitTask(task, ops, self.kinds[number], taken, given))
        return tuple(found)

    def _gives(self) -> list[dict[int, str | None]]:
        """What each task returns, and how that is sharded."""
        source = self.source
        found: list[dict[int, str | None]] = [{} for _ in self.found]

        def give(value: int, sharding: str | None) -> None:
            maker = self.made_by[value]
            if maker >= 0:
                found[maker][value] = sharding

        for number, reads in enumerate(self.reads):
            for value in reads:
                if self.made_by[value] != number:
                    give(value, source.sharding_of(value))
        for (_, update, start), one in zip(source.carried, source.source.carried, strict=True):
            give(start, one.sharding)
            give(update, one.sharding)
        results = attributes_at(source.source.main, "res_attrs")
        for value, entry in zip(source.ends, results, strict=True):
            attribute = entry.get(MHLO_SHARDING)
            give(value, None if attribute is None else mlir.StringAttr(attribute).value)
        return found

    def _sharding_of(self, value: int) -> str | None:
        return self.sharding[value] if value in self.sharding else self.source.sharding_of(value)

    def _new(self, value: int, stage: int) -> int:
        self.stage_of.append(stage)
        self.value_of.append(value)
        return len(self.stage_of) - 1

    def _call(self, split: SplitTask, scope: _Scope) -> None:
        stage = split.task.stage
        operands = tuple(self._at(scope, one.value, stage) for one in split.reads)
        results = tuple(self._new(one.value, stage) for one in split.gives)
        scope.steps.append(Call(split.task, operands, results))
        for one, result in zip(split.gives, results, strict=True):
            scope.found[one.value, stage] = result

    def _at(self, scope: _Scope, value: int, stage: int) -> int:
        """A value on a stage, sent there if it is on another one."""
        if value == self.source.number:  # which is on all of them
            stage = 0
        if (value, stage) not in scope.found:
            home = self._home(value)
            operand, result = scope.found[value, home], self._new(value, stage)
            scope.steps.append(Transfer(operand, result, home, stage))
            scope.found[value, stage] = result
        return scope.found[value, stage]

    def _read_from_outside(self, tasks: Iterable[SplitTask]) -> list[tuple[int, int]]:
        """What the loop reads from outside, on each stage that reads it."""
        source = self.source
        own = {argument for argument, _, _ in source.carried} | {source.number}
        found: dict[tuple[int, int], None] = {}
        for split in tasks:
            for one in split.reads:
                maker = self.made_by[one.value]
                is_inside = maker >= 0 and self.found[maker].time == _core.TaskTime.LOOP
                if one.value not in own and not is_inside:
                    found.setdefault((one.value, split.task.stage))
        return list(found)

    def _loop(
        self, tasks: Sequence[SplitTask], outside: _Scope
    ) -> tuple[int, tuple[Step, ...], tuple[Carried, ...]]:
        source, inside = self.source, _Scope()
        given = self._read_from_outside(tasks)
        starts = [self._at(outside, *at) for at in given]
        starts += [self._at(outside, start, self._home(start)) for _, _, start in source.carried]
        number = inside.found[source.number, 0] = self._new(source.number, EVERYWHERE)
        sums = [(argument, self.home[argument]) for argument, _, _ in source.carried]
        slots = [*given, *sums]
        arguments = [self._new(*at) for at in slots]
        inside.found.update(zip(slots, arguments, strict=True))
        for split in tasks:
            self._call(split, inside)
        updates = arguments[: len(given)]
        updates += [self._at(inside, update, self._home(update)) for _, update, _ in source.carried]
        behind = [*given, *((value, self.home[value]) for value in source.results)]
        results = [self._new(*at) for at in behind]
        for at, result in zip(behind[len(given) :], results[len(given) :], strict=True):
            outside.found[at] = result
        carried = tuple(map(Carried, starts, arguments, updates, results))
        return number, tuple(inside.steps), carried


def _free_name(ops: _core.StageOps, names: set[str]) -> str:
    """``stage0_loop2``, and ``stage0_loop2_deferred``; no other function has it."""
    deferred = "_deferred" if ops.is_deferred else ""
    first = found = f"stage{ops.stage}_{ops.time.value}{ops.level}{deferred}"
    number = 0
    while found in names:
        number += 1
        found = f"{first}_{number}"
    names.add(found)
    return found
