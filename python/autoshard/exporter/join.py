"""Take reshapes of activations out of the way of matmuls.

    before  %d = dot_general %x, %w : (tensor<64x8xf32>, tensor<8x32xf32>) -> tensor<64x32xf32>
            %r = reshape %d : tensor<64x32xf32> -> tensor<64x2x16xf32>
    after   %v = reshape %w : tensor<8x32xf32> -> tensor<8x2x16xf32>
            %r = dot_general %x, %v : (tensor<64x8xf32>, tensor<8x2x16xf32>) -> tensor<64x2x16xf32>

Compilers do the same, but not through the constraints that pin a plan; some then copy what lies
between matmul and reshape into another layout (``layout.keeps_reshapes`` in
docs/design/compilers.md). Others do it behind the partitioner, when the constraints are gone, and
not where several matmuls would read a tensor in several layouts: plans for these stay as they are.
A dim that a reshape merges before a matmul, or splits behind it, is split in all tensors of the
matmul that have it. The reshapes that this adds are smaller than those that it takes away: weights
for activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from autoshard.exporter.split_biases import split_biases
from autoshard.exporter.splits import Shape, groups_of
from autoshard.ir import mlir, stablehlo
from autoshard.ir.reading import shape_of
from autoshard.planned.module import Kind, Placement, PlannedBlock, PlannedModule, PlannedOp
from autoshard.sharding.sharding import AxisRef

_RESHAPE = "stablehlo.reshape"
_MATMUL = "stablehlo.dot_general"
_NUMBERS = "dot_dimension_numbers"
_RESULT = 2
"""Number of the result among the three tensors of a matmul; 0 and 1 are its operands."""

_Axes = tuple[AxisRef, ...]


def join_reshapes(plan: PlannedModule) -> PlannedModule:
    """The same plan, of a module with reshapes of weights for reshapes of activations.

    Expects the context of the module, which it changes, to be current. Where dims are padded to be
    cut, their parts would be padded otherwise: such a plan stays as it is, as does one for a
    compiler that does not keep reshapes.
    """
    if plan.pads or not plan.may_be_compiled_so("layout.keeps_reshapes"):
        return plan
    plan = split_biases(plan)
    joiner = _Joiner(plan)
    functions = tuple(replace(each, body=joiner.block(each.body)) for each in plan.functions)
    return replace(plan, functions=functions)


@dataclass(frozen=True, slots=True)
class _Split:
    """What becomes of a dim that several tensors of a matmul have."""

    sizes: Shape
    axes: tuple[_Axes, ...]
    """Axes of each part, in the reshape that is taken away."""


_Splits = dict[int, _Split]
"""The split of each dim of one tensor."""


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand or the result of a matmul."""

    value: mlir.Value
    placement: Placement
    """As the matmul wants or gives it."""
    reshape: PlannedOp | None = None
    """The one before an operand or behind the result, if it does nothing but split its dims."""
    parts: Shape = ()
    """The shape on the far side of ``reshape``."""
    inner: Placement | None = None
    """Placement of what is on the far side of ``reshape``."""

    @property
    def shape(self) -> Shape:
        return shape_of(self.value)

    def wishes(self) -> _Splits:
        """The dims that ``reshape`` splits."""
        groups = groups_of(self.shape, self.parts)
        if self.inner is None or groups is None:
            return {}
        axes = self.inner.sharding.dims
        return {
            dim: _Split(
                tuple(self.parts[part] for part in group), tuple(axes[part] for part in group)
            )
            for dim, group in enumerate(groups)
            if len(group) > 1
        }


class _Joiner:
    """One walk over a module; ``held`` follows every value through it."""

    def __init__(self, plan: PlannedModule) -> None:
        self.plan = plan
        self.held: dict[mlir.Value, Placement | None] = {}

    def block(self, block: PlannedBlock) -> PlannedBlock:
        """The block, and the blocks inside its ops."""
        self.held.update(block.arguments)
        reshapes = [op for op in block.ops if op.op.name == _RESHAPE and op.kind is Kind.COMPUTE]
        return replace(block, ops=_BlockWalk(self, reshapes).joined(block.ops))

    def entered(self, planned: PlannedOp) -> PlannedOp:
        """An op that stays, its inner blocks joined."""
        self.held.update(zip(planned.op.results, planned.results, strict=False))
        if not planned.blocks:
            return planned
        return replace(planned, blocks=tuple(map(self.block, planned.blocks)))


class _BlockWalk:
    """One walk over one block."""

    def __init__(self, joiner: _Joiner, reshapes: Sequence[PlannedOp]) -> None:
        self.joiner = joiner
        self.makers = {planned.op.results[0]: planned for planned in reshapes}
        self.readers = {planned.op.operands[0]: planned for planned in reshapes}
        self.gone: set[int] = set()
        """Planned reshapes that are taken away, by ``id``."""
        self.copies: dict[tuple[mlir.Value, Shape, Placement], mlir.Value] = {}
        """Reshaped operands, for the next matmul that reads the same."""
        self.made: list[PlannedOp] = []

    def joined(self, ops: Iterable[PlannedOp]) -> tuple[PlannedOp, ...]:
        """The ops of the block as they are now."""
        for planned in ops:
            if id(planned) in self.gone:
                continue
            is_matmul = planned.op.name == _MATMUL and bool(self.makers)
            if not (is_matmul and self._join(planned)):
                self._add(planned)
        return tuple(planned for planned in self.made if id(planned) not in self.gone)

    def _join(self, planned: PlannedOp) -> bool:
        """Write a matmul anew where that takes larger reshapes away than it adds."""
        sides = self._sides(planned)
        if sides is None:
            return False
        numbers = stablehlo.DotDimensionNumbers(planned.op.attributes[_NUMBERS])
        factors = _factors(numbers, *(len(side.shape) for side in sides[:_RESULT]))
        found: dict[tuple[int | None, ...], _Split] = {}
        for number, side in enumerate(sides):
            for dim, split in side.wishes().items():
                factor = next(each for each in factors if each[number] == dim)
                if None not in factor or found.setdefault(factor, split).sizes != split.sizes:
                    return False  # A batch of matmuls, or two ways to split a dim.
        splits: list[_Splits] = [
            {dim: split for factor, split in found.items() if (dim := factor[number]) is not None}
            for number in range(3)
        ]
        shapes = [_split_shape(side.shape, each) for side, each in zip(sides, splits, strict=True)]
        placements: list[Placement] = []
        taken = added = 0
        for number, side in enumerate(sides):
            placement = self._split(side.placement, splits[number], number != _RESULT)
            if placement is None:
                return False
            placements.append(placement)
            if side.reshape is not None and side.parts == shapes[number]:
                if side.inner is not placement:
                    return False
                taken += prod(side.shape)
            elif splits[number]:
                added += prod(side.shape)
        if added >= taken:
            return False
        self._write(planned, numbers, sides, splits, shapes, placements)
        return True

    def _sides(self, planned: PlannedOp) -> list[_Side] | None:
        left, right = planned.operands
        (computed,) = planned.computed
        if left is None or right is None or computed is None:
            return None
        (result,) = planned.op.results
        found: list[_Side] = []
        for value, wanted in zip(planned.op.operands, (left, right), strict=True):
            maker = self.makers.get(value)
            if maker is None or not (maker.computed[0] is maker.results[0] is wanted):
                found.append(_Side(value, wanted))
                continue
            before = maker.op.operands[0]
            found.append(_Side(value, wanted, maker, shape_of(before), maker.operands[0]))
        reader = self.readers.get(result)
        is_only = len(list(result.uses)) == 1 and computed is planned.results[0]
        if reader is None or not is_only or reader.operands[0] is not computed:
            return [*found, _Side(result, computed)]
        behind = shape_of(reader.op.results[0])
        return [*found, _Side(result, computed, reader, behind, reader.computed[0])]

    def _split(
        self, placement: Placement, splits: _Splits, is_exact: bool = False
    ) -> Placement | None:
        """The placement of a tensor whose dims are split; None where its cuts do not allow it.

        A result may have axes that its operands have not, those over which partial sums are
        scattered. With ``is_exact`` there may be none.
        """
        dims: list[_Axes] = []
        for dim, axes in enumerate(placement.sharding.dims):
            split = splits.get(dim)
            if split is None:
                dims.append(axes)
                continue
            parts = split.axes
            if axes != sum(split.axes, ()):
                if is_exact or split.sizes[0] % placement.sharding.num_shards(dim):
                    return None
                parts = (axes, *[()] * (len(split.sizes) - 1))
            dims.extend(parts)
        return self.joiner.plan.placement(tuple(dims))

    def _write(
        self,
        planned: PlannedOp,
        numbers: stablehlo.DotDimensionNumbers,
        sides: Sequence[_Side],
        splits: Sequence[_Splits],
        shapes: Sequence[Shape],
        placements: Sequence[Placement],
    ) -> None:
        """The matmul over split dims in place of ``planned``, and reshapes where none were."""
        op = planned.op
        left, right, given = placements
        operands = [
            self._operand(op, side, split, shape, placement)
            for side, split, shape, placement in zip(
                sides[:2], splits[:2], shapes[:2], placements[:2], strict=True
            )
        ]
        attributes = {name: op.attributes[name] for name in op.attributes}
        attributes[_NUMBERS] = _split_numbers(numbers, splits)
        matmul = mlir.Operation.create(
            _MATMUL,
            results=[_with_shape(op.results[0], shapes[_RESULT])],
            operands=operands,
            attributes=attributes,
            loc=op.location,
            ip=mlir.InsertionPoint(op),
        )
        result = matmul.results[0]
        reader = sides[_RESULT].reshape
        is_read = reader is not None and sides[_RESULT].parts == shapes[_RESULT]
        if reader is not None and is_read:
            self._add(PlannedOp(matmul, Kind.COMPUTE, (left, right), (given,), reader.results))
            self._erase(reader, result)
        elif splits[_RESULT]:
            self._add(PlannedOp(matmul, Kind.COMPUTE, (left, right), (given,), (given,)))
            result = self._reshape(op, result, sides[_RESULT].shape, given, planned)
        else:
            self._add(PlannedOp(matmul, Kind.COMPUTE, (left, right), (given,), planned.results))
        op.results[0].replace_all_uses_with(result)
        op.erase()
        for side in sides[:_RESULT]:
            if side.reshape is not None and next(iter(side.value.uses), None) is None:
                self._erase(side.reshape, None)

    def _operand(
        self, op: mlir.Operation, side: _Side, splits: _Splits, shape: Shape, wanted: Placement
    ) -> mlir.Value:
        """An operand with its dims split, reshaped where it is held if its cuts allow it."""
        if not splits:
            return side.value
        if side.reshape is not None and side.parts == shape:
            return side.reshape.op.operands[0]
        held = self.joiner.held.get(side.value)
        split = None if held is None else self._split(held, splits)
        if held is None or split is None:
            held, split = side.placement, wanted
        key = (side.value, shape, held)
        if key not in self.copies:
            planned = PlannedOp(op, Kind.COMPUTE, (held,), (split,), (split,))
            self.copies[key] = self._reshape(op, side.value, shape, held, planned)
        return self.copies[key]

    def _reshape(
        self,
        where: mlir.Operation,
        value: mlir.Value,
        shape: Shape,
        wanted: Placement,
        planned: PlannedOp,
    ) -> mlir.Value:
        """``value`` in another shape, placed as the results of ``planned``."""
        made = mlir.Operation.create(
            _RESHAPE,
            results=[_with_shape(value, shape)],
            operands=[value],
            loc=where.location,
            ip=mlir.InsertionPoint(where),
        )
        self._add(PlannedOp(made, Kind.COMPUTE, (wanted,), planned.computed, planned.results))
        return made.results[0]

    def _add(self, planned: PlannedOp) -> None:
        self.made.append(self.joiner.entered(planned))

    def _erase(self, reshape: PlannedOp, instead: mlir.Value | None) -> None:
        value = reshape.op.results[0]
        self.makers.pop(value, None)
        self.readers.pop(reshape.op.operands[0], None)
        self.gone.add(id(reshape))
        if instead is not None:
            value.replace_all_uses_with(instead)
        reshape.op.erase()


def _with_shape(value: mlir.Value, shape: Shape) -> mlir.Type:
    element = mlir.RankedTensorType(value.type).element_type
    return mlir.RankedTensorType.get(shape, element, loc=value.location)


def _factors(
    numbers: stablehlo.DotDimensionNumbers, left_rank: int, right_rank: int
) -> list[tuple[int | None, int | None, int | None]]:
    """The dims of a matmul: where each is in left operand, right operand and result."""
    left_batch, right_batch = numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions
    left_sum = numbers.lhs_contracting_dimensions
    right_sum = numbers.rhs_contracting_dimensions
    batch = [(k, r, n) for n, (k, r) in enumerate(zip(left_batch, right_batch, strict=True))]
    sums = [(k, r, None) for k, r in zip(left_sum, right_sum, strict=True)]
    left = [k for k in range(left_rank) if k not in (*left_batch, *left_sum)]
    right = [k for k in range(right_rank) if k not in (*right_batch, *right_sum)]
    rows = [(k, None, len(batch) + n) for n, k in enumerate(left)]
    columns = [(None, k, len(batch) + len(left) + n) for n, k in enumerate(right)]
    return [*batch, *sums, *rows, *columns]


def _split_shape(shape: Shape, splits: _Splits) -> Shape:
    parts = (splits[dim].sizes if dim in splits else (size,) for dim, size in enumerate(shape))
    return sum(parts, ())


def _split_numbers(
    numbers: stablehlo.DotDimensionNumbers, splits: Sequence[_Splits]
) -> mlir.Attribute:
    """The same dims, where they are after the splits."""

    def moved(dims: Sequence[int], splits: _Splits) -> list[int]:
        found: list[int] = []
        for dim in dims:
            more = (len(split.sizes) - 1 for place, split in splits.items() if place < dim)
            start = dim + sum(more)
            found.extend(range(start, start + (len(splits[dim].sizes) if dim in splits else 1)))
        return found

    left, right, _ = splits
    return stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=moved(numbers.lhs_batching_dimensions, left),
        rhs_batching_dimensions=moved(numbers.rhs_batching_dimensions, right),
        lhs_contracting_dimensions=moved(numbers.lhs_contracting_dimensions, left),
        rhs_contracting_dimensions=moved(numbers.rhs_contracting_dimensions, right),
    )
