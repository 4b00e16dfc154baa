"""Take reshapes behind a matmul and its bias in front of the bias.

    before  %d = dot_general %x, %w : tensor<64x32xf32>
            %b = broadcast_in_dim %bias, dims = [1] : (tensor<32xf32>) -> tensor<64x32xf32>
            %s = add %d, %b
            %r = reshape %s : tensor<64x32xf32> -> tensor<64x2x16xf32>
    after   %e = reshape %d : tensor<64x32xf32> -> tensor<64x2x16xf32>
            %c = reshape %bias : tensor<32xf32> -> tensor<2x16xf32>
            %b = broadcast_in_dim %c, dims = [1, 2] : (tensor<2x16xf32>) -> tensor<64x2x16xf32>
            %r = add %e, %b

So it stands beside the matmul, which ``join_reshapes`` has write the heads. A bias that comes row
by row else decides in which order a compiler lays the sum, and the sum is copied where a batch of
matmuls wants its heads otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.exporter.splits import Groups, Shape, groups_of
from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import shape_of
from autoshard.planned.module import Kind, Placement, PlannedBlock, PlannedModule, PlannedOp

_ADD = "stablehlo.add"
_BROADCAST = "stablehlo.broadcast_in_dim"
_DIMS = "broadcast_dimensions"
_MATMUL = "stablehlo.dot_general"
_RESHAPE = "stablehlo.reshape"


def split_biases(plan: PlannedModule) -> PlannedModule:
    """The same plan, of a module whose biases are added behind reshapes of matmuls.

    Expects the context of the module, which it changes, to be current.
    """
    functions = tuple(replace(each, body=_split_in(plan, each.body)) for each in plan.functions)
    return replace(plan, functions=functions)


@dataclass(frozen=True, slots=True)
class _Biased:
    """A sum of a matmul and a bias that nothing but a reshape reads."""

    matmul: PlannedOp
    bias: PlannedOp
    """A broadcast."""
    add: PlannedOp
    reshape: PlannedOp
    groups: Groups

    @property
    def whole(self) -> Placement | None:
        """Where all four are before the reshape."""
        return self.reshape.operands[0]


def _split_in(plan: PlannedModule, block: PlannedBlock) -> PlannedBlock:
    makers: dict[mlir.Value, PlannedOp] = {
        result: planned
        for planned in block.ops
        if planned.kind is Kind.COMPUTE
        for result in planned.op.results
    }
    found: dict[int, tuple[PlannedOp, ...]] = {}
    gone: list[PlannedOp] = []
    for planned in block.ops:
        biased = _biased(planned, makers)
        wanted = None if biased is None else _wanted(plan, biased)
        if biased is None or wanted is None:
            continue
        found[id(biased.add)] = tuple(_written(biased, wanted))
        gone += [biased.reshape, biased.add, biased.bias]
    left_out = {id(each) for each in gone} - set(found)
    ops: list[PlannedOp] = []
    for planned in block.ops:
        if id(planned) in found:
            ops += found[id(planned)]
        elif id(planned) not in left_out:
            inner = tuple(_split_in(plan, each) for each in planned.blocks)
            ops.append(replace(planned, blocks=inner) if inner else planned)
    for planned in gone:
        planned.op.erase()
    return replace(block, ops=tuple(ops))


def _biased(reshape: PlannedOp, makers: dict[mlir.Value, PlannedOp]) -> _Biased | None:
    """What a reshape reads that splits columns of a matmul with a bias."""
    if reshape.op.name != _RESHAPE or reshape.kind is not Kind.COMPUTE:
        return None
    add = makers.get(reshape.op.operands[0])
    if add is None or add.op.name != _ADD:
        return None
    operands = [makers.get(value) for value in add.op.operands]
    if None in operands:
        return None
    one, other = operands
    assert one is not None
    assert other is not None
    matmul, bias = (other, one) if one.op.name == _BROADCAST else (one, other)
    if matmul.op.name != _MATMUL or bias.op.name != _BROADCAST:
        return None
    result = add.op.results[0]
    groups = groups_of(shape_of(result), shape_of(reshape.op.results[0]))
    found = None if groups is None else _Biased(matmul, bias, add, reshape, groups)
    return found if found is not None and _is_alike(found) and _splits_columns(found) else None


def _is_alike(found: _Biased) -> bool:
    """Whether nothing else reads what is between, and nothing is resharded there."""
    inner = (found.matmul, found.bias, found.add)
    placements = (
        *(placement for each in inner for placement in (*each.computed, *each.results)),
        *found.add.operands,
    )
    return (
        all(len(list(each.op.results[0].uses)) == 1 for each in inner)
        and found.whole is not None
        and all(placement is found.whole for placement in placements)
    )


def _splits_columns(found: _Biased) -> bool:
    """Whether the dims that are split are those of the right operand of a matmul."""
    numbers = stablehlo.DotDimensionNumbers(found.matmul.op.attributes["dot_dimension_numbers"])
    rank = len(shape_of(found.matmul.op.operands[0]))
    first = rank - len(numbers.lhs_contracting_dimensions)
    return all(len(group) == 1 or dim >= first for dim, group in enumerate(found.groups))


def _wanted(plan: PlannedModule, found: _Biased) -> Placement | None:
    """What the bias is once it is split; None: a dim that is split is cut."""
    (placement,) = found.bias.operands
    if placement is None:
        return None
    parts = _parts(found)
    cuts = placement.sharding.dims
    if any(cut and len(part) > 1 for cut, part in zip(cuts, parts, strict=True)):
        return None
    return plan.placement(
        tuple(axes for cut, part in zip(cuts, parts, strict=True) for axes in [cut] * len(part))
    )


def _parts(found: _Biased) -> list[Shape]:
    """Into which parts each dim of the bias is split."""
    wide = shape_of(found.reshape.op.results[0])
    sizes = shape_of(found.bias.op.operands[0])
    groups = [found.groups[dim] for dim in _dims(found)]
    return [
        tuple(1 if size == 1 else wide[part] for part in group)
        for size, group in zip(sizes, groups, strict=True)
    ]


def _dims(found: _Biased) -> list[int]:
    return list(mlir.DenseI64ArrayAttr(found.bias.op.attributes[_DIMS]))


def _written(found: _Biased, wanted: Placement) -> Iterator[PlannedOp]:
    """The ops that stand in place of the sum."""
    where, result = mlir.InsertionPoint(found.add.op), found.reshape.op.results[0]
    (split,), (before,) = found.reshape.computed, found.bias.operands

    def make(name: str, of: PlannedOp, shape: Shape, *operands: mlir.Value) -> mlir.Operation:
        element = mlir.RankedTensorType(result.type).element_type
        made = mlir.RankedTensorType.get(shape, element, loc=of.op.location)
        attributes = {}
        if name == _BROADCAST:
            dims = [part for dim in _dims(found) for part in found.groups[dim]]
            attributes[_DIMS] = mlir.DenseI64ArrayAttr.get(dims)
        return mlir.Operation.create(
            name,
            results=[made],
            operands=list(operands),
            attributes=attributes,
            loc=of.op.location,
            ip=where,
        )

    wide = shape_of(result)
    parts = sum(_parts(found), ())
    bias = make(_RESHAPE, found.bias, parts, found.bias.op.operands[0])
    yield PlannedOp(bias, Kind.COMPUTE, (before,), (wanted,), (wanted,))
    repeated = make(_BROADCAST, found.bias, wide, bias.results[0])
    yield PlannedOp(repeated, Kind.COMPUTE, (wanted,), (split,), (split,))
    heads = make(_RESHAPE, found.reshape, wide, found.matmul.op.results[0])
    yield PlannedOp(heads, Kind.COMPUTE, (found.whole,), (split,), (split,))
    added = make(_ADD, found.add, wide, heads.results[0], repeated.results[0])
    yield PlannedOp(added, Kind.COMPUTE, (split, split), (split,), found.reshape.results)
    result.replace_all_uses_with(added.results[0])
