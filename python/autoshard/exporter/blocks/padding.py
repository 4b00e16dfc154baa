"""``pad`` on blocks, along cut dims."""

from __future__ import annotations

from autoshard.exporter.blocks.block_op import Form, same_op, shardings
from autoshard.exporter.blocks.emitter import Emitter, int_array, local_type
from autoshard.exporter.blocks.windows import read_window, spread
from autoshard.importer.windows import pad_window, padded_dims
from autoshard.ir import mlir
from autoshard.ir.reading import ints
from autoshard.planned.module import PlannedOp

_PADS = ("edge_padding_low", "edge_padding_high", "interior_padding")


def pad_form(planned: PlannedOp) -> Form:
    """How ``planned``, a ``pad`` with equal blocks, is computed on them."""
    op = planned.op
    operand, result = shardings(planned.operands)[0], shardings(planned.computed)[0]
    block = local_type(op.results[0].type, result)
    low, high, interior = (ints(op, name, []) for name in _PADS)
    windows = {
        dim: pad_window(op, dim, operand.num_shards(dim))
        for dim in padded_dims(op)
        if operand.dims[dim]
    }

    def compute(emit: Emitter, blocks: list[mlir.Value]) -> list[mlir.Value]:
        value, fill = blocks
        for dim, window in windows.items():
            value = read_window(emit, value, dim, operand.dims[dim], window, fill)
            value = spread(emit, value, dim, operand.dims[dim], window, fill)
        rest = [
            [0 if dim in windows else n for dim, n in enumerate(p)] for p in (low, high, interior)
        ]
        if not any(map(any, rest)):
            return [value]
        changed = {name: int_array(numbers) for name, numbers in zip(_PADS, rest, strict=True)}
        return same_op(op, emit, [value, fill], [block], changed)

    return Form(compute)
