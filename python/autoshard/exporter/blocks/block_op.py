"""A planned op as one device computes it, and who says how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from autoshard.exporter.blocks.emitter import Axes, Emitter, local_type, tensor
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.ir.constants import zeros
from autoshard.ir.reading import shape_of
from autoshard.planned.module import OWN_PREFIX, Placement, PlannedOp
from autoshard.sharding.sharding import AxisRef, Sharding

Compute = Callable[[Emitter, list[mlir.Value]], list[mlir.Value]]
"""Computes the blocks of the results from those of the operands."""


@dataclass(frozen=True, slots=True)
class Form:
    """How an op is computed on blocks."""

    compute: Compute
    summed: tuple[AxisRef, ...] = ()
    """Axes along which each device has a part of a sum."""


@dataclass(frozen=True, slots=True)
class BlockOp:
    """A planned op as one device computes it."""

    op: mlir.Operation
    operands: tuple[Sharding, ...]
    operand_blocks: tuple[mlir.Type, ...]
    types: tuple[mlir.Type, ...]
    """Types of the results together; in front the parts of sums."""
    results: tuple[Sharding, ...]
    """How ``types`` are cut."""
    compute: Compute
    is_partial: bool
    """The blocks are parts of sums."""

    def write(self, blocks: Sequence[mlir.Value], emit: Emitter) -> list[mlir.Value]:
        """The results' blocks of one device, from its ``blocks`` of the operands."""
        made = self.compute(emit, list(blocks))
        if self.is_partial:
            made = [emit.reshaped(value, (1, *shape_of(value))) for value in made]
        return made


def has_equal_blocks(planned: PlannedOp) -> bool:
    """Whether whole axes cut every dim of a planned op into equal blocks."""
    values = (*planned.op.operands, *planned.op.results)
    given = (*shardings(planned.operands), *shardings(planned.computed))
    return all(map(_is_even, values, given))


def on_blocks(planned: PlannedOp, form: Form) -> BlockOp:
    """``planned`` in this form; expects ``has_equal_blocks``."""
    op = planned.op
    operands, computed = shardings(planned.operands), shardings(planned.computed)
    results = [_made(planned, form.summed, sharding) for sharding in computed]
    types = [value.type for value in op.results]
    operand_blocks = tuple(map(local_type, (value.type for value in op.operands), operands))
    if form.summed:
        count = prod(map(computed[0].axis_size, form.summed))
        types = [_with_leading(type_, count) for type_ in types]
        results = [Sharding(s.mesh, (form.summed, *s.dims)) for s in results]
    return BlockOp(
        op,
        operands,
        operand_blocks,
        tuple(types),
        tuple(results),
        form.compute,
        bool(form.summed),
    )


def shardings(placements: Sequence[Placement | None]) -> tuple[Sharding, ...]:
    """Shardings of tensors, which all operands and results of these ops are."""
    return tuple(cast("Placement", placement).sharding for placement in placements)


def result_sharding(planned: PlannedOp, summed: Axes) -> Sharding:
    """Sharding of the first result, before a sum over ``summed`` is scattered."""
    return _made(planned, summed, shardings(planned.computed)[0])


def _made(planned: PlannedOp, summed: Axes, computed: Sharding) -> Sharding:
    """Sharding of a result as blocks of the operands make it.

    Not cut yet are axes that sums are scattered over, and those that cut no operand: an
    optimizer's shard is cut out of what devices that have equal operands make alike.
    """
    given = {
        axis for sharding in shardings(planned.operands) for dim in sharding.dims for axis in dim
    }
    later = {axis for dim in computed.dims for axis in dim} - given
    return _without({*summed, *later}, computed)


def own_attributes(op: mlir.Operation) -> dict[str, mlir.Attribute]:
    """What the op says itself: without what the plan wrote on it."""
    entries = (op.attributes[number] for number in range(len(op.attributes)))
    return {
        entry.name: entry.attr
        for entry in entries
        if not entry.name.startswith(OWN_PREFIX) and entry.name != MHLO_SHARDING
    }


def same_op(
    op: mlir.Operation,
    emit: Emitter,
    operands: Sequence[mlir.Value],
    results: Sequence[mlir.Type],
    changed: dict[str, mlir.Attribute] | None = None,
) -> list[mlir.Value]:
    """The op on other operands, with some attributes ``changed`` and copies of its regions."""
    attributes = {**own_attributes(op), **(changed or {})}
    made = emit.op(op.name, results, operands, attributes, len(op.regions))
    for region, copy in zip(op.regions, made.regions, strict=True):
        for block in region.blocks:
            _copy_block(block, copy, op.location)
    return list(made.results)


def _copy_block(block: mlir.Block, region: mlir.Region, why: mlir.Location) -> None:
    """A block of ops without regions of their own, which read nothing from outside."""
    types = [argument.type for argument in block.arguments]
    copy = region.blocks.append(*types, arg_locs=[why] * len(types))
    values: dict[mlir.Value, mlir.Value] = dict(zip(block.arguments, copy.arguments, strict=True))
    where = mlir.InsertionPoint(copy)
    for inner in block.operations:
        made = inner.operation.clone(ip=where)
        for number, operand in enumerate(inner.operation.operands):
            made.operands[number] = values[operand]
        values.update(zip(inner.operation.results, made.results, strict=True))


def reads_only_inside(op: mlir.Operation) -> bool:
    """Whether ``same_op`` can copy the op's regions."""
    for region in op.regions:
        for block in region.blocks:
            known: set[mlir.Value] = set(block.arguments)
            for inner in block.operations:
                if len(inner.operation.regions) or not known.issuperset(inner.operation.operands):
                    return False
                known.update(inner.operation.results)
    return True


def added_parts(parts: mlir.Value, where: mlir.InsertionPoint, why: mlir.Location) -> mlir.Value:
    """The sum over the leading dim."""
    type_ = mlir.RankedTensorType(parts.type)
    element = type_.element_type
    scalar = mlir.RankedTensorType.get([], element)
    zero = zeros(scalar, where, why).results[0]
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


def _without(axes: Iterable[AxisRef], sharding: Sharding) -> Sharding:
    """Before a sum is scattered over ``axes``."""
    removed = set(axes)
    dims = (tuple(axis for axis in dim if axis not in removed) for dim in sharding.dims)
    return Sharding(sharding.mesh, tuple(dims))


def _is_even(value: mlir.Value, sharding: Sharding) -> bool:
    whole_axes = all(axis.size is None for dim in sharding.dims for axis in dim)
    return whole_axes and all(
        size % pieces == 0 for size, pieces in zip(shape_of(value), sharding.tile, strict=True)
    )


def _with_leading(type_: mlir.Type, count: int) -> mlir.Type:
    old = mlir.RankedTensorType(type_)
    return tensor([count, *old.shape], old.element_type)
