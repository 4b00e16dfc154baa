"""A step on the stages of a pipeline, carried out by the host over asynchronous dispatch.

Each stage is a queue: what the host dispatches to its devices runs there in that order, and starts
as soon as its operands are there. So one list in the order of the schedule keeps all stages busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.ir import print_module
from autoshard.ir.lowering import accept_sub_byte_arguments, lower_module
from autoshard.passes.pipeline import run_passes
from autoshard.pipeline.instructions import Run, Send, instructions_of
from autoshard.pipeline.modules import copy_of, donate
from autoshard.pipeline.order import StagedStep
from autoshard.pipeline.values import StageValue, signature
from autoshard.rewrites.stage_tasks.program import Call, StageProgram
from autoshard.sharding import to_named_sharding

_COMPILERS = 2
"""Programs that are compiled at a time: more than one compiler takes turns with Python."""

Form = Literal["autoshard-export-shardy", "autoshard-export-gspmd"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How tasks are compiled."""

    form: Form
    compiler_options: Mapping[str, Any]


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
    """The program of each task, by name; tasks of a stage that are equal share one."""
    keys: dict[str, Any] = {}
    lowered: dict[Any, jax.stages.Lowered] = {}
    for task in step.program.tasks:
        module = copy_of(step.modules[task.name])
        boundary = signature(module)
        pairs = step.donations.get(task.name, {})
        donate(module, pairs)
        run_passes(module, [settings.form])
        key = task.stage, print_module(module)
        keys[task.name] = key
        if key not in lowered:
            mesh = meshes[task.stage]
            lowered[key] = lower_module(
                task.name,
                print_module(module, "bytecode"),
                [_type(value, mesh) for value in boundary.arguments],
                [_type(value, mesh) for value in boundary.results],
                tuple(pairs),
            )
    options = dict(settings.compiler_options)

    def compiled(one: jax.stages.Lowered) -> jax.stages.Compiled:
        found = one.compile(options)
        accept_sub_byte_arguments(found)
        return found

    with ThreadPoolExecutor(_COMPILERS) as pool:
        made = dict(zip(lowered, pool.map(compiled, lowered.values()), strict=True))
    return {name: made[key] for name, key in keys.items()}


def _type(value: StageValue, mesh: jax.sharding.Mesh) -> jax.ShapeDtypeStruct:
    sharding = to_named_sharding(value.sharding, mesh)
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
