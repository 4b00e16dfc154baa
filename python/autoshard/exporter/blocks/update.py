"""``dynamic_update_slice`` on blocks, along cut dims.

Starts count in the whole operand. They are clamped there, as StableHLO says, before they become
places in a block: clamped in the block they would name other elements.
"""

from __future__ import annotations

from autoshard.exporter.blocks.block_op import Form, shardings
from autoshard.exporter.blocks.emitter import Axes, Emitter, local_shape
from autoshard.importer.windows import updated_dims
from autoshard.ir import mlir
from autoshard.ir.reading import element_of, shape_of
from autoshard.planned.module import PlannedOp


def dynamic_update_slice_form(planned: PlannedOp) -> Form:
    """How ``planned``, an update of an operand that is cut along updated dims, is computed.

    A device reads as many of its rows as the update has, where the update falls on its block,
    takes over those that are updated, and writes them back, all in place.
    """
    op = planned.op
    operand = shardings(planned.operands)[0]
    whole, written = shape_of(op.operands[0]), shape_of(op.operands[1])
    own = local_shape(op.operands[0].type, operand)
    dims = [dim for dim in updated_dims(op) if operand.dims[dim]]

    def compute(emit: Emitter, blocks: list[mlir.Value]) -> list[mlir.Value]:
        value, update, *starts = blocks
        int32 = mlir.IntegerType.get_signless(32)
        places = [
            emit.converted(emit.clamped(start, 0, whole[dim] - written[dim]), int32)
            for dim, start in enumerate(starts)
        ]
        shifts: dict[int, mlir.Value] = {}
        for dim in dims:
            size = min(written[dim], own[dim])
            local = _in_block(emit, places[dim], operand.dims[dim], own[dim])
            places[dim] = emit.clamped(local, 0, own[dim] - size)
            # Row r of the part that is read takes row r + shift of the update.
            shifts[dim] = emit.binary("subtract", places[dim], local)
            first = emit.binary("add", shifts[dim], emit.scalar(size, int32))
            update = emit.padded(update, dim, size, size)
            begin = emit.clamped(first, 0, written[dim] + size)
            update = emit.slice_at(update, dim, begin, size)
        sizes = shape_of(update)
        old = emit.dynamic_slice(value, places, sizes)
        for dim, shift in shifts.items():
            rows = emit.binary("add", emit.iota(sizes, dim, int32), emit.broadcast(shift, sizes))
            update = emit.selected(_is_within(emit, rows, written[dim]), update, old)
        return [emit.update_at(value, update, places)]

    return Form(compute)


def _in_block(emit: Emitter, value: mlir.Value, axes: Axes, own: int) -> mlir.Value:
    """Places in the whole operand as places in this device's block of ``own`` elements."""
    element = element_of(value)
    first = emit.converted(emit.index(axes), element)
    first = emit.binary("multiply", first, emit.scalar(own, element))
    return emit.binary("subtract", value, emit.broadcast(first, shape_of(value)))


def _is_within(emit: Emitter, value: mlir.Value, size: int) -> mlir.Value:
    """Whether each number is in ``[0, size)``."""
    element, shape = element_of(value), shape_of(value)
    low, high = (emit.broadcast(emit.scalar(n, element), shape) for n in (0, size))
    inside = emit.compared("GE", value, low)
    return emit.value("stablehlo.and", inside.type, [inside, emit.compared("LT", value, high)])
