"""What of a program is found to be on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from autoshard import _core
from autoshard.importer.imported_program import NO_VALUE, HostValues
from autoshard.ir import mlir

COPIES_AT_A_TIME = 4
"""From the memory of the host: so many have been seen to start before the last loop, or at
the start of the step, whatever orders them (docs/use/host.md). Counted are the largest."""


class ValuesOnHost:
    """Values in the memory of the host, ops that move them, and ops that the host computes."""

    def __init__(self, builder: _core.ProgramBuilder, stacks: Collection[mlir.Value]) -> None:
        self.stacks = stacks
        """Stacks of loops, and what they start with (``host_stacks``): values of the module."""
        self._builder = builder
        self._values: set[int] = set()
        self._moves: list[int] = []
        self._ops: list[int] = []
        self._loaded: list[int] = []
        self._sent: set[int] = set()

    def __contains__(self, value: int) -> bool:
        return value in self._values

    def has_any(self, values: Iterable[int]) -> bool:
        """Whether one of ``values`` is there."""
        return not self._values.isdisjoint(values)

    def add(self, value: int) -> None:
        """Say that ``value`` is there."""
        if value != NO_VALUE:
            self._values.add(value)
            self._builder.set_on_host(value)

    def add_sent(self, value: int) -> None:
        """Say that the program sends ``value`` there: it cannot come back before it was made."""
        if value != NO_VALUE:
            self.add(value)
            self._sent.add(value)

    def was_sent(self, values: Iterable[int]) -> bool:
        """Whether one of ``values`` is there because the program sends it."""
        return not self._sent.isdisjoint(values)

    def add_moves(self, ops: Iterable[int]) -> None:
        """Say that ops of the core move a value there or back."""
        self._moves.extend(ops)

    def add_ops(self, ops: Iterable[int]) -> None:
        """Say that the host computes ops of the core."""
        self._ops.extend(ops)

    def add_copy_back(self, value: int, source: int) -> None:
        """Say that ``value`` is ``source``, which is there, copied to the memory of the device."""
        if value != NO_VALUE and source not in self._sent:
            self._loaded.append(value)

    def first_copied_back(self, bits: Callable[[int], int]) -> list[int]:
        """Values that are copied to the device's memory before anything waits for them.

        Arguments, and parts of these: what the program sends there is made first.

        Args:
            bits: Of a value of the core.
        """
        return sorted(self._loaded, key=bits, reverse=True)[:COPIES_AT_A_TIME]

    def found(self) -> HostValues:
        """All of it."""
        return HostValues(frozenset(self._values), tuple(self._moves), tuple(self._ops))
