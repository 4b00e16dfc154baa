"""Values that are parts of a sum: a dim in front for each mesh axis over which they are added up.

    tensor<4x2xf32>, [{}, {model}]    ->    tensor<8x4x2xf32>, [{data}, {}, {model}]

Each device holds one part, so the new dims are 1 there. An axis that cut another dim, as where the
sum was scattered, cuts the new one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autoshard.ir import mlir
from autoshard.ir.attributes import (
    LEVEL,
    MHLO_SHARDING,
    PIN,
    ROUNDED,
    STAGE,
    STRATEGY,
    attribute_of,
)
from autoshard.sharding import Mesh, Sharding
from autoshard.sharding.hlo_text import result_from_hlo, to_v2_results, tuple_from_hlo
from autoshard.sharding.sharding import AxisRef
from autoshard.sharding.text import OpStrategy

_OPEN = re.compile(r"\[(\{\?\}(, \{\?\})*)?\]")
"""A pin that says nothing."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """One dim in front for each of ``axes``."""

    mesh: Mesh
    axes: tuple[str, ...]

    @property
    def count(self) -> int:
        """Dims in front."""
        return len(self.axes)

    @property
    def sizes(self) -> list[int]:
        """Devices along each of these dims."""
        return [self.mesh.axis_size(axis) for axis in self.axes]

    def type(self, whole: mlir.Type) -> mlir.Type:
        """The type of all parts."""
        tensor = mlir.RankedTensorType(whole)
        return mlir.RankedTensorType.get([*self.sizes, *tensor.shape], tensor.element_type)

    def freed(self, whole: Sharding) -> Sharding:
        """How one part is cut by other axes."""
        return _freed(self, whole)

    def sharding(self, whole: Sharding) -> Sharding:
        """How all parts together are cut."""
        return _sharding_of_parts(self, whole)

    def spread(self, value: mlir.Value, wanted: Sharding, reader: mlir.Operation) -> mlir.Value:
        """What is known on all devices, beside each part, right before its reader.

        Args:
            value: The same for all parts.
            wanted: How its reader wants it.
            reader: Of the parts.
        """
        rank = mlir.RankedTensorType(value.type).rank
        made = mlir.Operation.create(
            "stablehlo.broadcast_in_dim",
            results=[self.type(value.type)],
            operands=[value],
            attributes={
                "broadcast_dimensions": mlir.DenseI64ArrayAttr.get(
                    list(range(self.count, self.count + rank))
                )
            },
            loc=reader.location,
            ip=mlir.InsertionPoint(reader),
        )
        strategy = OpStrategy((self.freed(wanted),), (self.sharding(wanted),))
        write(made, strategy.results, strategy, like=reader)
        return made.results[0]


# Equal layers ask for the same again and again.


@lru_cache(maxsize=4096)
def _freed(blocks: Blocks, whole: Sharding) -> Sharding:
    dims = (tuple(ref for ref in dim if ref.name not in blocks.axes) for dim in whole.dims)
    return Sharding(blocks.mesh, tuple(dims))


@lru_cache(maxsize=4096)
def _sharding_of_parts(blocks: Blocks, whole: Sharding) -> Sharding:
    front = tuple((AxisRef(axis),) for axis in blocks.axes)
    return Sharding(blocks.mesh, (*front, *blocks.freed(whole).dims))


def shardings_of(op: mlir.Operation, mesh: Mesh) -> list[Sharding]:
    """How the results of an op are cut; whole where nothing is said of them."""
    ranks = [mlir.RankedTensorType(result.type).rank for result in op.results]
    if MHLO_SHARDING not in op.attributes:
        return [Sharding.fully_replicated(mesh, rank) for rank in ranks]
    return list(tuple_from_hlo(mlir.StringAttr(op.attributes[MHLO_SHARDING]).value, mesh, ranks))


def sharding_of(op: mlir.Operation, result: int, mesh: Mesh) -> Sharding:
    """As ``shardings_of``, of one result."""
    rank = mlir.RankedTensorType(op.results[result].type).rank
    if MHLO_SHARDING not in op.attributes:
        return Sharding.fully_replicated(mesh, rank)
    text = mlir.StringAttr(op.attributes[MHLO_SHARDING]).value
    return result_from_hlo(text, mesh, result, len(op.results), rank)


def is_pinned(op: mlir.Operation, result: int) -> bool:
    """Does the user say how a result is cut?"""
    if PIN not in op.attributes:
        return False
    return _OPEN.fullmatch(mlir.StringAttr(_pins(op)[result]).value) is None


def open_pins(op: mlir.Operation, results: Collection[int]) -> None:
    """Let an op say nothing of these results, which have their types."""
    if PIN not in op.attributes:
        return
    if len(op.results) == 1:
        del op.attributes[PIN]
        return
    pins = _pins(op)
    for result in results:
        rank = mlir.RankedTensorType(op.results[result].type).rank
        pins[result] = mlir.StringAttr.get(f"[{', '.join(['{?}'] * rank)}]")
    op.attributes[PIN] = mlir.ArrayAttr.get(pins)


def _pins(op: mlir.Operation) -> list[mlir.Attribute]:
    pins = op.attributes[PIN]
    return list(pins) if isinstance(pins, mlir.ArrayAttr) else [pins]


def write(
    op: mlir.Operation,
    shardings: Sequence[Sharding],
    strategy: OpStrategy | None = None,
    *,
    like: mlir.Operation | None = None,
) -> None:
    """Say how the results of an op are cut, and how it works; its stage is that of another op.

    Operands of matmuls that compilers cast are then cast as they lie.
    """
    op.attributes[MHLO_SHARDING] = mlir.StringAttr.get(to_v2_results(shardings))
    if strategy is not None:
        op.attributes[STRATEGY] = mlir.StringAttr.get(str(strategy))
        if ROUNDED in op.attributes:  # it had operands of other shapes
            del op.attributes[ROUNDED]
    for name in (STAGE, LEVEL):
        said = None if like is None else attribute_of(like, name)
        if said is not None:
            op.attributes[name] = said
