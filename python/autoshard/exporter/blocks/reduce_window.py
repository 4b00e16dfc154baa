"""``reduce_window`` on blocks, along cut dims that are dilated or cropped."""

from __future__ import annotations

from autoshard.exporter.blocks.block_op import Form, result_sharding, same_op, shardings
from autoshard.exporter.blocks.emitter import Emitter, int_array, local_type, pair_array
from autoshard.exporter.blocks.windows import read_window, spread
from autoshard.importer.windows import reduce_window_window, windowed_dims
from autoshard.ir import mlir
from autoshard.ir.reading import ints, pairs_of, shape_of
from autoshard.planned.module import PlannedOp


def reduce_window_form(planned: PlannedOp) -> Form:
    """How ``planned``, a ``reduce_window`` with equal blocks, is computed on them.

    Padding and holes are written out as initial values, which is what the op fills them with.
    """
    op = planned.op
    images = shardings(planned.operands)[0]
    result = result_sharding(planned, ())
    windows = {
        dim: reduce_window_window(op, dim, images.num_shards(dim))
        for dim in windowed_dims(op)
        if images.dims[dim]
    }
    rank = len(shape_of(op.operands[0]))
    padding, dilations = pairs_of(op, "padding", rank), ints(op, "base_dilations", [1] * rank)
    for dim in windows:
        padding[dim], dilations[dim] = (0, 0), 1
    changed = {"padding": pair_array(padding), "base_dilations": int_array(dilations)}
    types = [local_type(value.type, result) for value in op.results]

    def compute(emit: Emitter, blocks: list[mlir.Value]) -> list[mlir.Value]:
        values, fills = blocks[: len(types)], blocks[len(types) :]
        for dim, window in windows.items():
            axes = images.dims[dim]
            for number, fill in enumerate(fills):
                read = read_window(emit, values[number], dim, axes, window, fill)
                values[number] = spread(emit, read, dim, axes, window, fill)
        return same_op(op, emit, [*values, *fills], types, changed)

    return Form(compute)
