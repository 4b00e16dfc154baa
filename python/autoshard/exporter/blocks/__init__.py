"""Ops that each device computes on its own block.

Most ops are handed to the partitioner whole, between constraints. What it does not split, or does
not split right, is written as ops on one device's blocks instead:

- ``stablehlo.fft`` and ``chlo.top_k``, whose operand GPUs and CPUs, or CPUs, gather first;
- convolutions in groups, and convolutions and gradients of max pools whose image is cut: each
  device fetches the edges that it needs from its neighbours (``windows``);
- what stages in lockstep gather and exchange, which the partitioner makes whole first;
- kernels: each device runs its part of the grid (``kernel``), or the user's function on its blocks
  (``kernel_call``);
- ``reduce_window`` along a cut dim whose elements stand apart or are cropped;
- ``pad`` with interior padding along a cut dim;
- ``dynamic_update_slice`` along a cut dim, with starts that are clamped before they become places
  in a block (``update``).

``docs/design/partitioner.md`` has what XLA's partitioner was seen to do with each.

Sums over an axis are parts of the result in a leading dim that the axis cuts, added outside, where
every partitioner makes an all-reduce of it.
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.errors import PlanError
from autoshard.exporter.blocks.block_op import BlockOp as BlockOp
from autoshard.exporter.blocks.block_op import (
    Form,
    has_equal_blocks,
    on_blocks,
    reads_only_inside,
    result_sharding,
    same_op,
    shardings,
)
from autoshard.exporter.blocks.block_op import added_parts as added_parts
from autoshard.exporter.blocks.convolution import convolution_form
from autoshard.exporter.blocks.emitter import Emitter as Emitter
from autoshard.exporter.blocks.emitter import Enter as Enter
from autoshard.exporter.blocks.emitter import free_channels as free_channels
from autoshard.exporter.blocks.emitter import local_type
from autoshard.exporter.blocks.kernel import is_kernel, kernel_form
from autoshard.exporter.blocks.kernel_call import calls_kernel, kernel_call_form
from autoshard.exporter.blocks.padding import pad_form
from autoshard.exporter.blocks.reduce_window import reduce_window_form
from autoshard.exporter.blocks.select_and_scatter import select_and_scatter_form
from autoshard.exporter.blocks.update import dynamic_update_slice_form
from autoshard.importer.rules import is_grouped_convolution
from autoshard.importer.windows import block_dims
from autoshard.ir import mlir, place
from autoshard.ir.attributes import STAGE_EXCHANGE, STAGE_GATHER, custom_call_target
from autoshard.ir.reading import shape_of
from autoshard.planned.module import PlannedOp


def block_op(planned: PlannedOp) -> BlockOp | None:
    """How each device computes its block of ``planned``; None where the partitioner does that."""
    found = _FORMS.get(planned.op.name)
    if found is None or None in planned.operands:  # no strategy
        return None
    given = (*shardings(planned.operands), *shardings(planned.computed))
    if not any(axes for sharding in given for axes in sharding.dims):
        return None
    is_wanted, form = found
    if not is_wanted(planned):
        return None
    if has_equal_blocks(planned) and reads_only_inside(planned.op):
        return on_blocks(planned, form(planned))
    if _is_slow_at_worst(planned):
        return None
    raise PlanError(
        f"{planned.op.name}: a dim of it is cut that the partitioner does not cut right, and the "
        f"shape {shape_of(planned.op.operands[0])} does not fall into equal blocks of "
        f"{given[0]} -> {given[-1]}. Plan the module again, or leave that dim whole.",
        place(planned.op.location),
    )


def _same_form(planned: PlannedOp) -> Form:
    """The op itself computes the block of a result from the blocks of the operands."""
    op, result = planned.op, result_sharding(planned, ())
    types = [local_type(value.type, result) for value in op.results]

    def compute(emit: Emitter, blocks: list[mlir.Value]) -> list[mlir.Value]:
        return same_op(op, emit, blocks, types)

    return Form(compute)


def _is_hard_call(planned: PlannedOp) -> bool:
    return is_kernel(planned) or _moves_between_stages(planned)


def _moves_between_stages(planned: PlannedOp) -> bool:
    return custom_call_target(planned.op) in (STAGE_GATHER, STAGE_EXCHANGE)


def _call_form(planned: PlannedOp) -> Form:
    return _same_form(planned) if _moves_between_stages(planned) else kernel_form(planned)


def _is_slow_at_worst(planned: PlannedOp) -> bool:
    """Whether the partitioner, where it is left to it, makes operands whole but nothing wrong."""
    match planned.op.name:
        case "stablehlo.fft" | "chlo.top_k":
            return True
        case "stablehlo.convolution":
            return not _cuts_block_dims(planned)
        case _:
            return False


def _always(planned: PlannedOp) -> bool:
    return True


def _is_hard_convolution(planned: PlannedOp) -> bool:
    return is_grouped_convolution(planned.op) or _cuts_block_dims(planned)


def _cuts_block_dims(planned: PlannedOp) -> bool:
    """Whether block dims of the first operand or result are cut: one whole pixel may make many."""
    first, made = shardings(planned.operands)[0], shardings(planned.computed)[0]
    dims = block_dims(planned.op)
    return any(first.dims[dim] or made.dims[to] for dim, to in dims.items())


_FORMS: dict[str, tuple[Callable[[PlannedOp], bool], Callable[[PlannedOp], Form]]] = {
    "stablehlo.fft": (_always, _same_form),
    "chlo.top_k": (_always, _same_form),
    "stablehlo.custom_call": (_is_hard_call, _call_form),
    "stablehlo.composite": (calls_kernel, kernel_call_form),
    "stablehlo.convolution": (_is_hard_convolution, convolution_form),
    "stablehlo.select_and_scatter": (_cuts_block_dims, select_and_scatter_form),
    "stablehlo.reduce_window": (_cuts_block_dims, reduce_window_form),
    "stablehlo.pad": (_cuts_block_dims, pad_form),
    "stablehlo.dynamic_update_slice": (_cuts_block_dims, dynamic_update_slice_form),
}
"""Where the partitioner does not do an op, and how it is done then, by the name of the op."""
