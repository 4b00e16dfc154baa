"""Ops that each device computes on its own block.

Most ops are handed to the partitioner whole, between constraints. What it does not split well is
written as the op on one device's blocks instead:

- ``stablehlo.fft`` and ``chlo.top_k``, whose operand GPUs and CPUs, or CPUs, gather first;
- convolutions in groups, for which XLA gathers whole images, or aborts.

Dims are cut only where the rule of the op lets the block of a result follow from the blocks of the
operands, so the same op computes it. Sums over an axis are parts of the result in a leading dim
that the axis cuts, added outside, where every partitioner makes an all-reduce of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from autoshard.exporter.planned import OWN_PREFIX, SHARDING, Placement, PlannedOp
from autoshard.importer.rules import is_grouped_convolution
from autoshard.ir import mlir, stablehlo
from autoshard.ir.types import zero_text
from autoshard.sharding.sharding import AxisRef, Sharding

_WHOLE_IN_XLA = frozenset({"stablehlo.fft", "chlo.top_k"})


@dataclass(frozen=True, slots=True)
class BlockOp:
    """A planned op as one device computes it."""

    op: mlir.Operation
    operands: tuple[Sharding, ...]
    operand_blocks: tuple[mlir.Type, ...]
    blocks: tuple[mlir.Type, ...]
    """Of the results, on one device."""
    types: tuple[mlir.Type, ...]
    """Of the results together; in front the parts of sums."""
    results: tuple[Sharding, ...]
    """How ``types`` are cut."""
    is_partial: bool
    """The blocks are parts of sums."""

    def write(self, blocks: Sequence[mlir.Value], where: mlir.InsertionPoint) -> list[mlir.Value]:
        """The op on one device's ``blocks`` of the operands."""
        op = self.op
        attributes = {
            entry.name: entry.attr
            for entry in (op.attributes[number] for number in range(len(op.attributes)))
            if not entry.name.startswith(OWN_PREFIX) and entry.name != SHARDING
        }
        if op.name == "stablehlo.convolution":
            attributes |= _groups(op, blocks, self.blocks[0])
        made = mlir.Operation.create(
            op.name, self.blocks, list(blocks), attributes, loc=op.location, ip=where
        )
        if not self.is_partial:
            return list(made.results)
        return [_as_part(value, where, op.location) for value in made.results]


def block_op(planned: PlannedOp) -> BlockOp | None:
    """How each device computes its block of ``planned``; None where the partitioner does that."""
    op = planned.op
    if op.name not in _WHOLE_IN_XLA and not is_grouped_convolution(op):
        return None
    if None in planned.operands:  # no strategy
        return None
    operands, computed = _shardings(planned.operands), _shardings(planned.computed)
    if not any(axes for sharding in (*operands, *computed) for axes in sharding.dims):
        return None
    summed = _summed(op, operands)
    results = [_without(summed, sharding) for sharding in computed]
    if not all(map(_is_even, (*op.operands, *op.results), (*operands, *results))):
        return None
    types = [value.type for value in op.results]
    operand_blocks = _blocks([value.type for value in op.operands], operands)
    blocks = _blocks(types, results)
    if summed:
        count = prod(map(computed[0].axis_size, summed))
        types = [_with_leading(type_, count) for type_ in types]
        results = [Sharding(s.mesh, (summed, *s.dims)) for s in results]
    return BlockOp(op, operands, operand_blocks, blocks, tuple(types), tuple(results), bool(summed))


def added_parts(parts: mlir.Value, where: mlir.InsertionPoint, why: mlir.Location) -> mlir.Value:
    """The sum over the leading dim."""
    type_ = mlir.RankedTensorType(parts.type)
    element = type_.element_type
    scalar = mlir.RankedTensorType.get([], element)
    zero = mlir.Operation.create(
        "stablehlo.constant",
        [scalar],
        [],
        {"value": mlir.Attribute.parse(f"dense<{zero_text(element)}> : {scalar}")},
        loc=why,
        ip=where,
    ).results[0]
    reduce = mlir.Operation.create(
        "stablehlo.reduce",
        [mlir.RankedTensorType.get(type_.shape[1:], element)],
        [parts, zero],
        {"dimensions": mlir.DenseI64ArrayAttr.get([0])},
        regions=1,
        loc=why,
        ip=where,
    )
    block = reduce.regions[0].blocks.append(scalar, scalar)
    inside = mlir.InsertionPoint(block)
    added = mlir.Operation.create(
        "stablehlo.add", [scalar], list(block.arguments), loc=why, ip=inside
    )
    mlir.Operation.create("stablehlo.return", [], list(added.results), loc=why, ip=inside)
    return reduce.results[0]


def _shardings(placements: Sequence[Placement | None]) -> tuple[Sharding, ...]:
    """Of tensors, which all operands and results of these ops are."""
    return tuple(cast("Placement", placement).sharding for placement in placements)


def _summed(op: mlir.Operation, operands: tuple[Sharding, ...]) -> tuple[AxisRef, ...]:
    """Axes along which each device has a part of a sum."""
    if op.name != "stablehlo.convolution":
        return ()
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    return operands[1].dims[numbers.kernel_input_feature_dimension]


def _without(axes: tuple[AxisRef, ...], sharding: Sharding) -> Sharding:
    """Before a sum is scattered over ``axes``."""
    dims = (tuple(axis for axis in dim if axis not in axes) for dim in sharding.dims)
    return Sharding(sharding.mesh, tuple(dims))


def _is_even(value: mlir.Value, sharding: Sharding) -> bool:
    shape = mlir.RankedTensorType(value.type).shape
    whole_axes = all(axis.size is None for dim in sharding.dims for axis in dim)
    return whole_axes and all(
        size % pieces == 0 for size, pieces in zip(shape, sharding.tile, strict=True)
    )


def _blocks(types: Sequence[mlir.Type], shardings: Sequence[Sharding]) -> tuple[mlir.Type, ...]:
    """The parts of tensors that one device has."""
    tensors = map(mlir.RankedTensorType, types)
    return tuple(
        mlir.RankedTensorType.get(sharding.local_shape(tensor.shape), tensor.element_type)
        for tensor, sharding in zip(tensors, shardings, strict=True)
    )


def _with_leading(type_: mlir.Type, count: int) -> mlir.Type:
    tensor = mlir.RankedTensorType(type_)
    return mlir.RankedTensorType.get([count, *tensor.shape], tensor.element_type)


def _as_part(value: mlir.Value, where: mlir.InsertionPoint, why: mlir.Location) -> mlir.Value:
    return mlir.Operation.create(
        "stablehlo.reshape", [_with_leading(value.type, 1)], [value], loc=why, ip=where
    ).results[0]


def _groups(
    op: mlir.Operation, blocks: Sequence[mlir.Value], result: mlir.Type
) -> dict[str, mlir.Attribute]:
    """How many of a convolution's groups are in the blocks of its operands."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    images, kernel = (mlir.RankedTensorType(block.type).shape for block in blocks)
    made = mlir.RankedTensorType(result).shape
    features = (
        images[numbers.input_feature_dimension] // kernel[numbers.kernel_input_feature_dimension]
    )
    batches = images[numbers.input_batch_dimension] // made[numbers.output_batch_dimension]
    int64 = mlir.IntegerType.get_signless(64)
    return {
        "feature_group_count": mlir.IntegerAttr.get(int64, features),
        "batch_group_count": mlir.IntegerAttr.get(int64, batches),
    }
