"""A step on the stages of a pipeline, carried out by the host over asynchronous dispatch.

Each stage is a queue: what the host dispatches to its devices runs there in that order, and starts
as soon as its operands are there. So one list in the order of the schedule keeps all stages busy.

Of several processes each compiles and runs the tasks of the stages that it has devices of, and goes
through the same list, so that all send in the same order. What it has no part of, as most arguments
and results of other stages, it holds as arrays without parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.ir import print_module
from autoshard.ir.lowering import accept_sub_byte_arguments, layouts_of, lower_module
from autoshard.ir.module import operations_of
from autoshard.ir.retarget import can_be_retargeted, retargeted
from autoshard.pipeline.instructions import Run, Send, instructions_of
from autoshard.pipeline.layouts import Layouts
from autoshard.pipeline.modules import ExportForm, exported
from autoshard.pipeline.order import StagedStep
from autoshard.pipeline.transfers import (
    SentValue,
    ToldEverywhere,
    is_here,
    processes_of,
    sender,
    without_parts,
)
from autoshard.pipeline.values import Signature, StageValue, signature
from autoshard.planned.ops import is_callback
from autoshard.rewrites.stage_tasks.program import StageTask
from autoshard.sharding import to_named_sharding

_COMPILERS = 2
"""Programs that are compiled at a time: more than one compiler takes turns with Python."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How tasks are compiled."""

    form: ExportForm
    compiler_options: Mapping[str, Any]
    callbacks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """``callbacks_of`` the step, where it calls back into Python."""


class StagedRun:
    """The programs of all tasks, and the list by which a step runs them."""

    def __init__(
        self,
        step: StagedStep,
        meshes: Sequence[jax.sharding.Mesh],
        settings: Settings,
        told: Mapping[int, jax.sharding.NamedSharding],
    ) -> None:
        """Compile.

        Args:
            step: What is run.
            meshes: Of the stages; all alike.
            settings: For the compiler.
            told: Scalar results of ``main`` that all stages get, with the shardings over these.
        """
        self.step = step
        self.meshes = meshes
        program, donations = step.program, step.donations
        self.instructions = instructions_of(program, step.schedule)
        self.programs = _compiled(step, meshes, settings)
        given_up = {
            number
            for name, pairs in donations.items()
            for call in program.all_calls
            if call.task.name == name
            for number, value in enumerate(program.arguments)
            if value in {call.operands[operand] for operand in pairs}
        }
        passed_on = set(program.results)
        self.deleted = tuple(
            number
            for number in step.donated
            if not self._has(program.stage_of[program.arguments[number]])
            or (number not in given_up and program.arguments[number] not in passed_on)
        )
        """Donated arguments whose memory no result takes, or of which nothing is here."""
        self.kept = tuple(set(range(len(program.arguments))) - set(step.donated))
        """Arguments that stay the caller's."""
        self.numbers = [
            (slot, self._number(stage, micro_batch))
            for slot, stage, micro_batch in self.instructions.numbers
            if self._has(stage)
        ]
        self.argument_shardings = tuple(
            self._sharding(value, program.stage_of[value]) for value in program.arguments
        )
        self._callers = {*self.instructions.arguments, *self.instructions.results}
        """Slots of what the caller of a step has."""
        self._steps = [
            (each, prepared)
            for each in self.instructions.steps
            if (prepared := self._prepared(each)) is not None
        ]
        self._absent = [
            (number, step.values[value], self._sharding(value, program.stage_of[value]))
            for number, value in enumerate(program.results)
            if not self._has(program.stage_of[value])
        ]
        """Results of which nothing is here."""
        self._told = self._telling(told)

    def __call__(self, arguments: Sequence[Any]) -> list[jax.Array]:
        """Dispatch a step.

        Args:
            arguments: Of ``main``, each where ``argument_shardings`` says.

        Returns:
            The results of ``main``, each an array of its own.
        """
        slots: list[Any] = [None] * self.instructions.slots
        for slot, argument in zip(self.instructions.arguments, arguments, strict=True):
            slots[slot] = argument
        for slot, number in self.numbers:
            slots[slot] = number
        for step, prepared in self._steps:
            given = [slots[slot] for slot in step.operands]
            made = prepared(*given) if isinstance(step, Run) else prepared(given)
            for slot, value in zip(step.results, made, strict=True):
                slots[slot] = value
            for slot in step.dropped:
                slots[slot] = None
        results = [slots[slot] for slot in self.instructions.results]
        for number, value, sharding in self._absent:
            results[number] = without_parts(value.shape, value.dtype, sharding)
        for number in self.deleted:
            arguments[number].delete()
        results = _own(results, [arguments[number] for number in self.kept])
        for numbers, tell in self._told:
            told = tell([results[number] for number in numbers])
            for number, result in zip(numbers, told, strict=True):
                results[number] = result
        return results

    def _has(self, stage: int) -> bool:
        """Has this process devices of a stage?"""
        return is_here(self.meshes[stage])

    def _prepared(self, step: Run | Send) -> Callable[..., Any] | None:
        """What carries an instruction out; None where another process does."""
        if isinstance(step, Run):
            return self.programs.get(step.task)
        return sender(
            [
                self._sent(value, step.origin, step.target, is_callers=slot in self._callers)
                for value, slot in zip(step.values, step.operands, strict=True)
            ]
        )

    def _telling(
        self, told: Mapping[int, jax.sharding.NamedSharding]
    ) -> list[tuple[list[int], ToldEverywhere]]:
        """The results of each stage that all stages get."""
        program, found = self.step.program, list[tuple[list[int], ToldEverywhere]]()
        for stage, mesh in enumerate(self.meshes):
            numbers = [it for it in told if program.stage_of[program.results[it]] == stage]
            if numbers:
                values = [
                    self._sent(program.results[it], stage, stage, is_callers=True) for it in numbers
                ]
                others = [other for other in self.meshes if other is not mesh]
                tell = ToldEverywhere(values, others, [told[it] for it in numbers])
                found.append((numbers, tell))
        return found

    def _sent(self, value: int, origin: int, target: int, *, is_callers: bool) -> SentValue:
        its = self.step.values[value]
        sides = self._sharding(value, origin), self._sharding(value, target)
        return SentValue(its.shape, its.dtype, *sides, is_callers)

    def _sharding(self, value: int, stage: int) -> jax.sharding.NamedSharding:
        return to_named_sharding(self.step.values[value].sharding, self.meshes[stage])

    def _number(self, stage: int, micro_batch: int) -> jax.Array:
        whole = jax.sharding.NamedSharding(self.meshes[stage], jax.sharding.PartitionSpec())
        return jax.device_put(np.int32(micro_batch), whole)


def _own(results: Sequence[jax.Array], kept: Sequence[Any]) -> list[jax.Array]:
    """Results of which none is another one or a kept argument, so that each can be donated."""
    found: list[jax.Array] = []
    seen = set(map(id, kept))
    for result in results:
        found.append(jnp.copy(result) if id(result) in seen else result)
        seen.add(id(result))
    return found


def _compiled(
    step: StagedStep,
    meshes: Sequence[jax.sharding.Mesh],
    settings: Settings,
) -> dict[str, Any]:
    """The program of each task that runs here, by name.

    Equal tasks are compiled once, for all their stages.
    """
    here = {task.name: task for task in step.program.tasks if is_here(meshes[task.stage])}
    layouts = Layouts(step.program, step.inside)
    options = dict(settings.compiler_options)
    compile_one = partial(jax.stages.Lowered.compile, compiler_options=options)
    first: dict[Any, _Task] = {}
    made: dict[Any, jax.stages.Compiled] = {}
    placed: dict[tuple[Any, int], jax.stages.Compiled] = {}
    found: dict[str, jax.stages.Compiled] = {}
    with ThreadPoolExecutor(_COMPILERS) as pool:
        for names in layouts.in_turn(list(here)):
            tasks = [
                _task(step, here[name], meshes[here[name].stage], settings, layouts)
                for name in names
            ]
            new = {task.key: task for task in reversed(tasks) if task.key not in made}
            first.update(new)
            compiled = pool.map(compile_one, [task.lowered() for task in new.values()])
            made.update(zip(new, compiled, strict=True))
            for task in tasks:
                at = task.key, task.stage
                if at not in placed:
                    placed[at] = made[task.key]
                    if task.stage != first[task.key].stage:
                        placed[at] = retargeted(made[task.key], options, task.mesh, *task.types)
                    accept_sub_byte_arguments(placed[at])
                found[task.name] = placed[at]
                layouts.keep(task.name, *layouts_of(made[task.key]))
    return found


@dataclass(frozen=True, slots=True)
class _Task:
    """A task as it is compiled."""

    name: str
    stage: int
    mesh: jax.sharding.Mesh
    boundary: Signature
    donated: tuple[int, ...]
    key: Any
    """Equal for tasks of which one compiled program is enough."""
    bytecode: bytes
    callbacks: Mapping[str, Any]

    @property
    def types(self) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct]]:
        """Those of arguments and results, with their shardings."""
        boundary = self.boundary
        return _types(boundary.arguments, self.mesh), _types(boundary.results, self.mesh)

    def lowered(self) -> jax.stages.Lowered:
        """The program, ready to compile."""
        return lower_module(self.name, self.bytecode, *self.types, self.donated, self.callbacks)


def _types(values: Sequence[StageValue], mesh: jax.sharding.Mesh) -> list[jax.ShapeDtypeStruct]:
    shardings = [to_named_sharding(value.sharding, mesh) for value in values]
    return [
        jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
        for value, sharding in zip(values, shardings, strict=True)
    ]


def _task(
    step: StagedStep,
    task: StageTask,
    mesh: jax.sharding.Mesh,
    settings: Settings,
    layouts: Layouts,
) -> _Task:
    pairs = step.donations.get(task.name, {})
    module = exported(step.modules[task.name], pairs, settings.form)
    layouts.lay_out(module, task.name)
    text = print_module(module)
    calls_back = any(map(is_callback, operations_of(module.operation)))
    is_for_all = can_be_retargeted(mesh) and not calls_back
    # What several processes compile together, they must all compile.
    processes = tuple(sorted(processes_of(mesh)))
    return _Task(
        task.name,
        task.stage,
        mesh,
        signature(step.modules[task.name]),
        tuple(pairs),
        (text, processes if is_for_all else task.stage),
        print_module(module, "bytecode"),
        settings.callbacks if calls_back else {},
    )
