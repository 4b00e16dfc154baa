"""A step on the stages of a pipeline, carried out by the host over asynchronous dispatch.

Each stage is a queue: what the host dispatches to its devices runs there in that order, and starts
as soon as its operands are there. So one list in the order of the schedule keeps all stages busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.ir import print_module
from autoshard.ir.lowering import accept_sub_byte_arguments, lower_module
from autoshard.ir.module import operations_of
from autoshard.ir.retarget import can_be_retargeted, retargeted
from autoshard.passes.pipeline import run_passes
from autoshard.pipeline.instructions import Run, Send, instructions_of
from autoshard.pipeline.modules import copy_of, donate
from autoshard.pipeline.order import StagedStep
from autoshard.pipeline.values import Signature, StageValue, signature
from autoshard.planned.ops import is_callback
from autoshard.rewrites.stage_tasks.program import Call, StageProgram, StageTask
from autoshard.sharding import to_named_sharding

_COMPILERS = 2
"""Programs that are compiled at a time: more than one compiler takes turns with Python."""

Form = Literal["autoshard-export-shardy", "autoshard-export-gspmd"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How tasks are compiled."""

    form: Form
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
    ) -> None:
        """Compile.

        Args:
            step: What is run.
            meshes: Of the stages; all alike.
            settings: For the compiler.
        """
        self.step = step
        self.meshes = meshes
        program, donations = step.program, step.donations
        self.instructions = instructions_of(program, step.schedule)
        self.programs = _compiled(step, meshes, settings)
        given_up = {
            number
            for name, pairs in donations.items()
            for call in _calls(program)
            if call.task.name == name
            for number, value in enumerate(program.arguments)
            if value in {call.operands[operand] for operand in pairs}
        }
        passed_on = set(program.results)
        self.deleted = tuple(
            number
            for number in step.donated
            if number not in given_up and program.arguments[number] not in passed_on
        )
        """Donated arguments whose memory no result takes."""
        self.kept = tuple(set(range(len(program.arguments))) - set(step.donated))
        """Arguments that stay the caller's."""
        self.numbers = [
            (slot, self._number(stage, micro_batch))
            for slot, stage, micro_batch in self.instructions.numbers
        ]
        self.argument_shardings = tuple(
            self._sharding(value, program.stage_of[value]) for value in program.arguments
        )
        self._steps = [self._prepared(each) for each in self.instructions.steps]

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
            made = prepared(*given) if isinstance(step, Run) else jax.device_put(given, prepared)
            for slot, value in zip(step.results, made, strict=True):
                slots[slot] = value
            for slot in step.dropped:
                slots[slot] = None
        results = [slots[slot] for slot in self.instructions.results]
        for number in self.deleted:
            arguments[number].delete()
        return _own(results, [arguments[number] for number in self.kept])

    def _prepared(self, step: Run | Send) -> tuple[Run | Send, Any]:
        if isinstance(step, Run):
            return step, self.programs[step.task]
        stage_of = self.step.program.stage_of
        return step, [self._sharding(value, stage_of[value]) for value in step.values]

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


def _calls(program: StageProgram) -> list[Call]:
    steps = (*program.before, *program.loop, *program.after)
    return [step for step in steps if isinstance(step, Call)]


def _compiled(
    step: StagedStep,
    meshes: Sequence[jax.sharding.Mesh],
    settings: Settings,
) -> dict[str, Any]:
    """The program of each task, by name; equal tasks are compiled once, for all their stages."""
    tasks = [_task(step, task, meshes[task.stage], settings) for task in step.program.tasks]
    first: dict[Any, _Task] = {}
    for task in tasks:
        first.setdefault(task.key, task)
    options = dict(settings.compiler_options)
    with ThreadPoolExecutor(_COMPILERS) as pool:
        compile_one = partial(jax.stages.Lowered.compile, compiler_options=options)
        compiled = pool.map(compile_one, [task.lowered() for task in first.values()])
        made = dict(zip(first, compiled, strict=True))
    found: dict[tuple[Any, int], jax.stages.Compiled] = {}
    for task in tasks:
        at = task.key, task.stage
        if at in found:
            continue
        found[at] = made[task.key]
        if task.stage != first[task.key].stage:
            found[at] = retargeted(made[task.key], options, task.mesh, *task.types)
        accept_sub_byte_arguments(found[at])
    return {task.name: found[task.key, task.stage] for task in tasks}


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


def _task(step: StagedStep, task: StageTask, mesh: jax.sharding.Mesh, settings: Settings) -> _Task:
    module = copy_of(step.modules[task.name])
    boundary = signature(module)
    pairs = step.donations.get(task.name, {})
    donate(module, pairs)
    run_passes(module, [settings.form])
    text = print_module(module)
    calls_back = any(map(is_callback, operations_of(module.operation)))
    is_for_all = can_be_retargeted(mesh) and not calls_back
    return _Task(
        task.name,
        task.stage,
        mesh,
        boundary,
        tuple(pairs),
        text if is_for_all else (text, task.stage),
        print_module(module, "bytecode"),
        settings.callbacks if calls_back else {},
    )
