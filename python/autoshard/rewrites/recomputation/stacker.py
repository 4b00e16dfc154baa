"""Write values of a loop to stacks, and read them in another loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, STRATEGY
from autoshard.ir.constants import zeros
from autoshard.planned.summarize import shardings_of
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.loop_rebuild import Carried
from autoshard.rewrites.recomputation.loops import Pair, trips_of
from autoshard.sharding import Sharding, format_sharding, to_v2


class Stacker:
    """Writes what the first loop of a pair stacks, and what the second one reads of it."""

    def __init__(
        self, trips: int, sharding_of: Callable[[mlir.Value], Sharding] | None = None
    ) -> None:
        """``sharding_of`` a value of the module as it was read; None where it is not planned."""
        self._trips = trips
        self._sharding_of = sharding_of

    @staticmethod
    def of_plan(block: Block, pair: Pair) -> Stacker:
        """For two loops of a planned module."""
        costed = block.costed
        shardings = shardings_of(costed.plan, costed.mesh)
        rows, value_of = costed.plan.value_sharding, costed.imported.value_of

        def sharding_of(value: mlir.Value) -> Sharding:
            core = value_of.get(value, NO_VALUE)
            return Sharding(costed.mesh, ()) if core == NO_VALUE else shardings[rows[core]]

        return Stacker(trips_of(pair), sharding_of)

    def sharding(self, value: mlir.Value) -> Sharding | None:
        """Sharding of a value of the module as it was read."""
        return None if self._sharding_of is None else self._sharding_of(value)

    def texts(self, values: Iterable[mlir.Value]) -> list[str] | None:
        """``mhlo.sharding`` of values of the module as it was read."""
        of = self._sharding_of
        return None if of is None else [to_v2(of(value)) for value in values]

    def empty(self, value: mlir.Value, own: Sharding | None, point: mlir.InsertionPoint) -> Carried:
        """Zeros for all trips of a value of the first loop."""
        type_ = mlir.RankedTensorType(value.type)
        sharding = _stacked(own)
        stacked = mlir.RankedTensorType.get([self._trips, *type_.shape], type_.element_type)
        scalar = mlir.RankedTensorType.get([], type_.element_type)
        zero = self._zero(scalar, point, value.location)
        made = _op(
            "stablehlo.broadcast_in_dim",
            stacked,
            [zero],
            {"broadcast_dimensions": mlir.DenseI64ArrayAttr.get([])},
            _said((_SCALAR,), sharding),
            point,
        )
        return Carried(made, sharding)

    def update(
        self,
        stack: mlir.Value,
        value: mlir.Value,
        sharding: Sharding | None,
        index: mlir.Value,
        point: mlir.InsertionPoint,
    ) -> mlir.Value:
        """Write one trip's value to a stack."""
        type_ = mlir.RankedTensorType(value.type)
        part = mlir.RankedTensorType.get([1, *type_.shape], type_.element_type)
        own = None if sharding is None else Sharding(sharding.mesh, sharding.dims[1:])
        row = _op(
            "stablehlo.reshape",
            part,
            [value],
            {},
            _said((own,), sharding),
            point,
        )
        zeros = self._zeros(index, len(type_.shape), point)
        return _op(
            "stablehlo.dynamic_update_slice",
            stack.type,
            [stack, row, index, *zeros],
            {},
            _said((sharding, sharding, *[_SCALAR] * (len(zeros) + 1)), sharding),
            point,
        )

    def part(
        self,
        stack: mlir.Value,
        type_: mlir.Type,
        own: Sharding | None,
        index: mlir.Value,
        point: mlir.InsertionPoint,
    ) -> mlir.Value:
        """Read one trip's value from a stack."""
        shape = mlir.RankedTensorType(type_).shape
        sharding = _stacked(own)
        zeros = self._zeros(index, len(shape), point)
        row = _op(
            "stablehlo.dynamic_slice",
            mlir.RankedTensorType.get([1, *shape], mlir.RankedTensorType(type_).element_type),
            [stack, index, *zeros],
            {"slice_sizes": mlir.DenseI64ArrayAttr.get([1, *shape])},
            _said((sharding, *[_SCALAR] * (len(zeros) + 1)), sharding),
            point,
        )
        return _op(
            "stablehlo.reshape",
            type_,
            [row],
            {},
            _said((sharding,), own),
            point,
        )

    def _zeros(self, index: mlir.Value, count: int, point: mlir.InsertionPoint) -> list[mlir.Value]:
        return [self._zero(index.type, point, index.location)] * count if count else []

    def _zero(
        self, scalar: mlir.Type, point: mlir.InsertionPoint, why: mlir.Location
    ) -> mlir.Value:
        made = zeros(scalar, point, why)
        if self._sharding_of is not None:
            made.attributes[MHLO_SHARDING] = mlir.StringAttr.get("{replicated}")
        return made.results[0]


_SCALAR = "[]"


def _stacked(own: Sharding | None) -> Sharding | None:
    """Sharding of the stack of a value."""
    return None if own is None else Sharding(own.mesh, ((), *own.dims))


def _said(
    operands: Sequence[Sharding | str | None], result: Sharding | None
) -> dict[str, mlir.Attribute]:
    """What a plan says of an op; nothing where there is none."""
    if result is None:
        return {}
    texts = [
        one if isinstance(one, str) else format_sharding(one) for one in operands if one is not None
    ]
    return {
        MHLO_SHARDING: mlir.StringAttr.get(to_v2(result)),
        STRATEGY: mlir.StringAttr.get(f"{', '.join(texts)} -> {format_sharding(result)}"),
    }


def _op(
    name: str,
    type_: mlir.Type,
    operands: list[mlir.Value],
    attributes: dict[str, mlir.Attribute],
    said: dict[str, mlir.Attribute],
    point: mlir.InsertionPoint,
) -> mlir.Value:
    made = mlir.Operation.create(
        name, results=[type_], operands=operands, attributes={**attributes, **said}, ip=point
    )
    return made.results[0]
