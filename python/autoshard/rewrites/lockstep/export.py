"""A planned program of one stage becomes that of all stages.

before  sdy.mesh @mesh = <["data"=2]>
        func @main(%w: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"data"}]>})
          %h = stablehlo.custom_call @autoshard.stage_permute(%x) {backend_config = "up"}
after   sdy.mesh @mesh = <["stage"=2, "data"=2]>
        func @main(%w: tensor<8x8x8xf32>
                       {sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {}, {"data"}]>})
          sdy.manual_computation(%w) manual_axes={"stage"} (%w: tensor<4x8x8xf32>)
            %h = stablehlo.collective_permute %x, source_target_pairs = [[0, 2], [1, 3]]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from autoshard.exporter.blocks import free_channels
from autoshard.ir import mlir, stablehlo
from autoshard.ir.attributes import (
    NUM_PARTITIONS,
    SDY_SHARDING,
    STAGE_EXCHANGE,
    STAGE_GATHER,
    STAGE_NUMBER,
    STAGE_PERMUTE,
    STAGE_ROWS,
    STAGE_SUM,
    custom_call_target,
)
from autoshard.ir.boundary import Side, attributes_at, entries_at, main_function
from autoshard.ir.module import operations_of
from autoshard.ir.reading import element_of
from autoshard.rewrites.lockstep.calls import Direction
from autoshard.sharding import Axis, Mesh, Sharding, stage_axis
from autoshard.sharding.sdy_text import from_sdy, mesh_from_sdy, mesh_to_sdy, to_sdy_per_value
from autoshard.sharding.sdy_text import to_sdy as sdy_text
from autoshard.sharding.sharding import AxisRef

Rows = tuple[int | None, ...]
"""For each argument, or result, the dim of which stages have their own rows."""


def with_stages(mesh: Mesh, stages: int) -> Mesh:
    """The mesh of one stage for all of them, along a first axis."""
    ids = mesh.device_ids and tuple(
        number + stage * mesh.size for stage in range(stages) for number in mesh.device_ids
    )
    return Mesh((Axis(stage_axis(mesh.axis_names), stages), *mesh.axes), ids)


def over_stages(sharding: Sharding, mesh: Mesh, dim: int | None) -> Sharding:
    """The sharding over all stages of what is cut so inside of each.

    Args:
        sharding: Over the mesh of a stage.
        mesh: That of all.
        dim: Of which each stage has its own rows; None: all have the same.
    """
    dims = list(sharding.dims)
    if dim is not None:
        dims[dim] = (AxisRef(mesh.axis_names[0]), *dims[dim])
    return replace(sharding, mesh=mesh, dims=tuple(dims))


def rows_at(main: mlir.Operation, side: Side) -> Rows:
    """Which arguments or results of ``main`` have rows of each stage."""
    return tuple(
        mlir.IntegerAttr(entry[STAGE_ROWS]).value if STAGE_ROWS in entry else None
        for entry in entries_at(main, side)
    )


def export_lockstep(module: mlir.Module, stages: int, arguments: Rows, results: Rows) -> None:
    """Write the program of all stages.

    Args:
        module: That of one stage, pinned for Shardy. Expects its context.
        stages: How many.
        arguments: Those of ``main`` with rows of each stage.
        results: Likewise.
    """
    _Export(module, stages).write(arguments, results)


class _Export:
    def __init__(self, module: mlir.Module, stages: int) -> None:
        self.module = module
        self.stages = stages
        attributes = module.operation.attributes
        self.devices = mlir.IntegerAttr(attributes[NUM_PARTITIONS]).value
        """Devices of a stage."""
        self.channels: Iterator[int] = free_channels(module)
        self.meshes: dict[str, Mesh] = {}
        self.mesh_name = ""

    def write(self, arguments: Rows, results: Rows) -> None:
        self._number_devices()
        self._write_meshes()
        self._write_main(arguments, results)
        for op in operations_of(self.module.operation):
            target = custom_call_target(op)
            if target == STAGE_NUMBER:
                op.results[0].replace_all_uses_with(self.number)
                op.erase()
            elif target in _COLLECTIVES:
                self._write_collective(op, str(target))

    def _number_devices(self) -> None:
        """Let collectives inside of stages say the devices of all of them."""
        stages, size = self.stages, self.devices
        for op in operations_of(self.module.operation):
            for name in ("replica_groups", "source_target_pairs"):
                if name in op.attributes:
                    groups = mlir.DenseIntElementsAttr(op.attributes[name])
                    rows, columns = mlir.RankedTensorType(groups.type).shape
                    numbers = [int(number) for number in groups]
                    table = [numbers[row * columns : (row + 1) * columns] for row in range(rows)]
                    op.attributes[name] = _table(
                        [
                            [number + stage * size if number >= 0 else number for number in row]
                            for stage in range(stages)
                            for row in table
                        ]
                    )
        integer = mlir.IntegerType.get_signless(32)
        self.module.operation.attributes[NUM_PARTITIONS] = mlir.IntegerAttr.get(
            integer, stages * size
        )

    def _write_meshes(self) -> None:
        """Give each mesh of the devices of a stage the axis of the stages."""
        for op in self.module.body.operations:
            if op.operation.name != "sdy.mesh":
                continue
            mesh = mesh_from_sdy(str(op.operation.attributes["mesh"]))
            if mesh.size != self.devices:
                continue
            whole = with_stages(mesh, self.stages)
            name = mlir.StringAttr(op.operation.attributes["sym_name"]).value
            op.operation.attributes["mesh"] = mlir.Attribute.parse(mesh_to_sdy(whole))
            self.meshes[name] = whole
            self.mesh_name = self.mesh_name or name

    def _write_main(self, arguments: Rows, results: Rows) -> None:
        """Put the body of ``main`` into a computation that is manual over the stages."""
        main = main_function(self.module)
        block = main.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1].operation
        why = main.location
        types = [
            self._of_all(value.type, dim)
            for value, dim in zip(block.arguments, arguments, strict=True)
        ]
        out_types = [
            self._of_all(value.type, dim) for value, dim in zip(end.operands, results, strict=True)
        ]
        in_shardings = self._boundary(main, "arg_attrs", types, arguments)
        out_shardings = self._boundary(main, "res_attrs", out_types, results)
        number_type = mlir.RankedTensorType.get([self.stages], mlir.IntegerType.get_signless(32))
        attributes = {
            main.attributes[n].name: main.attributes[n].attr for n in range(len(main.attributes))
        }
        signature = mlir.FunctionType.get(types, out_types)
        attributes["function_type"] = mlir.TypeAttr.get(signature)
        function = mlir.Operation.create(
            "func.func", attributes=attributes, regions=1, loc=why, ip=mlir.InsertionPoint(main)
        )
        locations = [argument.location for argument in block.arguments]
        outside = function.regions[0].blocks.append(*types, arg_locs=locations)
        ip = mlir.InsertionPoint(outside)
        dim = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), 0)
        numbers = mlir.Operation.create(
            "stablehlo.iota",
            results=[number_type],
            attributes={"iota_dimension": dim},
            loc=why,
            ip=ip,
        ).results[0]
        whole = self.meshes[self.mesh_name]
        axis = whole.axis_names[0]
        of_numbers = Sharding(whole, ((AxisRef(axis),),))
        computation = mlir.Operation.create(
            "sdy.manual_computation",
            results=out_types,
            operands=[numbers, *outside.arguments],
            attributes={
                "in_shardings": self._per_value([of_numbers, *in_shardings]),
                "out_shardings": self._per_value(out_shardings),
                "manual_axes": mlir.Attribute.parse(f'#sdy<manual_axes{{"{axis}"}}>'),
            },
            regions=1,
            loc=why,
            ip=ip,
        )
        mlir.Operation.create("func.return", operands=computation.results, loc=end.location, ip=ip)
        one = mlir.RankedTensorType.get([1], mlir.IntegerType.get_signless(32))
        inner = [one, *(argument.type for argument in block.arguments)]
        body = computation.regions[0].blocks.append(*inner, arg_locs=[why, *locations])
        inside = mlir.InsertionPoint(body)
        self.number = mlir.Operation.create(
            "stablehlo.reshape",
            results=[mlir.RankedTensorType.get([], mlir.IntegerType.get_signless(32))],
            operands=[body.arguments[0]],
            loc=why,
            ip=inside,
        ).results[0]
        for old, new in zip(block.arguments, list(body.arguments)[1:], strict=True):
            old.replace_all_uses_with(new)
        for op in list(block.operations):
            if op.operation != end:
                body.append(op)
        mlir.Operation.create("sdy.return", operands=list(end.operands), loc=why, ip=inside)
        main.erase()

    def _of_all(self, type_: mlir.Type, dim: int | None) -> mlir.Type:
        """The type of the array of which stages have rows."""
        if dim is None:
            return type_
        tensor = mlir.RankedTensorType(type_)
        shape = list(tensor.shape)
        shape[dim] *= self.stages
        return mlir.RankedTensorType.get(shape, tensor.element_type)

    def _boundary(
        self, main: mlir.Operation, side: Side, types: Sequence[mlir.Type], rows: Rows
    ) -> list[Sharding]:
        """Shardings over all stages, which are written on ``main``, too."""
        entries = attributes_at(main, side)
        found: list[Sharding] = []
        whole = self.meshes[self.mesh_name]
        for entry, type_, dim in zip(entries, types, rows, strict=True):
            if SDY_SHARDING in entry:
                read = from_sdy(str(entry[SDY_SHARDING]), self.meshes)
            else:
                read = Sharding.fully_replicated(whole, mlir.RankedTensorType(type_).rank)
            sharding = over_stages(read, whole, dim)
            entry[SDY_SHARDING] = mlir.Attribute.parse(sdy_text(sharding, self.mesh_name))
            found.append(sharding)
        main.attributes[side] = mlir.ArrayAttr.get([mlir.DictAttr.get(entry) for entry in entries])
        return found

    def _per_value(self, shardings: Sequence[Sharding]) -> mlir.Attribute:
        return mlir.Attribute.parse(to_sdy_per_value(shardings, self.mesh_name))

    def _write_collective(self, op: mlir.Operation, target: str) -> None:
        """A collective between the devices that have the same place in their stages."""
        stages, size = self.stages, self.devices
        groups = [[stage * size + at for stage in range(stages)] for at in range(size)]
        channel = {"channel_handle": stablehlo.ChannelHandle.get(next(self.channels), 1)}
        grouped = {"replica_groups": _table(groups), **channel}
        zero = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), 0)
        count = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), stages)
        here = {"use_global_device_ids": mlir.UnitAttr.get()}
        attributes: Mapping[str, mlir.Attribute]
        if target == STAGE_PERMUTE:
            pairs = [pair for group in groups for pair in self._hops(op, group)]
            attributes = {"source_target_pairs": _table(pairs), **channel}
        elif target == STAGE_GATHER:
            attributes = {"all_gather_dim": zero, **grouped, **here}
        elif target == STAGE_EXCHANGE:
            attributes = {
                "split_dimension": zero,
                "concat_dimension": zero,
                "split_count": count,
                **grouped,
            }
        else:
            attributes = {**grouped, **here}
        made = mlir.Operation.create(
            _COLLECTIVES[target],
            results=[op.results[0].type],
            operands=[op.operands[0]],
            attributes=dict(attributes),
            regions=1 if target == STAGE_SUM else 0,
            loc=op.location,
            ip=mlir.InsertionPoint(op),
        )
        if target == STAGE_SUM:
            element = mlir.RankedTensorType.get([], element_of(op.results[0]))
            body = made.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
            ip = mlir.InsertionPoint(body)
            combined = mlir.Operation.create(
                mlir.StringAttr(op.attributes["backend_config"]).value,
                results=[element],
                operands=list(body.arguments),
                loc=op.location,
                ip=ip,
            )
            mlir.Operation.create(
                "stablehlo.return", operands=combined.results, loc=op.location, ip=ip
            )
        op.results[0].replace_all_uses_with(made.results[0])
        op.erase()

    def _hops(self, op: mlir.Operation, group: Sequence[int]) -> list[list[int]]:
        """From each stage to the next one."""
        how = Direction(mlir.StringAttr(op.attributes["backend_config"]).value)
        order = list(group) if how is Direction.UP else list(group)[::-1]
        return [list(pair) for pair in pairwise(order)]


_COLLECTIVES = {
    STAGE_PERMUTE: "stablehlo.collective_permute",
    STAGE_SUM: "stablehlo.all_reduce",
    STAGE_GATHER: "stablehlo.all_gather",
    STAGE_EXCHANGE: "stablehlo.all_to_all",
}


def _table(rows: Sequence[Sequence[int]]) -> mlir.Attribute:
    columns = len(rows[0])
    listed = [list(row) for row in rows]
    return mlir.Attribute.parse(f"dense<{listed}> : tensor<{len(rows)}x{columns}xi64>")
