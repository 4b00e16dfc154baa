"""What a fragment says of the task that it is.

By shardy/dialect/mpmd/ir of openxla/shardy ``call_counter`` is the number of the call, here the
micro-batch, ``stage_id`` the part of the model, and an origin with a ``1`` behind it the backward
pass of what it names. A backward pass that is split says which half it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.ir import mlir
from autoshard.pipeline.order import StagedStep
from autoshard.rewrites.stage_tasks.program import StageTask
from autoshard.schedule.work import Work

_REST, _WAITED_FOR = "split_drop_transferred", "split_keep_transferred"


@dataclass(frozen=True, slots=True)
class Label:
    """The names and numbers of a fragment."""

    name: str
    stage: int
    part: int
    """Number of the part of the model."""
    passes: tuple[int, ...] = (0,)
    """0: forward, 1: backward."""
    half: str | None = None
    """Where gradients of weights are apart: what other stages wait for, or the rest."""

    def attributes(self, micro_batch: int) -> dict[str, mlir.Attribute]:
        """The attributes of a fragment.

        Args:
            micro_batch: Its number; -1 outside of the loop.
        """
        origins = ", ".join(
            f'#mpmd.user_origin<"{self.name}"{f"({number})" if number else ""}>'
            for number in self.passes
        )
        signless, unsigned = mlir.IntegerType.get_signless(64), mlir.IntegerType.get_unsigned(32)
        found: dict[str, mlir.Attribute] = {
            "mesh_name": mlir.StringAttr.get(mesh_name(self.stage)),
            "origin": mlir.Attribute.parse(f"[{origins}]"),
            "stage_id": mlir.IntegerAttr.get(signless, self.part),
        }
        if micro_batch >= 0:
            found["call_counter"] = mlir.IntegerAttr.get(unsigned, micro_batch)
        if self.half is not None:
            found[self.half] = mlir.UnitAttr.get()
        return found


def mesh_name(stage: int) -> str:
    """The name of a stage's mesh in the topology."""
    return f"stage{stage}"


def labels_of(step: StagedStep) -> dict[str, Label]:
    """The label of each task, by its name."""
    calls = step.program.calls
    works = {call.task: work for call, work in zip(calls, step.schedule.works, strict=True)}
    halves = {(task.stage, task.level) for task in works if task.is_deferred}
    return {
        task.name: _label(task, works.get(task), step.program.stages, halves)
        for task in step.program.tasks
    }


def _label(task: StageTask, work: Work | None, stages: int, halves: set[tuple[int, int]]) -> Label:
    """The label of a task; ``work`` is None outside of the loop."""
    if work is None:
        return Label(task.name, task.stage, task.stage)
    half = None
    if (task.stage, task.level) in halves:
        half = _REST if task.is_deferred else _WAITED_FOR
    part = work.chunk * stages + task.stage
    return Label(task.name, task.stage, part, _passes(work.name), half)


def _passes(name: str) -> tuple[int, ...]:
    """The passes that a work is of, by its name in a chart."""
    if name.startswith("FB"):
        return (0, 1)
    return (0,) if name.startswith("F") else (1,)
