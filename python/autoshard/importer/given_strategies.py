"""Strategies that ops carry when they are imported."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import _core
from autoshard.errors import StrategyError
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.pinned_values import PinnedValues
from autoshard.ir import mlir, place
from autoshard.ir.attributes import PIN, STRATEGY
from autoshard.sharding import Mesh, OpStrategy


class GivenStrategies:
    """An op takes its operands, and makes its results, as its strategy says."""

    def __init__(self, builder: _core.ProgramBuilder, pins: PinnedValues, mesh: Mesh) -> None:
        self._builder = builder
        self._pins = pins
        self._mesh = mesh

    def hold(
        self,
        op: mlir.Operation,
        core_op: int,
        operands: Sequence[int],
        results: Sequence[int],
        trips: float,
    ) -> None:
        """Pin the operands and results of an op that the builder has read.

        Raises:
            StrategyError: The strategy is not one of this op.
        """
        text = mlir.StringAttr(op.attributes[STRATEGY]).value
        strategy = OpStrategy.parse(text, self._mesh)
        if len(strategy.operands) != len(operands) or len(strategy.results) != len(results):
            raise StrategyError(
                f'{op.name}: strategy "{text}" has {len(strategy.operands)} operands and '
                f"{len(strategy.results)} results, the op has {len(operands)} and {len(results)}.",
                place(op.location),
            )
        held = list(operands)
        for index, (value, sharding) in enumerate(zip(operands, strategy.operands, strict=True)):
            if self._is_placed(value):
                held[index] = self._builder.new_value(self._builder.type_of(value))
                self._builder.join(value, held[index], trips)
                self._pins.pin_sharding(held[index], op, sharding)
        if PIN not in op.attributes:
            for value, sharding in zip(results, strategy.results, strict=True):
                if self._is_placed(value):
                    self._pins.pin_sharding(value, op, sharding)
        self._builder.set_operands(core_op, held, [value != NO_VALUE for value in held])

    def _is_placed(self, value: int) -> bool:
        return value != NO_VALUE and not self._builder.is_free(value)
