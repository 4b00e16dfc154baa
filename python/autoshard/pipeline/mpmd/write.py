"""The function that calls all others: stages are meshes, tasks are fragments on them.

before  %h = func.call @stage0_loop0(%x, %m, %w)       in a loop over micro-batches %m
after   %n:2 = mpmd.fragment_call<mesh="stage0", origin=["micro_batch_numbers"]> @..()
        %h = mpmd.fragment_call<mesh="stage0", origin=["stage0_loop0"]> @stage0_loop0(%x, %n#0, %w)
            {call_counter = 0 : ui32, stage_id = 0 : i64}
        %s = mpmd.transfer %h : (!mpmd.mesh_tensor<"stage0", ..>) -> !mpmd.mesh_tensor<"stage1", ..>

The dialect has a loop, in which nothing may call fragments, so each micro-batch is written out, in
the order of the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MEMORY_KIND, MHLO_SHARDING, NUM_PARTITIONS, NUM_REPLICAS
from autoshard.ir.boundary import Side, attributes_at, main_function
from autoshard.ir.module import functions_of
from autoshard.pipeline.instructions import Instructions, Run, instructions_of
from autoshard.pipeline.mpmd.functions import (
    NUMBERS,
    add_numbers,
    add_tasks,
    fill,
    function_type,
    mesh_symbol,
)
from autoshard.pipeline.mpmd.labels import Label, labels_of, mesh_name
from autoshard.pipeline.order import StagedStep
from autoshard.pipeline.values import StageValue, signature
from autoshard.planned.module import OWN_PREFIX
from autoshard.sharding import Mesh
from autoshard.sharding.sdy_text import mesh_to_sdy, to_sdy

MpmdForm = Literal["calls", "fragments"]
"""Tasks as functions that are called, or with their ops in place."""

_OF_A_STAGE = (NUM_PARTITIONS, NUM_REPLICAS)
"""What a module says of devices."""


def write_mpmd(module: mlir.Module, step: StagedStep, form: MpmdForm) -> mlir.Module:
    """The step as a module of the dialect, in the context of ``module``.

    Args:
        module: The step, split into tasks; it stays as it is.
        step: Of it, with its schedule.
        form: ``calls``: what Shardy's export leaves, and its lowering to IFRT takes; equal tasks
            are one function. ``fragments``: what Shardy's own passes take.

    Raises:
        PlanError: The dialect has no words for the plan.
    """
    with module.context, mlir.Location.unknown():
        main = main_function(module)
        mesh = _mesh_of(step, main)
        _check_memory(main)
        made = mlir.Module.create()
        _copy_attributes(module, made)
        functions = add_tasks(made, step, mesh)
        _Main(made, step, form, mesh, functions).write(main)
        if form == "fragments":
            present = functions_of(made)
            for name in {*functions, NUMBERS} & present.keys():
                present[name].erase()
        made.operation.verify()
        return made


def _mesh_of(step: StagedStep, main: mlir.Operation) -> Mesh:
    """The mesh of each stage."""
    mesh = next(iter(step.values.values())).sharding.mesh
    if mesh.device_ids is not None:
        raise PlanError(
            f"the mesh of a stage is {mesh}, and the meshes of a topology have no order of devices."
            " Plan with devices in order, and order those that the step runs on.",
            place(main.location),
        )
    return mesh


def _check_memory(main: mlir.Operation) -> None:
    sides: tuple[tuple[Side, str], ...] = (("arg_attrs", "argument"), ("res_attrs", "result"))
    for side, what in sides:
        for number, entry in enumerate(attributes_at(main, side)):
            if MEMORY_KIND in entry:
                raise PlanError(
                    f"{what} {number} has {MEMORY_KIND} = {entry[MEMORY_KIND]}, and stages are"
                    " exported with all arrays on their devices. Leave it there.",
                    place(main.location),
                )


def _copy_attributes(module: mlir.Module, made: mlir.Module) -> None:
    attributes = module.operation.attributes
    for number in range(len(attributes)):
        name = attributes[number].name
        if name not in _OF_A_STAGE and not name.startswith(OWN_PREFIX):
            made.operation.attributes[name] = attributes[number].attr


@dataclass(frozen=True, slots=True)
class _Array:
    """The type of a value, on whatever stage."""

    tensor: mlir.Type
    sharding: str
    """``<@mesh, [{"dp"}, {}]>``."""

    def on(self, stage: int) -> mlir.Type:
        """On the devices of a stage."""
        where = mesh_name(stage)
        return mlir.Type.parse(
            f'!mpmd.mesh_tensor<"{where}", {self.tensor}, sharding={self.sharding}>'
        )


@dataclass
class _Main:
    """Writes ``main``."""

    made: mlir.Module
    step: StagedStep
    form: MpmdForm
    mesh: Mesh
    functions: Mapping[str, mlir.Operation]
    """By name of the task."""
    arrays: dict[int, _Array] = field(default_factory=dict[int, _Array])
    """By slot."""
    values: dict[int, mlir.Value] = field(default_factory=dict[int, mlir.Value])
    """By slot."""
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """By slot what is to be sent into it, and to which stage.

    It is when a task reads it: IFRT joins transfers between two stages where nothing between them
    reads the first one, so that a stage would wait for all micro-batches that another one is ahead.
    """

    def write(self, main: mlir.Operation) -> None:
        """All of it, in front of the other functions.

        Args:
            main: Of the step.
        """
        instructions = instructions_of(self.step.program, self.step.schedule)
        labels = labels_of(self.step)
        self.mesh_symbol = mesh_symbol(self.made, self.mesh)
        block = self._function(main, instructions)
        self.where = mlir.InsertionPoint(block)
        self.values.update(zip(instructions.arguments, block.arguments, strict=True))
        self._write_numbers(instructions)
        for each in instructions.steps:
            if isinstance(each, Run):
                self._write_run(each, labels[each.task])
            else:
                pairs = zip(each.operands, each.results, strict=True)
                self.waiting.update((result, (slot, each.target)) for slot, result in pairs)
        results = [self._value(slot) for slot in instructions.results]
        mlir.Operation.create("func.return", operands=results, ip=self.where)

    def _function(self, main: mlir.Operation, instructions: Instructions) -> mlir.Block:
        """The function, with no op yet."""
        program, types = self.step.program, function_type(main)
        inputs = self._on_stages(types.inputs, program.arguments, instructions.arguments)
        results = self._on_stages(types.results, program.results, instructions.results)
        shape = mesh_to_sdy(self.mesh).removeprefix("#sdy.mesh")
        meshes = [f'<"{mesh_name(stage)}": {shape}>' for stage in range(program.stages)]
        function = mlir.Operation.create(
            "func.func",
            attributes={
                "sym_name": mlir.StringAttr.get("main"),
                "sym_visibility": mlir.StringAttr.get("public"),
                "function_type": mlir.TypeAttr.get(mlir.FunctionType.get(inputs, results)),
                "topology": mlir.Attribute.parse(f"#mpmd.topology<{', '.join(meshes)}>"),
                "arg_attrs": _boundary(main, "arg_attrs"),
                "res_attrs": _boundary(main, "res_attrs"),
            },
            regions=1,
            loc=main.location,
            ip=mlir.InsertionPoint(next(iter(self.functions.values()))),
        )
        places = [argument.location for argument in main.regions[0].blocks[0].arguments]
        return function.regions[0].blocks.append(*inputs, arg_locs=places)

    def _on_stages(
        self, tensors: Sequence[mlir.Type], values: Sequence[int], slots: Sequence[int]
    ) -> list[mlir.Type]:
        """The types of arguments or results, each on its stage."""
        found: list[mlir.Type] = []
        for tensor, value, slot in zip(tensors, values, slots, strict=True):
            array = self.arrays[slot] = self._array(tensor, self.step.values[value])
            found.append(array.on(self.step.program.stage_of[value]))
        return found

    def _array(self, tensor: mlir.Type, value: StageValue) -> _Array:
        text = to_sdy(value.sharding, self.mesh_symbol)
        return _Array(tensor, text.removeprefix("#sdy.sharding"))

    def _write_numbers(self, instructions: Instructions) -> None:
        """On each stage the numbers of the micro-batches that its tasks read."""
        slots: dict[int, dict[int, int]] = {}
        for slot, stage, micro_batch in instructions.numbers:
            slots.setdefault(stage, {})[micro_batch] = slot
        if not slots:
            return
        numbers = range(self.step.program.micro_batches)
        function = add_numbers(self.made, numbers, self.mesh)
        scalar = _Array(mlir.Type.parse("tensor<i32>"), f"<@{self.mesh_symbol}, []>")
        for stage, own in sorted(slots.items()):
            results = [own[number] for number in numbers]
            self.arrays.update(dict.fromkeys(results, scalar))
            self._write_task(function, (), results, Label(NUMBERS, stage, stage), -1)

    def _write_run(self, run: Run, label: Label) -> None:
        given_up = {run.operands[at] for at in self.step.donations.get(run.task, {})}
        for slot in [slot for slot, (operand, _) in self.waiting.items() if operand in given_up]:
            self._value(slot)
        function = self.functions[run.task]
        given = signature(self.step.modules[run.task]).results
        for slot, tensor, value in zip(
            run.results, function_type(function).results, given, strict=True
        ):
            self.arrays[slot] = self._array(tensor, value)
        self._write_task(function, run.operands, run.results, label, run.micro_batch)

    def _write_task(
        self,
        function: mlir.Operation,
        operands: Sequence[int],
        results: Sequence[int],
        label: Label,
        micro_batch: int,
    ) -> None:
        is_call = self.form == "calls"
        attributes = label.attributes(micro_batch)
        if is_call:
            name = mlir.StringAttr(function.attributes["sym_name"]).value
            attributes["callee"] = mlir.FlatSymbolRefAttr.get(name)
        made = mlir.Operation.create(
            "mpmd.fragment_call" if is_call else "mpmd.fragment",
            results=[self.arrays[slot].on(label.stage) for slot in results],
            operands=[self._value(slot) for slot in operands],
            attributes=attributes,
            regions=0 if is_call else 1,
            loc=function.location,
            ip=self.where,
        )
        if not is_call:
            fill(made, function)
        self.values.update(zip(results, made.results, strict=True))

    def _value(self, slot: int) -> mlir.Value:
        """What is in a slot; sent now, if it waits for that."""
        if slot in self.waiting:
            operand, target = self.waiting.pop(slot)
            value = self._value(operand)
            array = self.arrays[slot] = self.arrays[operand]
            self.values[slot] = mlir.Operation.create(
                "mpmd.transfer",
                results=[array.on(target)],
                operands=[value],
                loc=value.location,
                ip=self.where,
            ).results[0]
        return self.values[slot]


def _boundary(main: mlir.Operation, side: Side) -> mlir.ArrayAttr:
    """What arguments or results say besides the plan."""
    return mlir.ArrayAttr.get(
        [
            mlir.DictAttr.get(
                {
                    name: attribute
                    for name, attribute in entry.items()
                    if name != MHLO_SHARDING and not name.startswith(OWN_PREFIX)
                }
            )
            for entry in attributes_at(main, side)
        ]
    )
