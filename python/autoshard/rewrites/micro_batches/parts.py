"""What a micro-batch reads of a value that is whole.

Of ``n = k * M * stride`` elements of a dim the part has those whose number is ``m`` in the middle
one of three dims, ``[k, M, stride]``, or in the last one of two where the stride is 1. So every
M-th example is in one micro-batch: a batch that devices share stays where it is. Constants,
broadcasts and iotas are written at their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.ir import mlir
from autoshard.ir.constants import constant, splat_of
from autoshard.ir.reading import element_of, ints, shape_of


@dataclass(frozen=True, slots=True)
class Part:
    """Every ``count``-th group of ``stride`` elements along ``dim``."""

    dim: int
    stride: int
    count: int
    """Micro-batches."""

    def shape(self, whole: Sequence[int]) -> list[int]:
        """Sizes of the part."""
        return [*whole[: self.dim], whole[self.dim] // self.count, *whole[self.dim + 1 :]]

    def unfolded(self, whole: Sequence[int], groups: int) -> list[int]:
        """The shape in which one dim counts micro-batches, ``groups`` of them."""
        outer = whole[self.dim] // (self.count * self.stride)
        inner = [self.stride] if self.stride > 1 else []
        return [*whole[: self.dim], outer, groups, *inner, *whole[self.dim + 1 :]]


@dataclass
class Parts:
    """Writes ops that read parts, each once a block."""

    count: int
    """Micro-batches."""
    integer: mlir.Type
    """Type of the number of the micro-batch: ``tensor<i32>``."""
    prelude: mlir.InsertionPoint
    """Where ops before the loop are written."""
    captured: list[tuple[mlir.Operation, int]] = field(
        default_factory=list[tuple[mlir.Operation, int]]
    )
    """Operands of written ops that are made before the loop."""
    _known: dict[tuple[object, ...], mlir.Value] = field(
        default_factory=dict[tuple[object, ...], mlir.Value]
    )

    def read(
        self, user: mlir.Operation, operand: int, part: Part, number: mlir.Value, is_outside: bool
    ) -> None:
        """Let an operand of ``user`` be its part.

        Args:
            user: In the loop.
            operand: Which one.
            part: Of it.
            number: Of the micro-batch, as the block of ``user`` knows it.
            is_outside: The operand is made before the loop.
        """
        value = user.operands[operand]
        key = (user.operation.block, value, part)
        if key not in self._known:
            where = mlir.InsertionPoint(user)
            self._known[key] = self._small(value, part, number, is_outside, where, user.location)
        user.operands[operand] = self._known[key]

    def _small(
        self,
        value: mlir.Value,
        part: Part,
        number: mlir.Value,
        is_outside: bool,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        type_ = mlir.RankedTensorType.get(part.shape(shape_of(value)), element_of(value))
        owner = value.owner
        if not isinstance(owner, mlir.Block):
            maker = owner.operation
            if maker.name == "stablehlo.iota":
                return self._iota(maker, type_, part, number, where)
            if (splat := splat_of(maker)) is not None:
                made = maker.clone(ip=where).operation
                made.attributes["value"] = mlir.DenseElementsAttr.get_splat(type_, splat)
                made.results[0].set_type(type_)
                return made.results[0]
            if maker.name == "stablehlo.broadcast_in_dim" and part.dim not in ints(
                maker, "broadcast_dimensions", []
            ):
                made = maker.clone(ip=where).operation
                made.results[0].set_type(type_)
                if is_outside:
                    self.captured.append((made, 0))
                return made.results[0]
        return self._slice(value, type_, part, number, is_outside, where, why)

    def _slice(
        self,
        value: mlir.Value,
        type_: mlir.Type,
        part: Part,
        number: mlir.Value,
        is_outside: bool,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> mlir.Value:
        whole, element = shape_of(value), element_of(value)
        key = ("unfolded", value, part)
        if is_outside and key in self._known:
            unfolded = self._known[key]
        else:
            shape = mlir.RankedTensorType.get(part.unfolded(whole, self.count), element)
            op = reshape(value, shape, self.prelude if is_outside else where, why)
            unfolded = op.results[0]
            if is_outside:
                self._known[key] = unfolded
        sizes = part.unfolded(whole, 1)
        sliced = mlir.Operation.create(
            "stablehlo.dynamic_slice",
            results=[mlir.RankedTensorType.get(sizes, element)],
            operands=[unfolded, *self.starts(len(sizes), part, number, where, why)],
            attributes={"slice_sizes": mlir.DenseI64ArrayAttr.get(sizes)},
            loc=why,
            ip=where,
        )
        if is_outside:
            self.captured.append((sliced, 0))
        return reshape(sliced.results[0], type_, where, why).results[0]

    def starts(
        self,
        rank: int,
        part: Part,
        number: mlir.Value,
        where: mlir.InsertionPoint,
        why: mlir.Location,
    ) -> list[mlir.Value]:
        """Start indices of the part in the unfolded value."""
        zero = constant(self.integer, "0", where, why).results[0]
        return [number if dim == part.dim + 1 else zero for dim in range(rank)]

    def _iota(
        self,
        maker: mlir.Operation,
        type_: mlir.Type,
        part: Part,
        number: mlir.Value,
        where: mlir.InsertionPoint,
    ) -> mlir.Value:
        """Along its dim, element ``j`` is ``j // stride * M * stride + m * stride + j % stride``.

        For a stride of 1 that is ``j * M + m``. Computed in int32, as narrow types round.
        """
        made = maker.clone(ip=where).operation
        (dim,) = ints(maker, "iota_dimension", [])
        if dim != part.dim:
            made.results[0].set_type(type_)
            return made.results[0]
        why = maker.location
        whole = mlir.RankedTensorType.get(
            mlir.RankedTensorType(type_).shape, mlir.IntegerType.get_signless(32)
        )
        made.results[0].set_type(whole)

        def splat(value: int) -> mlir.Value:
            return constant(whole, str(value), where, why).results[0]

        def op(name: str, result: mlir.Type, *operands: mlir.Value) -> mlir.Value:
            return mlir.Operation.create(
                f"stablehlo.{name}", results=[result], operands=operands, loc=why, ip=where
            ).results[0]

        first = mlir.Operation.create(
            "stablehlo.broadcast_in_dim",
            results=[whole],
            operands=[number],
            attributes={"broadcast_dimensions": mlir.DenseI64ArrayAttr.get([])},
            loc=why,
            ip=where,
        ).results[0]
        local, stride = made.results[0], splat(part.stride)
        if part.stride == 1:
            found = op("add", whole, op("multiply", whole, local, splat(part.count)), first)
        else:
            rest = op("remainder", whole, local, stride)
            groups = op("multiply", whole, op("subtract", whole, local, rest), splat(part.count))
            start = op("multiply", whole, first, stride)
            found = op("add", whole, op("add", whole, groups, start), rest)
        return found if type_ == whole else op("convert", type_, found)


def reshape(
    value: mlir.Value, type_: mlir.Type, where: mlir.InsertionPoint, why: mlir.Location
) -> mlir.Operation:
    """``stablehlo.reshape``."""
    return mlir.Operation.create(
        "stablehlo.reshape", results=[type_], operands=[value], loc=why, ip=where
    )
