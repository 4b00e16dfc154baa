"""Seconds of each op of a module on one device, by the model that plans are made with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.importer.imported_program import NO_VALUE, ImportedProgram
from autoshard.importer.program import import_program
from autoshard.ir import mlir
from autoshard.ir.module import operations_of
from autoshard.planned.given_plan import Dims, GivenPlan
from autoshard.planned.write import populate_rules, remove_rules
from autoshard.sharding import Axis, Mesh


def op_seconds(
    module: mlir.Module,
    operations: Sequence[mlir.Operation],
    cluster: Cluster,
    trip_count: int = 100,
) -> list[float]:
    """Seconds of every op, of all of its trips together; 0 for ops that are fused into others.

    Args:
        module: Without calls that several ops share; it stays as it is.
        operations: All of its ops, as ``operations_of`` gives them.
        cluster: Of one device.
        trip_count: Assumed trips of loops whose count cannot be read from the program.
    """
    imported, plan = plan_of_one_device(module, operations, cluster, trip_count)
    seconds, plan_seconds = [0.0] * len(operations), plan.op_seconds
    numbers = {op: number for number, op in enumerate(operations)}
    trips = imported.program.op_trips
    casts: dict[mlir.Operation, float] = {}  # a part of the matmul that reads them
    for core, op in enumerate(imported.core_ops):
        spent = plan_seconds[core] * trips[core]
        if core in imported.rounded:
            casts[op] = casts.get(op, 0.0) + spent
            continue
        seconds[numbers[op]] = spent + (casts.pop(op, 0.0) if casts else 0.0)
    return seconds


def plan_of_one_device(
    module: mlir.Module,
    operations: Sequence[mlir.Operation],
    cluster: Cluster,
    trip_count: int = 100,
) -> tuple[ImportedProgram, _core.CorePlan]:
    """A module read for one device, and what it costs there; arguments as of ``op_seconds``."""
    mesh = Mesh((Axis("one", 1),))
    with module.context, mlir.Location.unknown():
        populate_rules(module)
        try:
            imported = import_program(
                module,
                mesh,
                unknown_trip_count=trip_count,
                keep_strategies=False,
                operations=operations,
                compiler=cluster.compiler,
            )
        finally:
            remove_rules(module)
        given = GivenPlan(imported)
        whole = [given.row(_whole(len(shape))) for shape in imported.value_shapes]
        of_class: dict[int, int] = {}  # ranks are those of the class
        strategies: list[int] = []
        for number, (op, its) in enumerate(
            zip(imported.core_ops, imported.op_classes.tolist(), strict=True)
        ):
            if (rounded := imported.rounded.get(number)) is not None:
                rows = (whole[rounded.source],), (whole[rounded.result],)
                strategies.append(given.strategy_row(*rows))
                continue
            if its not in of_class:
                rows = _rows(given, op.operands), _rows(given, op.results)
                of_class[its] = given.strategy_row(*rows)
            strategies.append(of_class[its])
        return imported, given.checked(imported.program, cluster, 0.0, whole, strategies)


def _whole(rank: int) -> Dims:
    return ((),) * rank


def _rows(given: GivenPlan, values: Sequence[mlir.Value]) -> tuple[int, ...]:
    ranks = [
        value.type.rank if isinstance(value.type, mlir.RankedTensorType) else 0 for value in values
    ]
    return tuple(given.row(_whole(rank)) if rank else NO_VALUE for rank in ranks)


def block_seconds(
    operations: Sequence[mlir.Operation], seconds: Sequence[float], block: mlir.Block
) -> Iterator[tuple[int, float]]:
    """The number of each op of a block, and its seconds with those in its regions."""
    number = next(n for n, op in enumerate(operations) if op.block == block)
    for op in block.operations:
        size = len(operations_of(op.operation)) if len(op.operation.regions) else 1
        yield number, sum(seconds[number : number + size])
        number += size
