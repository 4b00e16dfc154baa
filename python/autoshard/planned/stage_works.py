"""What each stage does for a micro-batch, read off a step whose ops have stages and levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.ir import mlir
from autoshard.ir.attributes import LEVEL, PIPELINE_STAGES, STAGE, attribute_of
from autoshard.ir.boundary import main_function
from autoshard.ir.micro_batch_loop import micro_batch_loop, micro_batches_of, pipeline_chunks_of
from autoshard.ir.module import operations_of
from autoshard.planned.op_seconds import op_seconds
from autoshard.schedule.work import Work, passage

_Task = tuple[int, int]
"""Level and stage."""


@dataclass
class _Seen:
    """What is known of a task."""

    seconds: float = 0.0
    deferred_seconds: float = 0.0
    """Seconds of what no other task waits for."""
    after: set[_Task] = field(default_factory=set[_Task])


def stage_works(module: mlir.Module, cluster: Cluster, *, splits_gradients: bool) -> list[Work]:
    """The works of a micro-batch, as schedules take them.

    Of what a stage does in the order of levels, the first tasks begin micro-batches and the last
    ones end them: forward and backward passes of its chunks.

    Args:
        module: As ``autoshard-pipeline-stages`` leaves it. Expects its context.
        cluster: By whose chip ops are timed, each on one device.
        splits_gradients: What nobody waits for becomes a work of its own.

    Raises:
        PlanError: Its ops have no stages.
    """
    if PIPELINE_STAGES not in module.operation.attributes:
        raise PlanError("the ops have no stages. Run autoshard-pipeline-stages first.")
    chunks = pipeline_chunks_of(module)
    tasks = _tasks(module, cluster)
    order = sorted(tasks)
    by_stage: defaultdict[int, list[_Task]] = defaultdict(list)
    for task in order:
        by_stage[task[1]].append(task)
    works: list[Work] = []
    numbers: dict[_Task, int] = {}
    for task in order:
        own = by_stage[task[1]]
        seen, its = tasks[task], passage(own.index(task), len(own), chunks)
        after = tuple(sorted(numbers[other] for other in seen.after))
        numbers[task] = len(works)
        work = Work(its.name, task[1], seen.seconds, after, its.ahead, its.ahead, its.chunk)
        if splits_gradients and work.ahead <= 0 and seen.deferred_seconds:
            works += _split(work, seen.deferred_seconds, len(works))
        else:
            works.append(work)
    return works


def _split(work: Work, deferred: float, number: int) -> tuple[Work, Work]:
    """A work without what nobody waits for, and that, behind it."""
    name = "I" if work.name == "B" else work.name
    first = replace(work, name=name, seconds=work.seconds - deferred, kept=work.kept + 1)
    rest = Work("W", work.stage, deferred, (number,), kept=-1, chunk=work.chunk, is_deferred=True)
    return first, rest


def _tasks(module: mlir.Module, cluster: Cluster) -> dict[_Task, _Seen]:
    operations = operations_of(module.operation)
    one = replace(cluster, dims=())
    seconds = op_seconds(module, operations, one)
    loop = micro_batch_loop(main_function(module))
    body = loop.regions[1].blocks[0]
    count = micro_batches_of(module)
    ops = [op.operation for op in body.operations]
    index = {op.results[0]: n for n, op in enumerate(ops) if len(op.results)}
    task_of = [_task(op) for op in ops]
    found: defaultdict[_Task, _Seen] = defaultdict(_Seen)
    needed = [False] * len(ops)
    number = next(n for n, op in enumerate(operations) if op.block == body)
    spans: list[tuple[int, int]] = []
    for op in ops:
        size = len(operations_of(op)) if len(op.regions) else 1
        spans.append((number, number + size))
        number += size
    for n in reversed(range(len(ops))):
        task = task_of[n]
        if task is None:
            continue
        takes = sum(seconds[slice(*spans[n])]) / count
        seen = found[task]
        seen.seconds += takes
        seen.deferred_seconds += 0.0 if needed[n] else takes
        for maker in _makers(operations[slice(*spans[n])], index):
            other = task_of[maker]
            if other is None:
                continue
            needed[maker] |= needed[n] or other[1] != task[1]
            if other != task:
                seen.after.add(other)
    return dict(found)


def _makers(ops: Sequence[mlir.Operation], index: dict[mlir.Value, int]) -> Iterable[int]:
    """Numbers of the ops of the body whose results these read."""
    for op in ops:
        for value in op.operands:
            if not isinstance(value, mlir.BlockArgument):
                first = mlir.OpResult(value).owner.operation.results[0]
                if first in index:
                    yield index[first]


def _task(op: mlir.Operation) -> _Task | None:
    stage, level = attribute_of(op, STAGE), attribute_of(op, LEVEL)
    if stage is None or level is None:
        return None
    return mlir.IntegerAttr(level).value, mlir.IntegerAttr(stage).value
