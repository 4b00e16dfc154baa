"""Ops that move values to the memory of the host and back, or place what is there."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import _core
from autoshard.importer.block_reader import BlockReader
from autoshard.importer.host_stacks import placed_operands
from autoshard.importer.host_values import ValuesOnHost
from autoshard.importer.value_types import TypeTable
from autoshard.importer.values import Values
from autoshard.ir import mlir
from autoshard.ir.host_memory import PINNED_HOST, moved_to


class HostMoves:
    """Reads them as plain ops whose results have the type that they have on the host."""

    def __init__(
        self,
        operations: Sequence[mlir.Operation],
        builder: _core.ProgramBuilder,
        values: Values,
        types: TypeTable,
        host: ValuesOnHost,
        reader: BlockReader,
    ) -> None:
        self._operations = operations
        self._builder = builder
        self._values = values
        self._types = types
        self._host = host
        self._reader = reader

    def move(self, number: int, trips: float) -> None:
        """To the memory of the host or of the device."""
        op, builder = self._operations[number], self._builder
        (result,) = op.results
        type_number = self._types.number_of(result, op)
        if moved_to(op) == PINNED_HOST:
            self._to_host(number, trips, type_number, is_sent=True)
        else:
            self._reader.plain(number, trips, [type_number])
            (value,), (source,) = self._values.results(number), self._values.operands(number)
            self._host.add_copy_back(value, source)
        if builder.last_added >= 0:
            self._host.add_moves((builder.last_added,))

    def placed(self, number: int, trips: float) -> None:
        """An op that places a part of a value: on the host, if that is there."""
        op = self._operations[number]
        parts = self._values.operands(number)[: len(placed_operands(op))]
        (result,) = op.results
        is_stack = result in self._host.stacks
        if is_stack or self._host.has_any(parts):
            is_sent = is_stack or self._host.was_sent(parts)
            self._to_host(number, trips, self._types.number_of(result, op), is_sent=is_sent)
        else:
            self._reader.plain(number, trips)

    def _to_host(self, number: int, trips: float, type_number: int, *, is_sent: bool) -> None:
        self._reader.plain(number, trips, [self._types.on_host(type_number)])
        (value,) = self._values.results(number)
        if is_sent:
            self._host.add_sent(value)
        else:
            self._host.add(value)
