"""Ops that return what they take: barriers, constraints and marks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autoshard import _core
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.pinned_values import PinnedValues
from autoshard.importer.values import Values
from autoshard.ir import mlir
from autoshard.ir.attributes import MARK_ROLE, PIN, RESHARDED


class Identities:
    """Their results are the values of their operands, or new ones where they are pinned."""

    def __init__(
        self,
        operations: Sequence[mlir.Operation],
        builder: _core.ProgramBuilder,
        values: Values,
        pins: PinnedValues,
        free_arguments: Collection[int],
    ) -> None:
        self._operations = operations
        self._builder = builder
        self._values = values
        self._pins = pins
        self._free_arguments = free_arguments
        """Values that lie as the marked op wants them that reads them."""

    def barrier(self, number: int, trips: float) -> None:
        """What one operand of a barrier waits for, every result waits for."""
        op, builder = self._operations[number], self._builder
        self._values.pass_on(op.operands, op.results)
        builder.set_after(builder.results(number), builder.wait_for(builder.operands(number)))
        builder.has_barriers = True
        operands = self._values.operands(number)
        for value in operands:
            builder.set_read(value)
        if RESHARDED in op.attributes:
            operands = [
                value if value == NO_VALUE else self._values.resharded(value, trips)
                for value in operands
            ]
        self._values.alias_or_copy(number, operands, trips)

    def constraint(self, number: int, trips: float) -> None:
        """A sharding constraint; without a pin it says nothing."""
        op, builder = self._operations[number], self._builder
        if PIN in op.attributes:
            _, target = self._values.copy(number, trips)
            if not any(True for _ in op.results[0].uses):  # it is there for what it constrains
                builder.set_read(target)
            return
        self._values.pass_on(op.operands, op.results)
        builder.pass_after(builder.operands(number), builder.results(number))
        self._values.alias(number, self._values.operands(number))

    def mark(self, number: int, trips: float) -> None:
        """One on an operand holds for the op that reads it, and for an argument that it is."""
        attributes = self._operations[number].attributes
        source, target = self._values.copy(number, trips)
        if target == NO_VALUE or mlir.StringAttr(attributes[MARK_ROLE]).value != "in":
            return
        self._builder.set_marked(target)
        if source in self._free_arguments and PIN in attributes:
            self._pins.mark_argument(source, target)

    def planned_mark(self, number: int, trips: float) -> None:
        """One whose op has a plan only holds its value."""
        self._values.copy(number, trips)
