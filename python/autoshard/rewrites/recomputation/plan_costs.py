"""What ops and values of a planned module cost, wherever they stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from autoshard import _core
from autoshard._core import Place
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import mlir
from autoshard.planned.given_plan import Costed


class PlanCosts:
    """Answers by op of the module, or by value of the core."""

    def __init__(self, costed: Costed) -> None:
        imported, plan = costed.imported, costed.plan
        compiler = costed.cluster.compiler
        memory = _core.memory_tables(imported.program, compiler=compiler.to_core())
        # The core makes these lists anew each time that they are read.
        self.points = memory.points
        """Program point of each op of the core."""
        self.live_ranges = list(memory.live_ranges)
        """Program point at which each value of the core is made, and the first without it or what
        it is rounded to."""
        self.value_sharding, self.op_strategy = plan.value_sharding, plan.op_strategy
        self.shardings, self.strategies = plan.shardings, plan.strategies
        self._op_seconds, self._op_trips = plan.op_seconds, imported.program.op_trips
        self._core_of = {op: number for number, op in enumerate(imported.core_ops)}
        self._moved = _moved_seconds(plan)
        self._sent = _sent_results(plan)
        parts = [
            prod(imported.mesh.axes[axis].size for axes in dims for axis in axes)
            for dims in self.shardings
        ]
        rows = zip(imported.value_shapes, imported.value_bits, self.value_sharding, strict=True)
        self._bytes = [
            prod(shape) * max(bits, 8) / 8 / parts[sharding] for shape, bits, sharding in rows
        ]
        for one in imported.rounded.values():
            (first, last), (_, end) = self.live_ranges[one.source], self.live_ranges[one.result]
            if end > last:
                self.live_ranges[one.source] = first, end
                self._bytes[one.source] = self._bytes[one.result]

    def core_number(self, op: mlir.Operation) -> int:
        """Number of an op in the core; -1 if it is none there."""
        return self._core_of.get(op, -1)

    def seconds_of(self, op: mlir.Operation) -> float:
        """Seconds of all runs of an op in a step, with what it sends."""
        return self.seconds_of_core(self.core_number(op))

    def seconds_of_core(self, number: int) -> float:
        """The same of an op of the core; 0 for -1."""
        if number < 0:
            return 0.0
        return self._op_trips[number] * (self._op_seconds[number] + self._moved.get(number, 0.0))

    def trips_of_core(self, number: int) -> float:
        """How often an op of the core runs in a step; 1 for -1."""
        return 1.0 if number < 0 else float(self._op_trips[number])

    def sends_result(self, op: mlir.Operation) -> bool:
        """Is the result of an op sent?"""
        return self.sends_core(self.core_number(op))

    def sends_core(self, number: int) -> bool:
        """Is the result of an op of the core sent?"""
        return number in self._sent

    def bytes_of(self, core: int) -> float:
        """Bytes of a value of the core on one device."""
        return 0.0 if core == NO_VALUE else self._bytes[core]

    def is_stored(self, core: int) -> bool:
        """Does a value of the core take memory of its own?"""
        return core != NO_VALUE and self.live_ranges[core][1] > self.live_ranges[core][0]


def reshards_sent(plan: _core.CorePlan) -> set[int]:
    """Rows of ``plan.reshards`` that take a collective."""
    return set(plan.collectives.reshard)


def _sent_results(plan: _core.CorePlan) -> set[int]:
    """Ops of the core whose result is sent."""
    places, indices = plan.reshards.place, plan.reshards.index
    return {indices[row] for row in reshards_sent(plan) if places[row] is Place.RESULT}


def _moved_seconds(plan: _core.CorePlan) -> Mapping[int, float]:
    """Op of the core -> seconds of one run of its reshards."""
    table, rows = plan.reshards, plan.collectives
    seconds = [0.0] * len(table)
    for row, one in zip(rows.reshard, rows.seconds, strict=True):
        seconds[row] += one
    found: dict[int, float] = {}
    for where, index, own in zip(table.place, table.index, seconds, strict=True):
        if where is not Place.JOIN:
            found[index] = found.get(index, 0.0) + own
    return found
