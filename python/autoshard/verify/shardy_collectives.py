"""What a module communicates, by Shardy's own passes and without compiling.

Shardy completes the shardings, makes every reshard explicit and turns it into collectives.
An exported module (``autoshard-export-shardy``) has nothing left to complete, so the result is
what the plan communicates; a module with shardings on its arguments only gives what Shardy's
propagation would communicate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from autoshard.importer.loops import trip_count
from autoshard.ir import mlir, print_module
from autoshard.ir.attributes import SDY_SHARDING, TRIP_COUNT
from autoshard.ir.locations import op_name, place
from autoshard.ir.module import functions_of
from autoshard.ir.native import run_native
from autoshard.ir.one_device import is_on_one_device, is_one_device_mesh, one_device_meshes
from autoshard.ir.types import tensor_bytes
from autoshard.planned.collective import (
    Collective,
    CollectiveKind,
    in_mesh_order,
)
from autoshard.planned.written_collectives import written_collective, written_kind
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sdy_text import from_sdy, mesh_from_sdy, per_value_from_sdy
from autoshard.sharding.sharding import AxisRef, Sharding

_FLATTEN = "builtin.module(sdy-flatten-call-graph)"
_TO_COLLECTIVES = (
    "builtin.module(sdy-propagation-pipeline, "
    "func.func(sdy-insert-explicit-reshards{{enable-full-version=true}}){}, "
    "func.func(sdy-reshard-to-collectives), canonicalize)"
)
_JOIN_STEPS = ", canonicalize"
"""Makes one reshard of those that follow each other, which may then be an all-to-all."""


_AXES_ATTRIBUTE = {
    "sdy.all_gather": (CollectiveKind.ALL_GATHER, "gathering_axes"),
    "sdy.all_reduce": (CollectiveKind.ALL_REDUCE, "reduction_axes"),
    "sdy.reduce_scatter": (CollectiveKind.REDUCE_SCATTER, "reduce_scatter_axes"),
    "sdy.all_to_all": (CollectiveKind.ALL_TO_ALL, "params"),
}
_AXIS = re.compile(r'"((?:[^"\\]|\\.)*)"(?::\((\d+)\)(\d+))?')


def shardy_collectives(
    module: mlir.Module, *, unknown_trip_count: int = 1, has_all_to_all: bool = True
) -> list[Collective]:
    """Every collective that Shardy makes of ``module``, which stays as it is.

    Args:
        module: With Shardy's shardings; not one that has been exported for GSPMD.
        unknown_trip_count: Trips of a loop that is not a counted one; collectives in it have
            ``times_known=False``.
        has_all_to_all: False for a module that was planned without: every step of a reshard
            counts as it is written.

    Returns:
        In program order, once for each call; of a ``case``, every branch counts. What the bodies
        of ``jax.shard_map`` communicate is there, too.

    Raises:
        PassError: Shardy refuses the module.
    """
    clone = mlir.Module.parse(print_module(module, "bytecode"), module.context)
    run_native(clone, _FLATTEN, verify=False)
    with clone.context:
        _note_trip_counts(clone)
        _forget_callbacks(clone)
    to_collectives = _TO_COLLECTIVES.format(_JOIN_STEPS if has_all_to_all else "")
    run_native(clone, to_collectives, verify=False)
    return _Counter(clone, unknown_trip_count).collectives()


# Trip counts, before Shardy rewrites constants --------------------------------------------------


def _note_trip_counts(module: mlir.Module) -> None:
    aliases = _Aliases(module)
    int64 = mlir.IntegerType.get_signless(64)
    for op in _ops(module):
        if op.name == "stablehlo.while":
            trips = trip_count(op, aliases.resolve)
            if trips is not None:
                op.attributes[TRIP_COUNT] = mlir.IntegerAttr.get(int64, trips)


def _forget_callbacks(module: mlir.Module) -> None:
    """Take the device off calls back into Python; Shardy has no collective that leads there."""
    meshes = one_device_meshes(module)
    if not meshes:
        return
    for op in _ops(module):
        if op.name == "stablehlo.custom_call" and is_on_one_device(op, meshes):
            del op.attributes[SDY_SHARDING]


def _ops(module: mlir.Module) -> Iterator[mlir.Operation]:
    stack = [op.operation for op in module.body.operations]
    while stack:
        op = stack.pop()
        yield op
        for region in op.regions:
            for block in region.blocks:
                stack.extend(inner.operation for inner in block.operations)


class _Aliases:
    """Which values are the same across calls; every callee has one call."""

    def __init__(self, module: mlir.Module) -> None:
        functions = functions_of(module)
        self.same: dict[mlir.Value, mlir.Value] = {}
        for op in _ops(module):
            if op.name != "func.call":
                continue
            callee = functions[mlir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            block = callee.regions[0].blocks[0]
            self.same.update(zip(block.arguments, op.operands, strict=True))
            returned = block.operations[len(block.operations) - 1].operands
            self.same.update(zip(op.results, returned, strict=True))

    def resolve(self, value: mlir.Value) -> mlir.Value:
        """Where a value is made."""
        while value in self.same:
            value = self.same[value]
        return value


# Collectives ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    times: int
    known: bool


class _Counter:
    """Walks the functions from the entry."""

    def __init__(self, module: mlir.Module, unknown_trip_count: int) -> None:
        self.unknown_trip_count = unknown_trip_count
        self.meshes: dict[str, Mesh] = {}
        self.functions: dict[str, mlir.Operation] = {}
        self.inside: dict[str, list[Collective]] = {}
        for op in module.body.operations:
            operation = op.operation
            if operation.name == "sdy.mesh":
                name = mlir.StringAttr(operation.attributes["sym_name"]).value
                if not is_one_device_mesh(operation):
                    self.meshes[name] = mesh_from_sdy(str(operation.attributes["mesh"]))
            elif operation.name == "func.func":
                name = mlir.StringAttr(operation.attributes["sym_name"]).value
                self.functions[name] = operation

    def collectives(self) -> list[Collective]:
        entries = [
            name
            for name, function in self.functions.items()
            if "sym_visibility" not in function.attributes
            or mlir.StringAttr(function.attributes["sym_visibility"]).value == "public"
        ]
        return [found for name in entries for found in self._function(name)]

    def _function(self, name: str) -> list[Collective]:
        if name not in self.inside:
            self.inside[name] = [
                found
                for block in self.functions[name].regions[0].blocks
                for found in self._block(block, _Run(1, True))
            ]
        return self.inside[name]

    def _block(self, block: mlir.Block, run: _Run) -> Iterator[Collective]:
        for op in block.operations:
            operation = op.operation
            name = operation.name
            if name in _AXES_ATTRIBUTE or name == "sdy.collective_permute":
                yield self._collective(operation, run)
            elif name == "func.call":
                callee = mlir.FlatSymbolRefAttr(operation.attributes["callee"]).value
                for found in self._function(callee):
                    yield replace(
                        found,
                        times=found.times * run.times,
                        times_known=found.times_known and run.known,
                    )
            elif name in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
                inner = self._loop(operation, run) if name == "stablehlo.while" else run
                for region in operation.regions:
                    for inner_block in region.blocks:
                        yield from self._block(inner_block, inner)
            elif name == "sdy.named_computation":
                for inner_block in operation.regions[0].blocks:
                    yield from self._block(inner_block, run)
            elif name == "sdy.manual_computation":
                mesh = self._mesh_of(operation)
                for inner_block in operation.regions[0].blocks:
                    yield from self._inside(inner_block, mesh, run)

    def _inside(self, block: mlir.Block, mesh: Mesh, run: _Run) -> Iterator[Collective]:
        """What one device's part of the program says itself."""
        for op in block.operations:
            operation = op.operation
            if written_kind(operation) is not None:
                found = written_collective(operation, mesh)
                yield replace(found, times=run.times, times_known=run.known)
                continue
            is_loop = operation.name == "stablehlo.while"
            inner = self._loop(operation, run) if is_loop else run
            for region in operation.regions:
                for inner_block in region.blocks:
                    yield from self._inside(inner_block, mesh, inner)

    def _mesh_of(self, op: mlir.Operation) -> Mesh:
        """The mesh over whose axes a manual computation runs."""
        for side in ("in_shardings", "out_shardings"):
            for sharding in per_value_from_sdy(str(op.attributes[side]), self.meshes):
                return sharding.mesh
        return next(iter(self.meshes.values()))

    def _loop(self, loop: mlir.Operation, run: _Run) -> _Run:
        trips = loop.attributes.get(TRIP_COUNT)
        if trips is None:
            return _Run(run.times * self.unknown_trip_count, False)
        return _Run(run.times * mlir.IntegerAttr(trips).value, run.known)

    def _collective(self, op: mlir.Operation, run: _Run) -> Collective:
        text = str(op.attributes["out_sharding"])
        sharding = from_sdy(text, self.meshes)
        mesh = sharding.mesh
        type_ = mlir.RankedTensorType(op.results[0].type)
        after = tensor_bytes(type_) / prod(sharding.tile)
        if op.name == "sdy.collective_permute":
            kind = CollectiveKind.PERMUTE
            axes = self._permuted_axes(op.operands[0], sharding)
            size = 2
        else:
            kind, attribute = _AXES_ATTRIBUTE[op.name]
            axes = tuple(
                AxisRef(name, int(pre), int(size)) if size else AxisRef(name)
                for name, pre, size in _AXIS.findall(str(op.attributes[attribute]))
            )
            size = prod(sharding.axis_size(ref) for ref in axes)
        local = after
        if kind is CollectiveKind.ALL_GATHER:
            local = after / size
        elif kind is CollectiveKind.REDUCE_SCATTER:
            local = after * size
        return Collective(
            kind=kind,
            axes=in_mesh_order(axes, mesh),
            group_size=size,
            local_bytes=local,
            times=run.times,
            times_known=run.known,
            place=place(op.location),
            element=str(type_.element_type),
            op_name=op_name(op.location),
        )

    def _permuted_axes(self, operand: mlir.Value, after: Sharding) -> tuple[AxisRef, ...]:
        """The axes that do not cut the same dim at the same place before and after."""
        before = self._sharding_of(operand)
        mesh = after.mesh
        where = [_places(sharding) for sharding in (before, after) if sharding is not None]
        names = {name for places in where for name in places}
        return tuple(
            AxisRef(axis.name)
            for axis in mesh.axes
            if axis.name in names and len({places.get(axis.name) for places in where}) != 1
        )

    def _sharding_of(self, value: mlir.Value) -> Sharding | None:
        """What Shardy wrote on the op that makes ``value``; None for block arguments."""
        if isinstance(value.owner, mlir.Block):
            return None
        owner = value.owner.operation
        if "out_sharding" in owner.attributes:
            return from_sdy(str(owner.attributes["out_sharding"]), self.meshes)
        if SDY_SHARDING not in owner.attributes:
            return None
        number = mlir.OpResult(value).result_number
        return per_value_from_sdy(str(owner.attributes[SDY_SHARDING]), self.meshes)[number]


def _places(sharding: Sharding) -> dict[str, tuple[tuple[int, int, AxisRef], ...]]:
    """For each axis where its parts stand."""
    places: dict[str, tuple[tuple[int, int, AxisRef], ...]] = {}
    for dim, refs in enumerate(sharding.dims):
        for order, ref in enumerate(refs):
            places[ref.name] = (*places.get(ref.name, ()), (dim, order, ref))
    return places
