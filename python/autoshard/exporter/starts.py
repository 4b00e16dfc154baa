"""Starts and indices that XLA would add up without a clamp between them.

``stablehlo.dynamic_slice`` clamps its starts to where the whole slice is inside, and so does a
``gather``. XLA writes a gather or scatter with one index by dynamic slices, and its simplifier
makes one slice of a slice of a slice: it adds up their starts and drops the clamp of the inner one.
What a partitioner cuts out of a whole value is such a slice. So near the end of an operand a result
that is cut along the sliced dim would be of other elements, and a scatter would write what it read
elsewhere. Where many indices are cut until a device has one, slices are made that one device would
not make: there a slice of the program's own is joined with them.

before  dynamic_slice(x, start), sizes = [64]
after   dynamic_slice(x, clamp(0, start, 936)), sizes = [64]    of 1,000 elements

A scatter drops what lies outside, which a clamp cannot say: there a barrier keeps the slices apart.
"""

from __future__ import annotations

from math import prod

from autoshard.exporter.blocks import Emitter
from autoshard.exporter.blocks.emitter import local_shape
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
            dims = list(numbers.start_index_map)
            if _indices_of_a_device(planned, 1) == len(dims):
                _clamp_indices(op, dims, numbers.index_vector_dim, emit)
        case "stablehlo.scatter":
            numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
            dims, indices = numbers.scattered_dims_to_operand_dims, len(op.results)
            if _indices_of_a_device(planned, indices) == len(dims):
                is_cut_to_one = prod(shape_of(op.operands[indices])) != len(dims)
                operand = planned.operands[0]
                if is_cut_to_one or (operand is not None and any(operand.sharding.dims)):
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


def _indices_of_a_device(planned: PlannedOp, number: int) -> int:
    """Elements of the operand that holds indices, on one device."""
    shape, placement = shape_of(planned.op.operands[number]), planned.operands[number]
    if placement is None:
        return prod(shape)
    return prod(local_shape(planned.op.operands[number].type, placement.sharding))


def _clamp_indices(op: mlir.Operation, dims: list[int], vector_dim: int, emit: Emitter) -> None:
    whole, sizes = shape_of(op.operands[0]), ints(op, "slice_sizes", [])
    indices = op.operands[1]
    shape = shape_of(indices)
    is_one = prod(shape) == len(dims)
    if not any((sizes[dim] > 1 or not is_one) and sizes[dim] < whole[dim] for dim in dims):
        return
    limits = [whole[dim] - sizes[dim] for dim in dims]
    most = emit.numbers(limits, mlir.RankedTensorType(indices.type).element_type)
    if vector_dim == len(shape):  # the indices are numbers, not vectors
        most = emit.broadcast(emit.reshaped(most, ()), shape, [])
    else:
        most = emit.broadcast(most, shape, [vector_dim])
    zeros = emit.zeros(indices.type)
    op.operands[1] = emit.value("stablehlo.clamp", indices.type, [zeros, indices, most])


def _hold_operands(op: mlir.Operation, emit: Emitter) -> None:
    for number in range(len(op.results)):
        value = op.operands[number]
        held = emit.value("stablehlo.optimization_barrier", value.type, [value])
        op.operands[number] = held


def _is_constant(value: mlir.Value) -> bool:
    owner = value.owner
    return not isinstance(owner, mlir.Block) and owner.name == "stablehlo.constant"
