"""Write values of a loop to stacks, and read them in another loop."""

from __future__ import annotations

from collections.abc import Iterable

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

    def __init__(self, block: Block, pair: Pair) -> None:
        self.pair = pair
        costed = block.costed
        self.mesh = costed.mesh
        self.shardings = shardings_of(costed.plan, costed.mesh)
        self.rows = costed.plan.value_sharding
        self.value_of = costed.imported.value_of

    def sharding(self, value: mlir.Value) -> Sharding:
        """Sharding of a value of the module as it was read."""
        core = self.value_of.get(value, NO_VALUE)
        return Sharding(self.mesh, ()) if core == NO_VALUE else self.shardings[self.rows[core]]

    def texts(self, values: Iterable[mlir.Value]) -> list[str]:
        """``mhlo.sharding`` of values of the module as it was read."""
        return [to_v2(self.sharding(value)) for value in values]

    def empty(self, value: mlir.Value, own: Sharding, point: mlir.InsertionPoint) -> Carried:
        """Zeros for all trips of a value of the first loop."""
        type_ = mlir.RankedTensorType(value.type)
        sharding = Sharding(own.mesh, ((), *own.dims))
        stacked = mlir.RankedTensorType.get([trips_of(self.pair), *type_.shape], type_.element_type)
        scalar = mlir.RankedTensorType.get([], type_.element_type)
        zero = _replicated_zero(scalar, point, value.location)
        made = _op(
            "stablehlo.broadcast_in_dim",
            stacked,
            [zero],
            {"broadcast_dimensions": mlir.DenseI64ArrayAttr.get([])},
            to_v2(sharding),
            f"[] -> {format_sharding(sharding)}",
            point,
        )
        return Carried(made, sharding)

    def update(
        self,
        stack: mlir.Value,
        value: mlir.Value,
        sharding: Sharding,
        index: mlir.Value,
        point: mlir.InsertionPoint,
    ) -> mlir.Value:
        """Write one trip's value to a stack."""
        type_ = mlir.RankedTensorType(value.type)
        part = mlir.RankedTensorType.get([1, *type_.shape], type_.element_type)
        own = Sharding(sharding.mesh, sharding.dims[1:])
        text = format_sharding(sharding)
        row = _op(
            "stablehlo.reshape",
            part,
            [value],
            {},
            to_v2(sharding),
            f"{format_sharding(own)} -> {text}",
            point,
        )
        zeros = self._zeros(index, len(type_.shape), point)
        scalars = ", ".join(["[]"] * (len(zeros) + 1))
        return _op(
            "stablehlo.dynamic_update_slice",
            stack.type,
            [stack, row, index, *zeros],
            {},
            to_v2(sharding),
            f"{text}, {text}, {scalars} -> {text}",
            point,
        )

    def part(
        self,
        stack: mlir.Value,
        type_: mlir.Type,
        own: Sharding,
        index: mlir.Value,
        point: mlir.InsertionPoint,
    ) -> mlir.Value:
        """Read one trip's value from a stack."""
        shape = mlir.RankedTensorType(type_).shape
        sharding = Sharding(own.mesh, ((), *own.dims))
        zeros = self._zeros(index, len(shape), point)
        text = format_sharding(sharding)
        scalars = ", ".join(["[]"] * (len(zeros) + 1))
        row = _op(
            "stablehlo.dynamic_slice",
            mlir.RankedTensorType.get([1, *shape], mlir.RankedTensorType(type_).element_type),
            [stack, index, *zeros],
            {"slice_sizes": mlir.DenseI64ArrayAttr.get([1, *shape])},
            to_v2(sharding),
            f"{text}, {scalars} -> {text}",
            point,
        )
        return _op(
            "stablehlo.reshape",
            type_,
            [row],
            {},
            to_v2(own),
            f"{text} -> {format_sharding(own)}",
            point,
        )

    def _zeros(self, index: mlir.Value, count: int, point: mlir.InsertionPoint) -> list[mlir.Value]:
        if not count:
            return []
        return [_replicated_zero(index.type, point, index.location)] * count


def _op(
    name: str,
    type_: mlir.Type,
    operands: list[mlir.Value],
    attributes: dict[str, mlir.Attribute],
    sharding: str,
    strategy: str,
    point: mlir.InsertionPoint,
) -> mlir.Value:
    said: dict[str, mlir.Attribute] = {
        MHLO_SHARDING: mlir.StringAttr.get(sharding),
        STRATEGY: mlir.StringAttr.get(strategy),
    }
    made = mlir.Operation.create(
        name, results=[type_], operands=operands, attributes={**attributes, **said}, ip=point
    )
    return made.results[0]


def _replicated_zero(
    scalar: mlir.Type, point: mlir.InsertionPoint, why: mlir.Location
) -> mlir.Value:
    made = zeros(scalar, point, why)
    made.attributes[MHLO_SHARDING] = mlir.StringAttr.get("{replicated}")
    return made.results[0]
