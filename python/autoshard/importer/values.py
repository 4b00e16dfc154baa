"""Which value of the core each value of a module is.

One value of the core may be several of the module: arguments and results of a call are its
operands and what the callee returns; block arguments, results and carried values of a loop are
one; an optimization barrier gives what it takes. Values of rank 0 are left out: they are never
split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard import _core
from autoshard.importer.host_values import ValuesOnHost
from autoshard.importer.pinned_values import PinnedValues
from autoshard.importer.value_types import TypeTable, ValueType
from autoshard.ir import mlir


class Values:
    """Values of the core, by numbers; ops of the module go by theirs in the order of a walk."""

    def __init__(
        self,
        operations: Sequence[mlir.Operation],
        builder: _core.ProgramBuilder,
        types: TypeTable,
        pins: PinnedValues,
        host: ValuesOnHost,
    ) -> None:
        self._operations = operations
        self._builder = builder
        self._types = types
        self._pins = pins
        self._host = host
        self._source: dict[mlir.Value, mlir.Value] = {}

    def type_of(self, value: int) -> ValueType:
        """The type of a value of the core."""
        return self._types[self._builder.type_of(value)]

    def operands(self, number: int) -> list[int]:
        """What an op reads."""
        return self._builder.values_of(self._builder.operands(number))

    def results(self, number: int) -> list[int]:
        """What an op makes, once it is read."""
        return self._builder.values_of(self._builder.results(number))

    # New values

    def new(self, value: mlir.Value, op: mlir.Operation, *, is_on_host: bool = False) -> int:
        """A value of the core for one of the module, which ``op`` makes."""
        type_number = self._types.number_of(value, op)
        if not is_on_host:
            return self._builder.new_value(type_number)
        new = self._builder.new_value(self._types.on_host(type_number))
        self._host.add(new)
        return new

    def new_results(self, op: mlir.Operation) -> list[int]:
        """A value of the core for each result."""
        return [self.new(value, op) for value in op.results]

    def resharded(self, value: int, trips: float) -> int:
        """A value of its own in the same memory, as which ``value`` is read."""
        new = self._builder.new_value(self._builder.type_of(value))
        if self._host.was_sent((value,)):
            self._host.add_sent(new)
        elif value in self._host:
            self._host.add(new)
        self.join(value, new, trips)
        return new

    def join(self, source: int, target: int, trips: float) -> None:
        """Say that ``target`` is ``source``, resharded where they are split otherwise."""
        self._builder.join(source, target, trips)

    # Results that are values the core has

    def alias(self, number: int, values: list[int]) -> None:
        """The results of an op are ``values``; they may be pinned."""
        self._builder.alias(number, values)
        self._pins.pin_results(self._operations[number], values)

    def alias_or_copy(self, number: int, values: list[int], trips: float) -> None:
        """As ``alias``, but a value that is pinned otherwise is resharded.

        Shardy's propagation leaves two shardings on barriers and calls of closed values.
        """
        values = list(values)
        for position in self._pins.contradicted(self._operations[number], values):
            values[position] = self.resharded(values[position], trips)
        self.alias(number, values)

    def copy(self, number: int, trips: float) -> tuple[int, int]:
        """A new value for the one result of an op, joined to its operand; both."""
        builder = self._builder
        (source,) = self.operands(number)
        (target,) = self.new_results(self._operations[number])
        self.join(source, target, trips)
        builder.pass_after(builder.operands(number), builder.results(number))
        self.alias(number, [target])
        return source, target

    # Values of the module

    def pass_on(self, sources: Iterable[mlir.Value], targets: Iterable[mlir.Value]) -> None:
        """Say that each of ``targets`` is one of ``sources`` under another name."""
        self._source.update(zip(targets, sources, strict=True))

    def origin(self, value: mlir.Value) -> mlir.Value:
        """What ``value`` is, followed through all that passes it on."""
        while (source := self._source.get(value)) is not None:
            value = source
        return value
