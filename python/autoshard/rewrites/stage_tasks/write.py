"""Write a program anew: functions of its tasks, calls of them, transfers between stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.ir import mlir
from autoshard.ir.attributes import (
    MHLO_SHARDING,
    MICRO_BATCHES,
    STAGE,
    TRANSFER,
    TRANSFER_FROM,
    TRANSFER_TO,
)
from autoshard.ir.boundary import attributes_at
from autoshard.ir.module import functions_of
from autoshard.rewrites.stage_tasks.outline import (
    Given,
    Outlined,
    outline,
    sharding_attribute,
)
from autoshard.rewrites.stage_tasks.source import SourceProgram
from autoshard.rewrites.stage_tasks.tasks import Task, When, is_copied


@dataclass(eq=False)
class Tasks:
    """All tasks of a program, each part in the order in which it runs."""

    before: Sequence[Task]
    loop: Sequence[Task]
    after: Sequence[Task]
    made_by: dict[mlir.Value, Task] = field(default_factory=dict["mlir.Value", Task])
    home: dict[mlir.Value, int] = field(default_factory=dict["mlir.Value", int])
    """The stage on which a value is."""
    reads: dict[Task, tuple[mlir.Value, ...]] = field(
        default_factory=dict[Task, "tuple[mlir.Value, ...]"]
    )
    """Values that each task reads and does not make."""

    @property
    def all(self) -> tuple[Task, ...]:
        """Those of all parts."""
        return (*self.before, *self.loop, *self.after)


def write_tasks(source: SourceProgram, tasks: Tasks) -> None:
    """Rewrite ``main``.

    Args:
        source: The program.
        tasks: All of its ops.
    """
    _Writer(source, tasks).write()


@dataclass
class _Scope:
    """Values of the new ``main``, or of the body of its loop, by stage."""

    where: mlir.InsertionPoint
    found: dict[tuple[mlir.Value, int], mlir.Value] = field(
        default_factory=dict[tuple["mlir.Value", int], "mlir.Value"]
    )


class _Writer:
    def __init__(self, source: SourceProgram, tasks: Tasks) -> None:
        self.source = source
        self.tasks = tasks
        self.home = tasks.home
        self.names = set(functions_of(source.module))

    def write(self) -> None:
        """The whole change."""
        source, tasks = self.source, self.tasks
        gives = self._gives()
        outside = _Scope(mlir.InsertionPoint(source.loop))
        for argument in source.block.arguments:
            outside.found[argument, self.home[argument]] = argument
        calls = {task: self._outlined(task, gives.get(task, [])) for task in tasks.all}
        for task in tasks.before:
            self._call(calls[task], outside)
        self._write_loop([calls[task] for task in tasks.loop], outside)
        outside.where = mlir.InsertionPoint(source.end)
        for task in tasks.after:
            self._call(calls[task], outside)
        for number, value in enumerate(list(source.end.operands)):
            source.end.operands[number] = self._at(outside, value, self.home[value])
        self._write_homes()
        self._erase_rest()

    def _gives(self) -> dict[Task, list[Given]]:
        """What each task returns."""
        source, found = self.source, dict[Task, dict[mlir.Value, Given]]()

        def give(value: mlir.Value, sharding: str | None) -> None:
            task = self.tasks.made_by.get(value)
            if task is not None:
                found.setdefault(task, {})[value] = Given(value, sharding)

        for task in self.tasks.all:
            for value in self.tasks.reads[task]:
                if self.tasks.made_by.get(value) is not task:
                    give(value, source.sharding_of(value))
        for carried in source.carried:
            give(carried.start.results[0], carried.sharding)
            give(carried.update, carried.sharding)
        results = attributes_at(source.main, "res_attrs")
        for value, entry in zip(source.end.operands, results, strict=True):
            attribute = entry.get(MHLO_SHARDING)
            give(value, None if attribute is None else mlir.StringAttr(attribute).value)
        return {task: list(values.values()) for task, values in found.items()}

    def _outlined(self, task: Task, gives: Sequence[Given]) -> Outlined:
        name, number = task.name, 0
        while name in self.names:
            number += 1
            name = f"{task.name}_{number}"
        self.names.add(name)
        for given in gives:
            self.source.sharding[given.value] = given.sharding
        reads = [Given(value, self.source.sharding_of(value)) for value in self.tasks.reads[task]]
        return outline(self.source.module, task, name, reads, gives)

    def _call(self, outlined: Outlined, scope: _Scope) -> None:
        task = outlined.task
        operands = [self._at(scope, value, task.key.stage) for value in outlined.reads]
        made = mlir.Operation.create(
            "func.call",
            results=[given.value.type for given in outlined.gives],
            operands=operands,
            attributes={
                "callee": mlir.FlatSymbolRefAttr.get(outlined.name),
                **sharding_attribute([given.sharding for given in outlined.gives]),
            },
            loc=task.ops[0].location,
            ip=scope.where,
        )
        for given, result in zip(outlined.gives, made.results, strict=True):
            scope.found[given.value, task.key.stage] = result

    def _at(self, scope: _Scope, value: mlir.Value, stage: int) -> mlir.Value:
        """A value on a stage, sent there if it is on another one."""
        if value == self.source.number:  # which is on all of them
            stage = 0
        key = value, stage
        if key in scope.found:
            return scope.found[key]
        home = self.home[value]
        integer = mlir.IntegerType.get_signless(32)
        scope.found[key] = mlir.Operation.create(
            "stablehlo.custom_call",
            results=[value.type],
            operands=[scope.found[value, home]],
            attributes={
                "call_target_name": mlir.StringAttr.get(TRANSFER),
                TRANSFER_FROM: mlir.IntegerAttr.get(integer, home),
                TRANSFER_TO: mlir.IntegerAttr.get(integer, stage),
                **sharding_attribute([self.source.sharding_of(value)]),
            },
            loc=self.source.loop.location,
            ip=scope.where,
        ).results[0]
        return scope.found[key]

    def _given(self, calls: Sequence[Outlined]) -> list[tuple[mlir.Value, int]]:
        """What the loop reads from outside, on each stage that reads it."""
        source = self.source
        own = {carried.argument for carried in source.carried} | {source.number}
        found: dict[tuple[mlir.Value, int], None] = {}
        for call in calls:
            for value in call.reads:
                maker = self.tasks.made_by.get(value)
                if value not in own and (maker is None or maker.when is not When.LOOP):
                    found.setdefault((value, call.task.key.stage))
        return list(found)

    def _write_loop(self, calls: Sequence[Outlined], outside: _Scope) -> None:
        source, given = self.source, self._given(calls)
        starts = [carried.start.results[0] for carried in source.carried]
        operands = [
            source.first.results[0],
            *(self._at(outside, value, stage) for value, stage in given),
            *(outside.found[start, self.home[start]] for start in starts),
        ]
        source.first.move_before(source.loop)
        types = [operand.type for operand in operands]
        texts = [
            source.sharding_of(source.number),
            *(source.sharding_of(value) for value, _ in given),
            *(carried.sharding for carried in source.carried),
        ]
        why = source.loop.location
        made = mlir.Operation.create(
            "stablehlo.while",
            results=types,
            operands=operands,
            attributes={MICRO_BATCHES: mlir.UnitAttr.get(), **sharding_attribute(texts)},
            regions=2,
            loc=why,
            ip=mlir.InsertionPoint(source.loop),
        )
        condition = made.regions[0].blocks.append(*types, arg_locs=[why] * len(types))
        old = source.loop.regions[0].blocks[0]
        old.arguments[0].replace_all_uses_with(condition.arguments[0])
        for op in list(old.operations):
            condition.append(op)
        body = made.regions[1].blocks.append(*types, arg_locs=[why] * len(types))
        self._write_body(body, given, calls)
        results = made.results[1 + len(given) :]
        for carried, result in zip(source.carried, results, strict=True):
            outside.found[carried.result, self.home[carried.result]] = result

    def _write_body(
        self,
        body: mlir.Block,
        given: Sequence[tuple[mlir.Value, int]],
        calls: Sequence[Outlined],
    ) -> None:
        source, inside = self.source, _Scope(mlir.InsertionPoint(body))
        sums = body.arguments[1 + len(given) :]
        inside.found[source.number, 0] = body.arguments[0]
        inside.found.update(zip(given, body.arguments[1:], strict=False))
        for carried, argument in zip(source.carried, sums, strict=True):
            inside.found[carried.argument, self.home[carried.argument]] = argument
        for call in calls:
            self._call(call, inside)
        source.number.replace_all_uses_with(body.arguments[0])
        body.append(source.one)
        body.append(source.counted)
        mlir.Operation.create(
            "stablehlo.return",
            operands=[
                source.counted.results[0],
                *body.arguments[1 : 1 + len(given)],
                *(inside.found[one.update, self.home[one.update]] for one in source.carried),
            ],
            loc=source.loop.location,
            ip=mlir.InsertionPoint(body),
        )

    def _erase_rest(self) -> None:
        """Take away the old loop, and what has been copied to where it is read.

        Not before all is written: values are known by their addresses, which new ops may get.
        """
        self._erase_unread()  # it may read what the old loop hands out
        self.source.loop.erase()
        self._erase_unread()  # the old loop may have read it

    def _erase_unread(self) -> None:
        for op in reversed(list(self.source.block.operations)):
            if is_copied(op.operation) and not any(list(value.uses) for value in op.results):
                op.operation.erase()

    def _write_homes(self) -> None:
        """Let arguments of ``main`` say where they lie."""
        integer = mlir.IntegerType.get_signless(32)
        main = self.source.main
        arguments = attributes_at(main, "arg_attrs")
        for argument, entry in zip(self.source.block.arguments, arguments, strict=True):
            entry[STAGE] = mlir.IntegerAttr.get(integer, self.home[argument])
        main.attributes["arg_attrs"] = mlir.ArrayAttr.get(
            [mlir.DictAttr.get(entry) for entry in arguments]
        )
