"""The pipeline of a plan: which stage has which array, and on which devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, cast

import jax
from jax.sharding import NamedSharding

from autoshard.cluster import Cluster
from autoshard.cluster.devices import devices_of
from autoshard.cluster.stages import cluster_of_a_stage
from autoshard.compilers.options import CompilerOptions, read_compiler_options
from autoshard.errors import PlanError
from autoshard.frontend.mesh import Machine
from autoshard.ir import mlir
from autoshard.ir.boundary import main_function, replaced_arguments, tied_arguments
from autoshard.ir.lowering import uses_shardy
from autoshard.pipeline.array_parts import joined_sharding, sharding_over_all
from autoshard.pipeline.options import Pipeline
from autoshard.pipeline.order import StagedStep, fastest_within, staged_steps
from autoshard.pipeline.row_moves import MovedRow
from autoshard.pipeline.staged_verification import StagedVerification, verify_staged_step
from autoshard.pipeline.task_prices import Machinery
from autoshard.pipeline.transfers import processes_of
from autoshard.rewrites.layer_loops.parts import ProgramParts
from autoshard.verify.ahead_of_time import TIME_LIMIT_SECONDS


class PlacedValue(Protocol):
    """An argument or result as a plan has it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the whole."""
        ...

    def named_sharding(self, mesh: Any) -> Any:
        """Its sharding, or that of its parts, over the mesh of a stage."""
        ...


@dataclass(frozen=True, slots=True)
class Staging:
    """What it takes to make the pipeline of a planned module again, and to compile it."""

    asked: Pipeline
    """By the user."""
    cluster: Cluster
    """All devices."""
    places: tuple[int | None, ...]
    """For each flat argument its number in ``main``; None where it is not read."""
    donated: tuple[bool, ...]
    """For each flat argument whether the user donates it."""
    arrays: ProgramParts
    """For each array of the user which flat arguments, or results of ``main``, it is."""
    overlap: float
    """Share of communication inside of a stage that hides behind compute."""
    compiler_options: Mapping[str, Any]
    """XLA's."""


@dataclass(frozen=True, eq=False)
class PlannedPipeline:
    """What ``plan.pipeline`` is: the schedule of a step, and what stages do and keep."""

    staging: Staging
    step: StagedStep
    machines: tuple[Machine, ...]
    """One a stage."""
    argument_stages: tuple[tuple[int, ...], ...]
    """The stage on which each flat argument lies; where another one reads it, it is sent once a
    step. Several of an array with rows of layers, of which each has an equal part."""
    result_stages: tuple[tuple[int, ...], ...]
    """As ``argument_stages``; a result is where the argument is that it replaces."""
    successors: frozenset[int]
    """Results of ``main`` that are arguments of the next step."""
    by_rule: tuple[StagedStep, ...] = ()
    """The step by each schedule that was asked for, until one of them is taken."""

    is_one_program = False

    @property
    def asked(self) -> Pipeline:
        """What the user asked for; of a plan that was loaded with the schedule that it has."""
        return self.staging.asked

    @property
    def cluster(self) -> Cluster:
        """All devices."""
        return self.staging.cluster

    @property
    def schedule(self) -> str:
        """The rule that was taken, ``1f1b``."""
        return self.step.rule

    @property
    def step_seconds(self) -> float:
        """Estimate of one step: before the loop, the schedule, the updates behind it."""
        return self.step.step_seconds

    @property
    def fastest_seconds(self) -> float:
        """The same by the fastest of the schedules to choose from, whether it fits or not."""
        return min(step.step_seconds for step in self.by_rule or (self.step,))

    @property
    def bubble(self) -> float:
        """The share of all stages' time in the loop in which they wait."""
        return self.step.schedule.bubble

    @property
    def in_flight(self) -> tuple[int, ...]:
        """For how many micro-batches each stage keeps something at once, at most; each part of the
        model that it has counts its own."""
        return tuple(max(one, 1) for one in self.step.schedule.in_flight())

    @property
    def flights(self) -> float:
        """Micro-batches of the whole model of which the worst stage keeps as much as of its own
        parts, at least one."""
        return max(1.0, max(self.in_flight) / (self.asked.stages * self.asked.chunks))

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """On one device of each stage, at the worst moment of a step."""
        return self.step.peak_bytes

    def named_sharding(self, value: PlacedValue, number: int, *, is_result: bool) -> NamedSharding:
        """Where an array of the user lies, on the devices of all stages that have a part of it.

        Args:
            value: As the plan has it.
            number: Among the flat arguments, or results.
            is_result: Which of these.
        """
        if is_result and self.is_told(value, number):
            return sharding_over_all(self.meshes)
        stages = (self.result_stages if is_result else self.argument_stages)[number]
        found = [value.named_sharding(self.meshes[stage]) for stage in stages]
        arrays = self.staging.arrays
        parts = (arrays.results if is_result else arrays.arguments)[number]
        if not parts.is_cut:
            return found[0]
        return joined_sharding(found, len(value.shape), parts.dim)

    def is_told(self, value: PlacedValue, number: int) -> bool:
        """Is a result a scalar that all stages get, so that each of several processes can read it?

        A loss is, a count that is an argument of the next step stays where that is.

        Args:
            value: As the plan has it.
            number: Among the results.
        """
        own = self.staging.arrays.results[number].numbers[0]
        is_news = not value.shape and own not in self.successors
        return is_news and len(processes_of(*self.meshes)) > 1

    def gantt(self, width: int = 120) -> str:
        """The schedule as text: a row a stage, the bubble, the bound of all schedules."""
        return self.step.gantt(width)

    def verify(
        self,
        *,
        timeout: float = TIME_LIMIT_SECONDS,
        form: Literal["shardy", "gspmd"] | None = None,
        compiler_options: CompilerOptions | None = None,
        processes: int | None = None,
    ) -> StagedVerification:
        """Compile each task once for the devices of a stage, in processes of their own, and put
        what came out beside the plan; no such device is needed, but its compiler.

        Tasks of a stage that needs more than there is are compiled once more, with what else the
        stage has reserved.

        Args:
            timeout: Seconds of each compile.
            form: ``"shardy"`` or ``"gspmd"``; None: the partitioner that JAX is set to.
            compiler_options: XLA's, or the name of a published set. None: those of the plan.
            processes: Compilers at a time; None: one for every core.

        Raises:
            PlanError: ``processes`` is no number of them.
            CompileError: The compiler is not installed, fails for another reason than memory, or
                is not done in time.
            ClusterError: No compiler knows the devices of a stage.
        """
        return verify_staged_step(
            self.step,
            cluster_of_a_stage(self.cluster, self.asked.stages),
            use_shardy=uses_shardy() if form is None else form == "shardy",
            timeout=timeout,
            device_order=self.machines[0].numbers,
            compiler_options=(
                self.staging.compiler_options
                if compiler_options is None
                else read_compiler_options(compiler_options)
            ),
            processes=processes,
        )

    def within(self, limit: float) -> PlannedPipeline:
        """The same with the fastest schedule by which each stage fits; where none fits, with the
        one that needs least.

        Args:
            limit: Bytes that a step may use of a device.
        """
        step = fastest_within(self.by_rule or (self.step,), limit)
        arguments, results = _stages_of_arrays(self.staging, step)
        return replace(
            self, step=step, argument_stages=arguments, result_stages=results, by_rule=()
        )

    def with_arrays(self, arrays: ProgramParts) -> PlannedPipeline:
        """The same pipeline, whose arguments and results are parts of the user's arrays."""
        staging = replace(self.staging, arrays=arrays)
        arguments, results = _stages_of_arrays(staging, self.step)
        return replace(
            self,
            staging=staging,
            step=_with_moves(staging, self.step),
            by_rule=tuple(_with_moves(staging, step) for step in self.by_rule),
            argument_stages=arguments,
            result_stages=results,
        )

    def __repr__(self) -> str:
        """One line."""
        chunks = self.asked.chunks
        parts = f" of {chunks} parts of the model each" if chunks > 1 else ""
        return (
            f"<{self.schedule} pipeline of {self.asked.stages} stages{parts},"
            f" {self.asked.micro_batches} micro-batches, bubble {self.bubble:.1%}>"
        )

    @cached_property
    def meshes(self) -> tuple[jax.sharding.Mesh, ...]:
        """A mesh of JAX for each stage.

        Raises:
            PlanError: There are no such devices here, or too few.
        """
        if any(machine.devices is None for machine in self.machines):
            here = cast("list[Any]", jax.devices())
            raise PlanError(
                f"the pipeline is for the {self.cluster.num_devices} devices of"
                f" {self.cluster.name}, and here are {len(here)} ({here[0].device_kind}). Run it"
                " there, or plan for these devices."
            )
        meshes = [machine.jax_mesh() for machine in self.machines]
        return tuple(mesh for mesh in meshes if isinstance(mesh, jax.sharding.Mesh))


def _stages_of_arrays(
    staging: Staging, step: StagedStep
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Those of arguments, and of results."""
    program, arrays = step.program, staging.arrays
    arguments = [
        0 if at is None else program.stage_of[program.arguments[at]] for at in staging.places
    ]
    results = [program.stage_of[value] for value in program.results]
    return (
        tuple(parts.places or (arguments[parts.numbers[0]],) for parts in arrays.arguments),
        tuple(parts.places or (results[parts.numbers[0]],) for parts in arrays.results),
    )


def _with_moves(staging: Staging, step: StagedStep) -> StagedStep:
    """A step that moves rows of arrays to the stages that work on them, and back."""
    arrays, places = staging.arrays, staging.places
    arguments = [
        MovedRow(at, home, stage)
        for parts in arrays.arguments
        if parts.is_moved
        for number, home, stage in zip(parts.numbers, parts.homes, parts.stages, strict=True)
        if (at := places[number]) is not None
    ]
    results = [
        MovedRow(*one)
        for parts in arrays.results
        if parts.is_moved
        for one in zip(parts.numbers, parts.homes, parts.stages, strict=True)
    ]
    if not arguments and not results:
        return step
    return step.with_moves(arguments, results, staging.cluster.dims[0])


def planned_pipeline(module: mlir.Module, staging: Staging, machine: Machine) -> PlannedPipeline:
    """The pipeline of a planned module.

    Args:
        module: With labels of stages; it stays as it is.
        staging: What else it is made from.
        machine: Of the first stage, under the mesh of the plan.

    Raises:
        PlanError: It cannot be split so.
    """
    asked, whole, kept = staging.asked, staging.cluster, staging.places
    stage = cluster_of_a_stage(whole, asked.stages)
    replaced_by = {argument: result for result, argument in tied_arguments(module).items()}
    given_up = {
        at: replaced_by.get(at)
        for at, is_donated in zip(kept, staging.donated, strict=True)
        if at is not None and is_donated
    }
    steps = staged_steps(module, asked, Machinery(stage, whole, staging.overlap), given_up)
    steps = tuple(_with_moves(staging, step) for step in steps)
    step = fastest_within(steps, math.inf)
    machines = machines_of(machine, stage, whole, asked.stages)
    successors = frozenset(replaced_arguments(main_function(module)))
    places = _stages_of_arrays(staging, step)
    return PlannedPipeline(staging, step, machines, *places, successors, steps)


def machines_of(
    machine: Machine, stage: Cluster, whole: Cluster, stages: int
) -> tuple[Machine, ...]:
    """The devices of each stage, those of the slowest dim apart."""
    available = devices_of(whole)
    if machine.devices is None or available is None or len(available) < whole.num_devices:
        return tuple(replace(machine, devices=None, cluster=whole.name) for _ in range(stages))
    order = [available.index(device) for device in machine.devices]
    first = range(0, whole.num_devices, stage.num_devices)
    return tuple(
        replace(machine, devices=tuple(available[start + at] for at in order)) for start in first
    )
