"""Label the ops of a step in micro-batches with their stages.

What reads no other stage is not sent: constants, parts of the batch and what is made of these alone
are written once for every stage that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autoshard import _core
from autoshard._core import WhyNoStages
from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.importer.stage_ops import stage_of_mark, stage_op, value_bytes
from autoshard.ir import mlir, place
from autoshard.ir.attributes import (
    LEVEL,
    MICRO_BATCHES,
    PIPELINE_CHUNKS,
    PIPELINE_STAGE,
    PIPELINE_STAGES,
    STAGE,
    custom_call_target,
)
from autoshard.ir.boundary import main_function
from autoshard.ir.micro_batch_loop import micro_batch_loop
from autoshard.ir.module import operations_of, structure_of
from autoshard.planned.op_seconds import block_seconds, op_seconds
from autoshard.rewrites.layer_loops.refusals import gone_through_twice, why_whole
from autoshard.rewrites.stage_sums import split_sums


@dataclass(frozen=True, slots=True)
class Cut:
    """Between two stages."""

    line: str | None
    """``file:line:col`` of the first op behind it that does much."""
    bytes: float
    """What crosses it in a micro-batch, both ways."""
    values: int
    """How many arrays these are."""


@dataclass(frozen=True, slots=True)
class StagedStep:
    """What a step's stages come to."""

    seconds: tuple[float, ...]
    """Seconds of a micro-batch on one device, by stage; with chunks, by part of the model."""
    least_seconds: float
    """Seconds of the slowest stage in the best of all cuts."""
    cuts: tuple[Cut, ...]
    units: int
    """Ops between which cuts may lie."""


def into_stages(
    module: mlir.Module,
    stages: int,
    micro_batches: int,
    cluster: Cluster,
    slack: float,
    chunks: int = 1,
) -> StagedStep:
    """Label every op, and copy those that several stages make for themselves.

    Args:
        module: As ``autoshard-micro-batch`` leaves it. Expects its context.
        stages: How many.
        micro_batches: Of the loop.
        cluster: By whose chip ops are timed.
        slack: Times the least seconds of the slowest stage that it may take for fewer bytes.
        chunks: Parts of the model on each stage: part ``n`` is on stage ``n % stages``. With more
            than one, marks are numbers of parts.

    Raises:
        PlanError: The step has no such stages.
    """
    timed = TimedStep.of(module, micro_batches, cluster, "stage" if chunks == 1 else "part")
    operations = timed.operations
    found = timed.cut(stages, chunks, slack)
    cuts = [Cut(place(operations[cut.op].location), cut.bytes, cut.values) for cut in found.cuts]
    _write(operations, found.places)
    sums = [operations[number] for number in found.split_sums]
    _drop_marks(operations)
    split_sums(timed.loop, sums)
    integer = mlir.IntegerType.get_signless(32)
    module.operation.attributes[PIPELINE_STAGES] = mlir.IntegerAttr.get(integer, stages)
    if chunks > 1:
        module.operation.attributes[PIPELINE_CHUNKS] = mlir.IntegerAttr.get(integer, chunks)
    return StagedStep(tuple(found.seconds), found.least_seconds, tuple(cuts), found.units)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of a model come to that stages take turns with."""

    seconds: tuple[float, ...]
    """Those of a micro-batch on one device, by part."""
    bytes: float
    """Those that cross one cut at most in a micro-batch, both ways."""


def parts_of(
    step: TimedStep, stages: int, chunks: int, slack: float, *, is_exact: bool = True
) -> Parts | None:
    """The parts of the model of a step; None: it has none.

    Args:
        step: In micro-batches.
        stages: How many.
        chunks: Parts on each stage.
        slack: As for ``into_stages``.
        is_exact: Or about, and fast: exact but for cuts inside of a layer.
    """
    try:
        cut = (step.parts if is_exact else step.parts_on_line)(stages, chunks, slack)
    except PlanError:
        return None
    return Parts(tuple(cut.seconds), max((one.bytes for one in cut.cuts), default=0))


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step in micro-batches, with seconds of one device, to be cut into stages."""

    module: mlir.Module
    """The ops live in it."""
    operations: list[mlir.Operation]
    loop: mlir.Operation
    micro_batches: int
    """Trips of the loop."""
    core: _core.TimedStep
    marked: tuple[int, mlir.Operation] | None
    """The largest number of a stage or part that a mark says, and the first op that does."""

    @staticmethod
    def of(module: mlir.Module, micro_batches: int, cluster: Cluster, unit: str) -> TimedStep:
        """The step of a module, which stays as it is but for marks of whole loops.

        Args:
            module: As ``autoshard-micro-batch`` leaves it. Expects its context.
            micro_batches: Of the loop.
            cluster: By whose chip ops are timed.
            unit: What marks number: ``stage``, or ``part`` where each stage has several.

        Raises:
            PlanError: The marks in one loop are of several stages.
        """
        main = main_function(module)
        loop = micro_batch_loop(main)
        blocks = [main.regions[0].blocks[0], loop.regions[1].blocks[0]]
        operations = operations_of(module.operation)
        seconds = [of / micro_batches for of in op_seconds(module, operations, _alone(cluster))]
        for inner, its in list(block_seconds(operations, seconds, blocks[1])):
            seconds[inner] = its
        marked = _largest_mark(operations)
        if marked is not None:
            _mark_whole_ops(blocks, unit)
        core = _core.TimedStep(
            structure_of(module),
            main=operations.index(main),
            loop=operations.index(loop),
            argument_bytes=[value_bytes(argument) for argument in blocks[1].arguments],
            seconds=seconds,
            describe=lambda number: stage_op(operations[number]),
        )
        return TimedStep(module, operations, loop, micro_batches, core, marked)

    def cut(self, stages: int, chunks: int, slack: float) -> _core.PipelineStages:
        """The core's decision.

        Raises:
            PlanError: The step has no such stages.
        """
        return self._decided(self.core.cut, stages, chunks, slack)

    def parts(self, stages: int, chunks: int, slack: float) -> _core.PipelineStages:
        """The same without places of ops, which is asked of many numbers of chunks.

        Raises:
            PlanError: The step has no such stages.
        """
        return self._decided(self.core.parts, stages, chunks, slack)

    def parts_on_line(self, stages: int, chunks: int, slack: float) -> _core.PipelineStages:
        """About the same, with everything at the product or loop that it belongs to.

        Raises:
            PlanError: The step has no such stages.
        """
        return self._decided(self.core.parts_on_line, stages, chunks, slack)

    def _decided(
        self, decide: Callable[..., _core.PipelineStages], stages: int, chunks: int, slack: float
    ) -> _core.PipelineStages:
        if self.marked is not None:
            _check_mark(*self.marked, stages, chunks)
        try:
            return decide(stages=stages, chunks=chunks, slack=slack)
        except _core.NoPipelineStages as error:
            raise _refusal(self.operations, error, stages, chunks) from error


def _alone(cluster: Cluster) -> Cluster:
    """One device of it."""
    return replace(cluster, dims=())


def _largest_mark(operations: Sequence[mlir.Operation]) -> tuple[int, mlir.Operation] | None:
    """The largest number that a mark says, and the first op that does; None: there is no mark."""
    found: tuple[int, mlir.Operation] | None = None
    for op in operations:
        said = stage_of_mark(op)
        if said >= 0 and (found is None or said > found[0]):
            found = said, op
    return found


def _check_mark(said: int, op: mlir.Operation, stages: int, chunks: int) -> None:
    parts = stages * chunks
    if said < parts:
        return
    if chunks == 1:
        what = f"stage {said}, and there are {stages} stages, 0 to {stages - 1}"
    else:
        what = (
            f"part {said} of the model, and {stages} stages with chunks={chunks} have {parts},"
            f" 0 to {parts - 1}: part n is on stage n % {stages}"
        )
    more = -(-(said + 1) // chunks)
    raise PlanError(
        f"autoshard.pipeline_stage says {what}. Give one of these, or stages={more} and more.",
        place(op.location),
    )


def _mark_whole_ops(blocks: Sequence[mlir.Block], unit: str) -> None:
    """An op with marks in its regions is marked itself: it is on one stage as a whole.

    Args:
        blocks: Whose ops are marked.
        unit: ``stage``, or ``part`` where each stage has several.

    Raises:
        PlanError: The marks are of several stages.
    """
    for block in blocks:
        for top in block.operations:
            op = top.operation
            if not len(op.regions) or MICRO_BATCHES in op.attributes:
                continue
            marks = [inner for inner in operations_of(op) if stage_of_mark(inner) >= 0]
            if not marks:
                continue
            said = [stage_of_mark(mark) for mark in marks]
            if len(set(said)) > 1:
                raise PlanError(
                    f"{unit}s {min(said)} and {max(said)} are in one loop: what a loop does is on"
                    f" one {unit}. Unroll it (jax.lax.scan: unroll=True, or a for loop over"
                    " layers), or mark it as a whole.",
                    place(marks[0].location),
                )
            op.attributes[STAGE] = marks[0].attributes[STAGE]


def _write(operations: Sequence[mlir.Operation], places: Sequence[_core.StagePlace]) -> None:
    """Label ops; those with several places are copied, and their readers read their own copy."""
    integer = mlir.IntegerType.get_signless(32)
    numbers: dict[int, mlir.IntegerAttr] = {}

    def attribute(value: int) -> mlir.IntegerAttr:
        if value not in numbers:
            numbers[value] = mlir.IntegerAttr.get(integer, value)
        return numbers[value]

    copied: list[list[_Copy]] = []
    for number, group in groupby(places, lambda at: at.op):
        last, made = operations[number], list[_Copy]()
        for at in group:
            if made:
                last = last.clone(ip=mlir.InsertionPoint.after(last)).operation
            last.attributes[STAGE] = attribute(at.stage)
            last.attributes[LEVEL] = attribute(at.level)
            made.append(_Copy(last, at.stage, at.level))
        if len(made) > 1:
            copied.append(made)
    for made in copied:
        _read_copies(made)


@dataclass(frozen=True, slots=True)
class _Copy:
    op: mlir.Operation
    stage: int
    level: int


def _read_copies(made: Sequence[_Copy]) -> None:
    """Let each reader read the copy of its own stage, the last one that is there in time."""
    original = made[0].op
    for index, result in enumerate(original.results):
        for use in list(result.uses):
            reader = _labelled(use.owner.operation, original.block)
            if reader is None:
                continue
            stage, level = (mlir.IntegerAttr(reader.attributes[n]).value for n in (STAGE, LEVEL))
            own = [copy for copy in made if copy.stage == stage]
            in_time = [copy for copy in own if copy.level <= level] or own
            if in_time and in_time[-1].op != original:
                use.owner.operands[use.operand_number] = in_time[-1].op.results[index]


def _labelled(op: mlir.Operation, block: mlir.Block) -> mlir.Operation | None:
    """The op that is labelled of those around ``op``, itself first; None: it is not."""
    found: mlir.Operation | None = op
    while found is not None:
        if STAGE in found.attributes and LEVEL in found.attributes:
            return found
        if found.block == block:
            return None
        found = found.parent.operation if found.parent is not None else None
    return None


def _drop_marks(operations: Sequence[mlir.Operation]) -> None:
    for op in operations:
        if custom_call_target(op) == PIPELINE_STAGE:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def _refusal(
    operations: Sequence[mlir.Operation], error: _core.NoPipelineStages, stages: int, chunks: int
) -> PlanError:
    """The core's refusal with the user's line and a way out."""
    why, number, stage, share, units = error.args
    parts = f"stages={stages}" + (f" chunks={chunks}" if chunks > 1 else "")
    unit, fewer = "stage", "fewer stages"
    if chunks > 1:
        unit, fewer = "part", "fewer stages or chunks"
    where = place(operations[number].location) if number >= 0 else None
    has_marks = any(custom_call_target(op) == PIPELINE_STAGE for op in operations)
    if why == WhyNoStages.ORDER and not has_marks:  # loops that were cut say their stages
        return gone_through_twice(operations[number])
    if why == WhyNoStages.ORDER:
        said = stage_of_mark(operations[number])
        return PlanError(
            f"a value is marked as on {unit} {said}, and other marks lead to {unit} {stage}:"
            f" forwards a micro-batch goes from {unit} to {unit} in their order, its gradients the"
            " other way round. Mark what is computed first with smaller numbers.",
            where,
        )
    if why == WhyNoStages.FEW:
        return PlanError(
            f"{parts}: the step has {units} products of matrices, loops and marks on its way"
            f" forward, and each of {stages * chunks} parts needs one. Give {fewer}, or unroll"
            " loops over layers."
        )
    if why == WhyNoStages.MARKS and not has_marks:
        return PlanError(
            f"{parts}: loops over layers are cut by their trips into equal parts, and leave a"
            f" {unit} nothing to do. Give other numbers of stages or chunks, or unroll loops."
        )
    if why == WhyNoStages.MARKS:
        return PlanError(
            f"{parts}: the marks of autoshard.pipeline_stage leave a {unit} nothing to do. Mark"
            f" something of every {unit}, 0 to {stages * chunks - 1}, or fewer things."
        )
    return PlanError(
        f"{parts}: one loop takes {100 * share:.0f} % of the step, and a loop is on one stage"
        f"{why_whole(operations[number])}. Unroll it (jax.lax.scan: unroll=True, or a for loop"
        f" over layers), or give {fewer}.",
        where,
    )
