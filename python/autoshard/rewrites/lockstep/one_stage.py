"""A step as one stage runs it: with the rows of its own layers, of each array that has such rows.

before  %h = stablehlo.while(%n = 0, %h = %x, %w = %w) : n < 8                     // %w: 8x4x4
after   %h = stablehlo.while(%n = 0, %h = %x, %w = %w) : n < 4 {autoshard.lockstep = "up"}

The loop then stands for all loops of the stages one behind the other: what it carries goes from
stage to stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import LOCKSTEP, STAGE_ROWS
from autoshard.ir.boundary import Side, attributes_at, main_function
from autoshard.ir.constants import constant
from autoshard.ir.module import operations_of
from autoshard.ir.reading import shape_of
from autoshard.planned.write import populate_rules, remove_rules
from autoshard.rewrites.layer_loops.loops import LayerLoop, layer_loop
from autoshard.rewrites.layer_loops.parts import ArrayParts, ProgramParts, RowParts
from autoshard.rewrites.layer_loops.refusals import why_whole
from autoshard.rewrites.layer_loops.rows import RowOp, Rows, RowValues
from autoshard.rewrites.layer_loops.split import argument_groups, layer_loops_of, ties_of
from autoshard.rewrites.layer_loops.write import PartsWriter, loop_part
from autoshard.rewrites.lockstep.calls import Direction, of_all_stages, stage_number
from autoshard.rewrites.micro_batches.inline import inline


def into_one_stage(module: mlir.Module, stages: int, batch: Sequence[int]) -> ProgramParts:
    """Let ``main`` have the layers of one stage of each loop over layers.

    Args:
        module: A train step as lowered; calls are inlined. Expects its context.
        stages: How many.
        batch: Numbers of the arguments that hold the batch, which are not cut.

    Returns:
        Where the arguments and results of ``main`` are: each of which stages have their own rows
        has its ``stages``.

    Raises:
        PlanError: It has no loop over layers, or one that does not fall into equal stages.
    """
    if all(op.name != "stablehlo.while" for op in operations_of(module.operation)):
        raise _no_layers((), stages)  # calls have none either
    inline(module)
    main = main_function(module)
    block = main.regions[0].blocks[0]
    ops = [op.operation for op in block.operations][:-1]
    loops = layer_loops_of(ops)
    if not loops:
        raise _no_layers(ops, stages)
    frozen = {block.arguments[number] for number in batch}
    populate_rules(module)
    try:
        values = RowValues(ops, loops, frozen, ties_of(main))
    finally:
        remove_rules(module)
    cut: dict[int, RowParts] = {}
    for group in argument_groups(values, block):
        first = values.loops[values.loops_of(group)[0]]
        if first.trips % stages:
            raise _unequal(first, stages)
        cut[group] = RowParts(tuple(range(stages)), stages)
    if not cut:
        raise _no_layers(ops, stages)
    parts = _StageWriter(module, main, values, cut).write()
    _say_rows(main_function(module), "arg_attrs", parts.arguments)
    _say_rows(main_function(module), "res_attrs", parts.results)
    return parts


def _say_rows(main: mlir.Operation, side: Side, arrays: Sequence[ArrayParts]) -> None:
    """Write on arguments, or results, which dim has rows of each stage."""
    entries = attributes_at(main, side)
    for entry, parts in zip(entries, arrays, strict=True):
        if parts.stages:
            entry[STAGE_ROWS] = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(32), parts.dim)
    main.attributes[side] = mlir.ArrayAttr.get([mlir.DictAttr.get(entry) for entry in entries])


@dataclass
class _StageWriter(PartsWriter):
    """Writes the one part of rows that the stage has on which the program runs."""

    own: set[mlir.Value] = field(default_factory=set["mlir.Value"])
    """Values of which ``found`` has this stage's rows."""

    def written(self, group: int) -> int:
        """One part, that of the stage."""
        return 1

    def become(self, value: mlir.Value, parts: list[mlir.Value]) -> None:
        """See ``PartsWriter.become``."""
        super().become(value, parts)
        if self.rows(value) is not None:
            self.own.add(value)

    def whole(self, value: mlir.Value, reader: mlir.Operation) -> mlir.Value:
        """A value that is the same on all stages.

        Raises:
            PlanError: Each stage has its own rows of it.
        """
        if value in self.own:
            raise PlanError(
                f"execution='lockstep': {reader.name} reads all rows of an array of shape"
                f" {shape_of(value)}, of which each stage has those of its own layers. Let each"
                " layer read its own row, as jax.lax.scan over it does, or take"
                " execution='stages', which sends all rows to one stage.",
                place(reader.location),
            )
        return super().whole(value, reader)

    def parts(self, value: mlir.Value, rows: Rows) -> list[mlir.Value]:
        """This stage's rows of a value."""
        if value in self.own and self.rows(value) == rows:
            return self.found[value]
        return super().parts(value, rows)

    def slice(self, whole: mlir.Value, type_: mlir.Type, dim: int, part: int) -> mlir.Value:
        """The rows of the stage that runs the program."""
        why, size = self.main.location, mlir.RankedTensorType(type_).shape[dim]
        number = stage_number(self.where, why)
        first = _times(number, size, self.where, why)
        zero = constant(number.type, "0", self.where, why).results[0]
        rank = mlir.RankedTensorType(type_).rank
        return mlir.Operation.create(
            "stablehlo.dynamic_slice",
            results=[type_],
            operands=[whole, *(first if at == dim else zero for at in range(rank))],
            attributes={
                "slice_sizes": mlir.DenseI64ArrayAttr.get(list(mlir.RankedTensorType(type_).shape))
            },
            loc=why,
            ip=self.where,
        ).results[0]

    def combined(self, parts: Sequence[mlir.Value], how: RowOp, op: mlir.Operation) -> mlir.Value:
        """What all stages reduce their rows to."""
        return of_all_stages(parts[0], str(how.combines), self.where, op.location)

    def write_loop(self, loop: LayerLoop, group: int) -> None:
        """The loop over the layers of one stage."""
        op, count = loop.op, self.cut[group].count
        stacks, carried = self.taken(loop, group)
        given = [stacks[slot][0] if slot in stacks else value for slot, value in enumerate(carried)]
        direction = Direction.DOWN if loop.is_downwards else Direction.UP
        trips = loop.trips // count

        def first(type_: mlir.Type, where: mlir.InsertionPoint) -> mlir.Value:
            number = stage_number(where, op.location)
            if loop.is_downwards:
                last = constant(number.type, str(count - 1), where, op.location).results[0]
                number = _binary("subtract", last, number, where, op.location)
            trip = _times(number, trips, where, op.location)
            if trip.type == type_:
                return trip
            return mlir.Operation.create(
                "stablehlo.convert", results=[type_], operands=[trip], loc=op.location, ip=where
            ).results[0]

        made = loop_part(loop, given, count, self.where, first)
        made.attributes[LOCKSTEP] = mlir.StringAttr.get(direction.value)
        made.attributes[STAGE_ROWS] = mlir.DenseI64ArrayAttr.get(sorted(stacks))
        for slot, result in enumerate(op.results):
            if slot in stacks:
                self.become(result, [made.results[slot]])
            elif slot == loop.counter and len(list(result.uses)):
                last = constant(result.type, str(loop.trips), self.where, op.location)
                self.found[result] = [last.results[0]]
            else:
                self.found[result] = [made.results[slot]]


def _binary(
    name: str,
    left: mlir.Value,
    right: mlir.Value,
    where: mlir.InsertionPoint,
    why: mlir.Location,
) -> mlir.Value:
    return mlir.Operation.create(
        f"stablehlo.{name}", results=[left.type], operands=[left, right], loc=why, ip=where
    ).results[0]


def _times(
    number: mlir.Value, size: int, where: mlir.InsertionPoint, why: mlir.Location
) -> mlir.Value:
    factor = constant(number.type, str(size), where, why).results[0]
    return _binary("multiply", number, factor, where, why)


def _unequal(loop: LayerLoop, stages: int) -> PlanError:
    fitting = [count for count in range(2, loop.trips + 1) if loop.trips % count == 0]
    return PlanError(
        f"execution='lockstep' with stages={stages}: all stages run one program, and a loop over"
        f" {loop.trips} layers does not fall into {stages} equal parts. Give"
        f" stages={' or '.join(map(str, fitting))}, or another number of layers.",
        place(loop.op.location),
    )


def _no_layers(ops: Sequence[mlir.Operation], stages: int) -> PlanError:
    loops = [op for op in ops if op.name == "stablehlo.while"]
    if not loops:
        why, where = "the step has no loop over layers", None
    else:
        found = layer_loop(loops[0])
        clause = f": {found}" if isinstance(found, str) else why_whole(loops[0])
        why, where = f"no loop of the step can be cut by its trips{clause}", loops[0].location
    return PlanError(
        f"execution='lockstep' with stages={stages}: all stages run one program, each with its part"
        f" of a loop over layers, and {why}. Write layers as a jax.lax.scan over stacked weights,"
        " or take execution='stages'.",
        None if where is None else place(where),
    )
