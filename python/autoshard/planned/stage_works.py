"""What each stage does for a micro-batch, by the stages and levels of its ops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.ir import mlir
from autoshard.ir.attributes import LEVEL, PIPELINE_STAGES, STAGE, attribute_of
from autoshard.ir.boundary import main_function
from autoshard.ir.micro_batch_loop import micro_batch_loop, micro_batches_of, pipeline_chunks_of
from autoshard.ir.module import operations_of, structure_of
from autoshard.planned.op_seconds import block_seconds, op_seconds
from autoshard.schedule.work import Work, passage


def stage_works(module: mlir.Module, cluster: Cluster, *, splits_gradients: bool) -> list[Work]:
    """The works of a micro-batch, as schedules take them.

    Args:
        module: As ``autoshard-pipeline-stages`` leaves it. Expects its context.
        cluster: By whose chip ops are timed, each on one device.
        splits_gradients: What nobody waits for becomes a work of its own.

    Raises:
        PlanError: Its ops have no stages.
    """
    if PIPELINE_STAGES not in module.operation.attributes:
        raise PlanError("the ops have no stages. Run autoshard-pipeline-stages first.")
    main = main_function(module)
    loop = micro_batch_loop(main)
    operations, count = operations_of(module.operation), micro_batches_of(module)
    timed = op_seconds(module, operations, replace(cluster, dims=()))
    seconds = [0.0] * len(operations)
    places: list[tuple[int, int, int]] = []
    for number, its in block_seconds(operations, timed, loop.regions[1].blocks[0]):
        seconds[number] = its / count
        place = _place(operations[number])
        if place is not None:
            places.append((number, *place))
    found = _core.stage_works(
        structure_of(module),
        main=operations.index(main),
        loop=operations.index(loop),
        places=places,
        seconds=seconds,
    )
    return works_of(found, pipeline_chunks_of(module), splits_gradients=splits_gradients)


def works_of(
    found: Sequence[_core.StageWork], chunks: int, *, splits_gradients: bool
) -> list[Work]:
    """The works of a micro-batch, as schedules take them.

    Of what a stage does in the order of levels, the first tasks begin micro-batches and the last
    ones end them: forward and backward passes of its chunks.

    Args:
        found: What stages do, in the order of levels.
        chunks: Parts of the model on each stage.
        splits_gradients: What nobody waits for becomes a work of its own.
    """
    by_stage: defaultdict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(found):
        by_stage[one.stage].append(number)
    works: list[Work] = []
    numbers: dict[int, int] = {}
    for number, one in enumerate(found):
        own = by_stage[one.stage]
        its = passage(own.index(number), len(own), chunks)
        after = tuple(sorted(numbers[other] for other in one.after))
        numbers[number] = len(works)
        work = Work(its.name, one.stage, one.seconds, after, its.ahead, its.ahead, its.chunk)
        if splits_gradients and work.ahead <= 0 and one.deferred_seconds:
            works += _split(work, one.deferred_seconds, len(works))
        else:
            works.append(work)
    return works


def _split(work: Work, deferred: float, number: int) -> tuple[Work, Work]:
    """A work without what nobody waits for, and that, behind it."""
    name = "I" if work.name == "B" else work.name
    first = replace(work, name=name, seconds=work.seconds - deferred, kept=work.kept + 1)
    rest = Work("W", work.stage, deferred, (number,), kept=-1, chunk=work.chunk, is_deferred=True)
    return first, rest


def _place(op: mlir.Operation) -> tuple[int, int] | None:
    """Stage and level of an op."""
    stage, level = attribute_of(op, STAGE), attribute_of(op, LEVEL)
    if stage is None or level is None:
        return None
    return mlir.IntegerAttr(stage).value, mlir.IntegerAttr(level).value
