"""Write a program anew: functions of its tasks, calls of them, transfers between stages."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir import mlir
from autoshard.ir.attributes import (
    DEFERRED,
    LEVEL,
    MHLO_SHARDING,
    MICRO_BATCHES,
    STAGE,
    TRANSFER,
    TRANSFER_FROM,
    TRANSFER_TO,
)
from autoshard.ir.boundary import attributes_at
from autoshard.rewrites.stage_tasks.program import Step, Transfer
from autoshard.rewrites.stage_tasks.shardings import sharding_attribute
from autoshard.rewrites.stage_tasks.source import SourceProgram
from autoshard.rewrites.stage_tasks.split import SplitProgram, SplitTask, find_tasks
from autoshard.rewrites.stage_tasks.tasks import is_copied, outer_uses


def split_stages(module: mlir.Module, *, defers: bool) -> None:
    """Let ``main`` be a list of calls of tasks, and of transfers between stages.

    Args:
        module: In micro-batches, its ops labelled; planned or not. Expects its context.
        defers: What nothing in the loop waits for, as gradients of weights, is tasks of its own.

    Raises:
        PlanError: It has no stages or no loop, or the loop carries something that more than one
            task reads.
    """
    _Writer(find_tasks(SourceProgram(module), defers=defers)).write()


def task_function(
    split: SplitProgram, task: SplitTask, where: mlir.InsertionPoint
) -> mlir.Operation:
    """A function of a task; the program stays as it is.

    Args:
        split: The program.
        task: One of its tasks.
        where: Where the function is written; its name is that of the task.
    """
    return _outlined(split, task, where, moves=False)


def empty_function(
    values: Sequence[tuple[mlir.Type, str | None]],
    where: mlir.InsertionPoint,
    location: mlir.Location,
) -> None:
    """Write a ``main`` that takes values of these types and shardings, and does nothing."""
    types = [type_ for type_, _ in values]
    attributes: dict[str, mlir.Attribute] = {
        "sym_name": mlir.StringAttr.get("main"),
        "function_type": mlir.TypeAttr.get(mlir.FunctionType.get(types, [])),
        "arg_attrs": _boundary([sharding for _, sharding in values]),
    }
    function = mlir.Operation.create(
        "func.func", attributes=attributes, regions=1, loc=location, ip=where
    )
    block = function.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
    mlir.Operation.create("func.return", loc=location, ip=mlir.InsertionPoint(block))


class _Writer:
    def __init__(self, split: SplitProgram) -> None:
        self.split = split
        self.numbered = split.source
        self.source = split.source.source
        self.tasks = {one.task.name: one for one in split.tasks}
        self.sharding: dict[int, str | None] = {
            given.value: given.sharding for one in split.tasks for given in one.gives
        }
        self.values: dict[int, mlir.Value] = {}
        """By value of the program in tasks."""

    def write(self) -> None:
        """The whole change."""
        source, program = self.source, self.split.program
        end = mlir.InsertionPoint(source.module.body)
        wheres = {one.task.name: _location(self.split, one) for one in self.split.tasks}
        for one in self.split.tasks:
            _outlined(self.split, one, end, moves=True)
        self.values.update(zip(program.arguments, source.block.arguments, strict=True))
        self._steps(program.before, mlir.InsertionPoint(source.loop), wheres)
        self._write_loop(wheres)
        self._steps(program.after, mlir.InsertionPoint(source.end), wheres)
        for number, value in enumerate(program.results):
            source.end.operands[number] = self.values[value]
        self._write_homes()
        self._erase_rest()

    def _sharding_of(self, value: int) -> str | None:
        """How a value of the program in tasks is sharded."""
        known = self.split.value_of[value]
        if known in self.sharding:
            return self.sharding[known]
        return self.numbered.sharding_of(known)

    def _steps(
        self, steps: Sequence[Step], where: mlir.InsertionPoint, wheres: dict[str, mlir.Location]
    ) -> None:
        integer = mlir.IntegerType.get_signless(32)
        for step in steps:
            if isinstance(step, Transfer):
                operand = self.values[step.operand]
                made = mlir.Operation.create(
                    "stablehlo.custom_call",
                    results=[operand.type],
                    operands=[operand],
                    attributes={
                        "call_target_name": mlir.StringAttr.get(TRANSFER),
                        TRANSFER_FROM: mlir.IntegerAttr.get(integer, step.origin),
                        TRANSFER_TO: mlir.IntegerAttr.get(integer, step.target),
                        **sharding_attribute([self._sharding_of(step.operand)]),
                    },
                    loc=self.source.loop.location,
                    ip=where,
                )
                self.values[step.result] = made.results[0]
                continue
            split = self.tasks[step.task.name]
            made = mlir.Operation.create(
                "func.call",
                results=[self.numbered.value(given.value).type for given in split.gives],
                operands=[self.values[value] for value in step.operands],
                attributes={
                    "callee": mlir.FlatSymbolRefAttr.get(step.task.name),
                    **sharding_attribute([given.sharding for given in split.gives]),
                },
                loc=wheres[step.task.name],
                ip=where,
            )
            self.values.update(zip(step.results, made.results, strict=True))

    def _write_loop(self, wheres: dict[str, mlir.Location]) -> None:
        source, program, values = self.source, self.split.program, self.values
        operands = [source.first.results[0], *(values[one.start] for one in program.carried)]
        source.first.move_before(source.loop)
        types = [operand.type for operand in operands]
        passed = len(program.carried) - len(source.carried)
        texts = [
            self._sharding_of(program.number),
            *(self._sharding_of(one.start) for one in program.carried[:passed]),
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
        self._write_body(body, wheres)
        results = list(made.results)[1:]
        values.update((one.result, at) for one, at in zip(program.carried, results, strict=True))

    def _write_body(self, body: mlir.Block, wheres: dict[str, mlir.Location]) -> None:
        source, program, values = self.source, self.split.program, self.values
        numbers = [program.number, *(one.argument for one in program.carried)]
        values.update(zip(numbers, body.arguments, strict=True))
        self._steps(program.loop, mlir.InsertionPoint(body), wheres)
        source.number.replace_all_uses_with(body.arguments[0])
        body.append(source.one)
        body.append(source.counted)
        mlir.Operation.create(
            "stablehlo.return",
            operands=[
                source.counted.results[0],
                *(values[one.update] for one in program.carried),
            ],
            loc=source.loop.location,
            ip=mlir.InsertionPoint(body),
        )

    def _erase_rest(self) -> None:
        """Take away the old loop, and what has been copied to where it is read."""
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
        main, program = self.source.main, self.split.program
        arguments = attributes_at(main, "arg_attrs")
        for argument, entry in zip(program.arguments, arguments, strict=True):
            entry[STAGE] = mlir.IntegerAttr.get(integer, program.stage_of[argument])
        main.attributes["arg_attrs"] = mlir.ArrayAttr.get(
            [mlir.DictAttr.get(entry) for entry in arguments]
        )


def _location(split: SplitProgram, one: SplitTask) -> mlir.Location:
    items = one.ops.items
    return split.source.operations[items[0].op].location if items else mlir.Location.unknown()


def _outlined(
    split: SplitProgram, one: SplitTask, where: mlir.InsertionPoint, *, moves: bool
) -> mlir.Operation:
    """A function of a task, of its ops or of copies of these."""
    numbered, why = split.source, _location(split, one)
    types = [
        [numbered.value(given.value).type for given in side] for side in (one.reads, one.gives)
    ]
    integer = mlir.IntegerType.get_signless(32)
    attributes: dict[str, mlir.Attribute] = {
        "sym_name": mlir.StringAttr.get(one.task.name),
        "sym_visibility": mlir.StringAttr.get("private"),
        "function_type": mlir.TypeAttr.get(mlir.FunctionType.get(*types)),
        STAGE: mlir.IntegerAttr.get(integer, one.task.stage),
        LEVEL: mlir.IntegerAttr.get(integer, one.task.level),
        "arg_attrs": _boundary([given.sharding for given in one.reads]),
        "res_attrs": _boundary([given.sharding for given in one.gives]),
    }
    if one.task.is_deferred:
        attributes[DEFERRED] = mlir.UnitAttr.get()
    function = mlir.Operation.create(
        "func.func", attributes=attributes, regions=1, loc=why, ip=where
    )
    block = function.regions[0].blocks.append(*types[0], arg_locs=[why] * len(one.reads))
    numbers = [given.value for given in one.reads]
    known = dict(zip(numbers, block.arguments, strict=True))
    moved: set[int] = set()
    """Values of ops that are moved, which others of them read as they are."""
    end = mlir.InsertionPoint(block)
    for item in one.ops.items:
        op = numbered.operations[item.op]
        is_moved = moves and item.first_result < numbered.num_values
        own = op if is_moved else op.clone(ip=end).operation
        if not (is_moved and moved.issuperset(item.reads)):
            for (user, number), value in zip(outer_uses(own), item.reads, strict=True):
                user.operands[number] = known[value]
        made = range(item.first_result, item.first_result + len(own.results))
        known.update(zip(made, own.results, strict=True))
        if is_moved:
            block.append(own)
            moved.update(made)
    mlir.Operation.create(
        "func.return",
        operands=[known[given.value] for given in one.gives],
        loc=why,
        ip=mlir.InsertionPoint(block),
    )
    return function


def _boundary(shardings: Sequence[str | None]) -> mlir.ArrayAttr:
    entries: list[dict[str, mlir.Attribute]] = [
        {} if text is None else {MHLO_SHARDING: mlir.StringAttr.get(text)} for text in shardings
    ]
    return mlir.ArrayAttr.get([mlir.DictAttr.get(entry) for entry in entries])
