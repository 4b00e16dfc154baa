"""Costs of the bodies of ``jax.shard_map``: they are one device's part already, and nothing of a
plan changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.importer.imported_program import ImportedProgram
from autoshard.importer.loops import trip_count
from autoshard.ir import mlir
from autoshard.ir.inline import inline_calls, substitute
from autoshard.ir.module import functions_of, operations_of
from autoshard.ir.symbols import functions_named, functions_reached
from autoshard.ir.types import numpy_type, tensor_bytes
from autoshard.kernels.tables import table_contents
from autoshard.planned.collective import ring_bytes
from autoshard.planned.op_seconds import op_seconds, plan_of_one_device
from autoshard.planned.summary import CollectiveSummary
from autoshard.planned.written_collectives import written_collective, written_kind
from autoshard.sharding import Mesh


@dataclass(frozen=True)
class ManualCosts:
    """Seconds of a step on one device."""

    compute_seconds: float
    collectives: tuple[CollectiveSummary, ...]

    @property
    def communication_seconds(self) -> float:
        """Seconds of all collectives; none of them is taken to be hidden."""
        return sum(one.seconds or 0.0 for one in self.collectives)


def with_bodies(imported: ImportedProgram, cluster: Cluster) -> ImportedProgram:
    """The same program, whose memory knows what manual computations need while they run.

    Args:
        imported: The program.
        cluster: Of the chips that run it.
    """
    if not imported.manual:
        return imported
    functions = functions_of(imported.module)
    known: dict[str, float] = {}
    bodies: dict[int, float] = {}  # those behind the same op run one after the other
    for one in imported.manual:
        text = str(one.op.get_asm(use_local_scope=True))
        if text not in known:
            known[text] = _scratch_bytes(_as_module(one.op, functions), cluster)
        bodies[one.after] = max(bodies.get(one.after, 0.0), known[text])
    return replace(imported, program=imported.program.with_bodies(list(bodies.items())))


def _scratch_bytes(module: mlir.Module, cluster: Cluster) -> float:
    """What a program of one device needs beside its arguments and results."""
    _, plan = plan_of_one_device(module, operations_of(module.operation), _alone(cluster))
    main = functions_of(module)["main"].regions[0].blocks[0]
    *_, last = main.operations
    held = (*main.arguments, *last.operation.operands)
    return max(0.0, plan.peak_bytes - sum(tensor_bytes(value.type) for value in held))


def _alone(cluster: Cluster) -> Cluster:
    return replace(cluster, dims=())


def manual_costs(imported: ImportedProgram, mesh: Mesh, cluster: Cluster) -> ManualCosts:
    """Seconds of all manual computations of a program.

    What one leaves to the partitioner, along axes that are not manual, counts whole.

    Args:
        imported: The program.
        mesh: Over whose axes they run.
        cluster: That has the devices of the mesh.
    """
    if not imported.manual:
        return ManualCosts(0.0, ())
    compute = 0.0
    collectives: dict[object, CollectiveSummary] = {}
    core = cluster.to_core(mesh)
    functions = functions_of(imported.module)
    known: dict[str, tuple[mlir.Module, float]] = {}
    for one_body in imported.manual:
        times = one_body.trips
        text = str(one_body.op.get_asm(use_local_scope=True))
        if text not in known:
            module = _as_module(one_body.op, functions)
            known[text] = module, _seconds(module, cluster)
        module, seconds = known[text]
        compute += times * seconds
        main = functions_of(module)["main"].regions[0].blocks[0]
        for each, trips in _collectives_in(main, times):
            one = _summary(each, trips, mesh, core)
            if not one.axes:  # of one device
                continue
            key = one.kind, one.axes, one.bytes, one.location
            before = collectives.get(key)
            collectives[key] = one if before is None else _both(before, one)
    return ManualCosts(compute, tuple(collectives.values()))


def _seconds(module: mlir.Module, cluster: Cluster) -> float:
    """Seconds of a program of one device, collectives left out."""
    operations = operations_of(module.operation)
    seconds = op_seconds(module, operations, _alone(cluster))
    pairs = zip(operations, seconds, strict=True)
    return sum(its for op, its in pairs if written_kind(op) is None)


def _as_module(op: mlir.Operation, functions: Mapping[str, mlir.Operation]) -> mlir.Module:
    """The body as a program of one device, without calls."""
    body = op.regions[0].blocks[0]
    with op.context, mlir.Location.unknown():
        module = mlir.Module.create()
        named = {name for inner in operations_of(op) for name in functions_named(inner)}
        reached = {each for name in named for each in functions_reached(functions, name)}
        point = mlir.InsertionPoint(module.body)
        for name in sorted(reached):
            functions[name].clone(ip=point)
        returned = [value.type for value in list(body.operations)[-1].operation.operands]
        given = [argument.type for argument in body.arguments]
        main = mlir.Operation.create(
            "func.func",
            attributes={
                "sym_name": mlir.StringAttr.get("main"),
                "function_type": mlir.TypeAttr.get(mlir.FunctionType.get(given, returned)),
            },
            regions=1,
            ip=point,
        )
        block = main.regions[0].blocks.append(*given)
        inside = mlir.InsertionPoint(block)
        mapped = {
            value: _table(value, inside) or argument
            for value, argument in zip(body.arguments, block.arguments, strict=True)
        }
        for each in body.operations:
            inner = each.operation
            if inner.name == "sdy.return":
                results = [mapped.get(value, value) for value in inner.operands]
                mlir.Operation.create("func.return", operands=results, ip=inside)
                continue
            copy = inner.clone(ip=inside).operation
            substitute(copy, mapped)
            mapped.update(zip(inner.results, copy.results, strict=True))
        inline_calls(module)
    return module


def _table(value: mlir.BlockArgument, point: mlir.InsertionPoint) -> mlir.Value | None:
    """A constant that is what a body is given, where the program says what that is: masks of
    kernels are. None: it does not, or devices have unlike parts."""
    type_ = value.type
    if not isinstance(type_, mlir.RankedTensorType) or not type_.rank:
        return None
    if not isinstance(type_.element_type, mlir.IntegerType):
        return None
    contents = table_contents(value)
    if contents is None:
        return None
    kind = numpy_type(type_.element_type)
    entries = np.ascontiguousarray(contents.astype(kind))
    held = mlir.DenseElementsAttr.get(cast(Any, entries), type=type_)
    op = mlir.Operation.create(
        "stablehlo.constant", results=[type_], attributes={"value": held}, ip=point
    )
    return op.results[0]


def _collectives_in(block: mlir.Block, times: float) -> Iterator[tuple[mlir.Operation, float]]:
    """Collectives of a block, with how often each runs."""
    for each in block.operations:
        op = each.operation
        if written_kind(op) is not None:
            yield op, times
            continue
        is_loop = op.name == "stablehlo.while"
        within = times * ((trip_count(op, _same) if is_loop else 1) or 1)
        for region in op.regions:
            for inner in region.blocks:
                yield from _collectives_in(inner, within)


def _same(value: mlir.Value) -> mlir.Value:
    return value


def _summary(
    op: mlir.Operation, times: float, mesh: Mesh, core: _core.Cluster
) -> CollectiveSummary:
    found = written_collective(op, mesh)
    # Groups that are no axes are charged as if all devices took part.
    names = [axis.name for axis in mesh.axes if found.axes is None] + [
        axis.name for axis in found.axes or ()
    ]
    mask = sum(1 << mesh.axis_index(name) for name in dict.fromkeys(names))
    step = _core.Step(found.kind, mask, found.group_size, found.local_bytes)
    seconds = times * _core.collective_seconds(step, core, mesh.axis_sizes)
    return CollectiveSummary(
        kind=found.kind.value,
        axes=tuple(dict.fromkeys(names)),
        bytes=ring_bytes(found.kind, found.group_size, found.local_bytes),
        times=times,
        seconds=seconds,
        location=found.place,
        exposed_seconds=seconds,
        slack_seconds=0.0,
    )


def _both(one: CollectiveSummary, other: CollectiveSummary) -> CollectiveSummary:
    """All runs of two that are alike."""
    seconds = (one.seconds or 0.0) + (other.seconds or 0.0)
    return replace(one, times=one.times + other.times, seconds=seconds, exposed_seconds=seconds)
