"""The pipeline of a plan whose stages run one program in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import jax
from jax.sharding import NamedSharding

from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.frontend.mesh import Machine
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.planned_pipeline import machines_of
from autoshard.ir import new_context, parse_bytes
from autoshard.pipeline.array_parts import joined_mesh, joined_sharding
from autoshard.pipeline.options import Pipeline
from autoshard.rewrites.lockstep.seconds import LockstepSeconds, lockstep_seconds
from autoshard.rewrites.lockstep.step import lockstep_of
from autoshard.rewrites.lockstep.write import Shape


@dataclass(frozen=True, eq=False)
class LockstepPipeline:
    """What ``plan.pipeline`` is where all stages run one program, each with its own layers."""

    asked: Pipeline
    """By the user."""
    cluster: Cluster
    """All devices."""
    machines: tuple[Machine, ...]
    """One a stage, under the mesh of the plan."""
    seconds: LockstepSeconds
    overlap: float
    """Share of communication inside of a stage that hides behind compute."""

    is_one_program = True

    @property
    def schedule(self) -> str:
        """``lockstep``."""
        return "lockstep"

    @property
    def delay(self) -> int:
        """Turns from one stage to the next."""
        return self.seconds.shape.delay

    @property
    def step_seconds(self) -> float:
        """Estimate of one step: the program of a stage, and what stages send each other."""
        return self.seconds.step_seconds

    @property
    def bubble(self) -> float:
        """The share of the loops over layers in which a stage waits."""
        return self.seconds.bubble

    @property
    def in_flight(self) -> tuple[int, ...]:
        """For how many micro-batches each stage keeps something at once: for all."""
        return (self.asked.micro_batches,) * self.asked.stages

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """On one device of each stage, at the worst moment of a step."""
        return (self.seconds.peak_bytes,) * self.asked.stages

    @cached_property
    def meshes(self) -> tuple[jax.sharding.Mesh, ...]:
        """A mesh of JAX for each stage.

        Raises:
            PlanError: There are no such devices here, or too few.
        """
        found = [machine.jax_mesh() for machine in self.machines]
        meshes = [mesh for mesh in found if isinstance(mesh, jax.sharding.Mesh)]
        if len(meshes) < len(found):
            here = cast("list[Any]", jax.devices())
            raise PlanError(
                f"the pipeline is for the {self.cluster.num_devices} devices of"
                f" {self.cluster.name}, and here are {len(here)} ({here[0].device_kind}). Run it"
                " there, or plan for these devices."
            )
        return tuple(meshes)

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """The mesh of all devices, whose first axis is that of the stages.

        Raises:
            PlanError: There are no such devices here, or too few.
        """
        return joined_mesh(self.meshes)

    def named_sharding(self, value: PlannedValue, number: int, *, is_result: bool) -> NamedSharding:
        """Where an array of the user lies: whole on each stage, or the rows of its layers.

        Args:
            value: As the plan has it.
            number: Among the flat arguments, or results.
            is_result: Which of these.
        """
        found = [cast(NamedSharding, value.named_sharding(mesh)) for mesh in self.meshes]
        if value.stage_cut is not None:
            return joined_sharding(found, len(value.shape), value.stage_cut[0])
        return NamedSharding(self.mesh, found[0].spec, memory_kind=found[0].memory_kind)

    def gantt(self, width: int = 120) -> str:
        """Which micro-batch each stage has in which turn, forwards and backwards.

        Args:
            width: Columns; where they are too few, turns in the middle are left out.
        """
        shape = self.seconds.shape
        names = [len(str(shape.micro_batches - 1)), len(str(shape.stages - 1))]
        fitting = max((width - names[1] - 10) // (names[0] + 1), 4)
        lines = [
            f"lockstep, {shape.stages} stages, {shape.micro_batches} micro-batches:"
            f" {shape.turns} turns in each of {len(self.seconds.loops)} loops over layers, bubble"
            f" {self.bubble:.1%}"
        ]
        for stage in range(shape.stages):
            late = shape.delay * stage
            turns = [
                str(turn - late) if 0 <= turn - late < shape.micro_batches else "."
                for turn in range(shape.turns)
            ]
            row = " ".join(text.rjust(names[0]) for text in _shortened(turns, fitting))
            lines.append(f"stage {str(stage).rjust(names[1])}  {row}".rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        """One line."""
        return (
            f"<lockstep pipeline of {self.asked.stages} stages, {self.asked.micro_batches}"
            f" micro-batches, bubble {self.bubble:.1%}>"
        )


def lockstep_pipeline(
    plan: Plan, asked: Pipeline, whole: Cluster, overlap: float
) -> LockstepPipeline:
    """The pipeline of a plan of the program of one stage.

    Args:
        plan: Of that program.
        asked: By the user.
        whole: All devices.
        overlap: Share of communication inside of a stage that hides behind compute.
    """
    assert plan.summary is not None
    module = parse_bytes(plan.bytecode, new_context(), plan.name)
    with module.context:
        shape = cast(Shape, lockstep_of(module))
    stage = plan.summary.read_cluster()
    seconds = lockstep_seconds(module, shape, stage, whole, overlap)
    machines = machines_of(plan.machine, stage, whole, asked.stages)
    return LockstepPipeline(asked, whole, machines, seconds, overlap)


def _shortened(turns: Sequence[str], most: int) -> list[str]:
    if len(turns) <= most:
        return list(turns)
    half = (most - 1) // 2
    return [*turns[:half], "..", *turns[len(turns) - half :]]
