"""Starts and indices that XLA would add up without a clamp between them.

``stablehlo.dynamic_slice`` clamps its starts to where the whole slice is inside, and so does a
``gather``. XLA writes a gather or scatter with one index by dynamic slices, and its simplifier
makes one slice of a slice of a slice: it adds up their starts and drops the clamp of the inner one.
What a partitioner cuts out of a whole value is such a slice. So near the end of an operand a result
that is cut along the sliced dim would be of other elements, and a scatter would write what it read
elsewhere.

before  dynamic_slice(x, start), sizes = [64]
after   dynamic_slice(x, clamp(0, start, 936)), sizes = [64]    of 1,000 elements

A scatter drops what lies outside, which a clamp cannot say: there a barrier keeps the slices apart.
"""

from __future__ import annotations

from math import prod

from autoshard.exporter.blocks import Emitter
from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import ints, shape_of
from autoshard.planned.module import PlannedOp


def keep_slices_apart(planned: PlannedOp, emit: Emitter) -> None:
    """Change the operands of an op such that no slice of its operand or result joins with it."""
    op = planned.op
    match op.name:
        case "stablehlo.dynamic_slice":
            _clamp_starts(op, emit)
        case "stablehlo.gather":
            numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
            if prod(shape_of(op.operands[1])) == len(numbers.start_index_map):
                _clamp_index(op, list(numbers.start_index_map), emit)
        case "stablehlo.scatter":
            numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
            dims = numbers.scattered_dims_to_operand_dims
            is_one_index = prod(shape_of(op.operands[len(op.results)])) == len(dims)
            operand = planned.operands[0]
            if is_one_index and operand is not None and any(operand.sharding.dims):
                _hold_operands(op, emit)
        case _:
            pass


def _clamp_starts(op: mlir.Operation, emit: Emitter) -> None:
    """Along dims of which several elements are taken: others cannot be cut."""
    whole, sizes = shape_of(op.operands[0]), ints(op, "slice_sizes", [])
    for dim, (length, size) in enumerate(zip(whole, sizes, strict=True)):
        start = op.operands[dim + 1]
        if 1 < size < length and not _is_constant(start):
            op.operands[dim + 1] = emit.clamped(start, 0, length - size)


def _clamp_index(op: mlir.Operation, dims: list[int], emit: Emitter) -> None:
    whole, sizes = shape_of(op.operands[0]), ints(op, "slice_sizes", [])
    if not any(1 < sizes[dim] < whole[dim] for dim in dims):
        return
    index = op.operands[1]
    limits = [whole[dim] - sizes[dim] for dim in dims]
    element = mlir.RankedTensorType(index.type).element_type
    zeros = emit.zeros(index.type)
    most = emit.reshaped(emit.numbers(limits, element), shape_of(index))
    op.operands[1] = emit.value("stablehlo.clamp", index.type, [zeros, index, most])


def _hold_operands(op: mlir.Operation, emit: Emitter) -> None:
    for number in range(len(op.results)):
        value = op.operands[number]
        held = emit.value("stablehlo.optimization_barrier", value.type, [value])
        op.operands[number] = held


def _is_constant(value: mlir.Value) -> bool:
    owner = value.owner
    return not isinstance(owner, mlir.Block) and owner.name == "stablehlo.constant"
