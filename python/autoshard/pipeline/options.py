"""``autoshard.Pipeline``: what a user asks of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from autoshard.errors import PlanError
from autoshard.schedule.rules import Rule

ScheduleLike = Literal["auto", "gpipe", "1f1b", "zero_bubble"]
Execution = Literal["auto", "stages", "lockstep"]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages on devices of their own, through which micro-batches go one behind the other.

    Example:
        ``autoshard.jit(step, pipeline=autoshard.Pipeline(stages=4, micro_batches=16))``

    Raises:
        PlanError: Numbers that cannot be, or an option that is not there yet.
    """

    stages: int
    """Groups of equally many devices; the slowest dim of the cluster is cut."""
    micro_batches: int
    """Parts of the batch; as many as stages, or more."""
    schedule: ScheduleLike = "auto"
    """In which order stages take micro-batches; ``auto``: the fastest by the cost model, of equal
    ones ``1f1b``, which keeps the least."""
    chunks: int = 1
    """Parts of the model on each stage: of ``stages * chunks`` parts in a row part ``n`` is on
    stage ``n % stages``. More than one make the schedule interleaved."""
    interleave: int = 1
    """Micro-batches that a task takes side by side. More than one is not supported."""

    execution: Execution = "stages"
    """``stages``: a program for each task of a stage, in the order of the schedule. ``lockstep``:
    one program that all stages run, each with its part of a loop over layers; forwards for all
    micro-batches, then backwards. ``auto``: the faster of the two by the cost model."""

    def __post_init__(self) -> None:
        for name in ("stages", "micro_batches", "chunks", "interleave"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PlanError(f"Pipeline({name}={value!r}): give 1 or more.")
        if self.stages < 2:
            raise PlanError(
                f"Pipeline(stages={self.stages}) is no pipeline. Give 2 or more, or micro_batches="
                " alone: a step in parts on all devices."
            )
        if self.micro_batches < self.stages:
            raise PlanError(
                f"Pipeline(stages={self.stages}, micro_batches={self.micro_batches}): some stages"
                " would never work while others do. Give as many micro-batches as stages, or more."
            )
        if self.schedule not in get_args(ScheduleLike):
            known = ", ".join(map(repr, get_args(ScheduleLike)))
            raise PlanError(f"Pipeline(schedule={self.schedule!r}) is not known. Use {known}.")
        if self.execution not in get_args(Execution):
            known = ", ".join(map(repr, get_args(Execution)))
            raise PlanError(f"Pipeline(execution={self.execution!r}) is not known. Use {known}.")
        if self.execution == "lockstep" and (self.chunks > 1 or self.schedule != "auto"):
            raise PlanError(
                f"Pipeline(execution='lockstep', schedule={self.schedule!r}, chunks={self.chunks}):"
                " in lockstep all micro-batches go forwards through one part of the model on each"
                " stage, then backwards. Leave schedule and chunks out, or give"
                " execution='stages'."
            )
        if self.interleave > 1:
            raise PlanError(
                f"Pipeline(interleave={self.interleave}) is not supported. Leave interleave out."
            )

    @property
    def rules(self) -> Sequence[Rule]:
        """Schedules to choose from; of equally fast ones the first is taken."""
        return ("1f1b", "zero_bubble") if self.schedule == "auto" else (self.schedule,)


PipelineLike = Pipeline | Literal["auto"]
"""All options, or the choice of the fastest, which may be none."""
