"""Ops that hold a program of their own, which no plan cuts."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import _core
from autoshard.errors import ImportModuleError
from autoshard.importer.block_reader import BlockReader
from autoshard.importer.imported_program import NO_VALUE, ManualComputation
from autoshard.importer.pinned_values import PinnedValues
from autoshard.importer.rules import registered_rule
from autoshard.importer.values import Values
from autoshard.ir import mlir, place
from autoshard.ir.attributes import PIN


class WholeOps:
    """Composites with a rule of the user, and manual computations."""

    def __init__(
        self,
        operations: Sequence[mlir.Operation],
        builder: _core.ProgramBuilder,
        values: Values,
        pins: PinnedValues,
        reader: BlockReader,
    ) -> None:
        self._operations = operations
        self._builder = builder
        self._values = values
        self._pins = pins
        self._reader = reader

    def composite(self, number: int, trips: float) -> None:
        """One op; the others have been expanded."""
        op = self._operations[number]
        if registered_rule(op) is None:
            raise ImportModuleError(
                f"composite {op.attributes['name']} is not expanded: run "
                "autoshard-import-strategies before planning.",
                place(op.location),
            )
        self._reader.plain(number, trips)

    def manual_computation(self, number: int, trips: float) -> None:
        """Its in and out shardings are pins."""
        op, builder = self._operations[number], self._builder
        self._reader.manual.append(ManualComputation(op, trips, max(builder.num_ops - 1, 0)))
        if PIN not in op.attributes:
            raise ImportModuleError(
                "manual computation without autoshard.pin: run autoshard-import-strategies before "
                "planning.",
                place(op.location),
            )
        pins = list(mlir.ArrayAttr(op.attributes[PIN]))
        inside, outside = pins[: len(op.operands)], pins[len(op.operands) :]
        for source, pin in zip(self._values.operands(number), inside, strict=True):
            if source != NO_VALUE:
                target = builder.new_value(builder.type_of(source))
                self._values.join(source, target, trips)
                self._pins.pin(target, op, pin)
                builder.set_read(target)
        results = self._values.new_results(op)
        for value, pin in zip(results, outside, strict=True):
            self._pins.pin(value, op, pin)
        builder.alias(number, results)
