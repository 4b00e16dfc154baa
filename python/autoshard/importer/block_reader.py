"""Ops of a block, one after the other: plain ones are read here, all others have a handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autoshard import _core
from autoshard.importer.core_rules import RuleTable
from autoshard.importer.given_strategies import GivenStrategies
from autoshard.importer.imported_program import ManualComputation
from autoshard.importer.matmul_precision import MatmulPrecision
from autoshard.importer.pinned_values import PinnedValues
from autoshard.importer.value_types import NO_TYPE, TypeTable
from autoshard.importer.values import Values
from autoshard.importer.work import MADE_OF_NOTHING
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, PIN, STRATEGY, custom_call_target
from autoshard.ir.constants import is_zeros
from autoshard.ir.one_device import is_maximal

Handler = Callable[[int, float], None]
"""Reads the op of a number, which runs so often."""

_MOVES = frozenset(
    f"stablehlo.{name}" for name in ("convert", "transpose", "reshape", "broadcast_in_dim")
)
"""Ops that only rename or move elements: a mark reaches its main op through them."""


class BlockReader:
    """Gives the builder the ops of blocks."""

    def __init__(
        self,
        operations: Sequence[mlir.Operation],
        builder: _core.ProgramBuilder,
        values: Values,
        pins: PinnedValues,
        types: TypeTable,
        rules: RuleTable,
        strategies: GivenStrategies | None,
        precision: MatmulPrecision,
    ) -> None:
        self._operations = operations
        self._builder = builder
        self._values = values
        self._pins = pins
        self._types = types
        self._rules = rules
        self._strategies = strategies
        self._precision = precision
        self._handlers: dict[str, Handler] = {"stablehlo.custom_call": self._custom_call}
        self._of_targets: dict[str, Handler] = {}
        self._placed: dict[str, int] = {}
        self._one_device_classes: set[int] = set()
        self.manual: list[ManualComputation] = []
        """Those that were read."""
        if precision.rounds:
            firsts = enumerate(builder.first_ops)
            builder.round_operands_of(
                [n for n, op in firsts if precision.rounds_operands(operations[op])]
            )

    def register(
        self,
        handlers: Mapping[str, Handler],
        of_targets: Mapping[str, Handler] | None = None,
        placed: Mapping[str, int] | None = None,
    ) -> None:
        """Say who reads ops that are not plain.

        Args:
            handlers: By name.
            of_targets: Of custom calls, by target.
            placed: Names of those that are plain where none of so many operands is on the host.
        """
        self._handlers |= handlers
        self._of_targets |= of_targets or {}
        self._placed |= placed or {}

    def scale_manual(self, first: int, factor: float) -> None:
        """Let manual computations from number ``first`` on run so many times as often."""
        for number in range(first, len(self.manual)):
            one = self.manual[number]
            self.manual[number] = replace(one, trips=factor * one.trips)

    def read(self, block: _core.RegionBlock, arguments: list[int], trips: float) -> None:
        """Read the ops of a block whose arguments are these values of the core."""
        builder = self._builder
        # The last op says what leaves the block; who reads that says whether it is read.
        number, end = block.first_op, block.last_op
        builder.bind(block.arguments, arguments)
        while True:
            number = builder.add_plain(
                number, end, trips, self._op_class, self._rule, self._rounding
            )
            if number == end:
                return
            self._handlers.get(self._operations[number].name, self.plain)(number, trips)
            number = builder.end(number)

    def plain(self, number: int, trips: float, result_types: list[int] | None = None) -> None:
        """An op whose regions, if it has any, compute single elements.

        Nearly all ops are; those without pins the builder reads by itself.
        """
        op, builder = self._operations[number], self._builder
        builder.add(number, trips, self._op_class, self._rule, self._rounding, result_types)
        results = self._values.results(number)
        self._pins.pin_results(op, results)
        core_op = builder.last_added
        if self._strategies and STRATEGY in op.attributes and core_op >= 0:
            operands = builder.operands_of(core_op)
            self._strategies.hold(op, core_op, operands, results, trips)

    def on_one_device(self, numbers: Sequence[int]) -> frozenset[int]:
        """Positions in ``numbers`` of ops that one device runs."""
        if not self._one_device_classes:
            return frozenset()
        class_of = self._builder.class_of
        return frozenset(
            position
            for position, number in enumerate(numbers)
            if class_of(number) in self._one_device_classes
        )

    def _custom_call(self, number: int, trips: float) -> None:
        target = custom_call_target(self._operations[number]) or ""
        self._of_targets.get(target, self.plain)(number, trips)

    def _op_class(self, number: int) -> _core.OpClass:
        """What the core's ``OpClass`` says of an op and all that are like it."""
        op = self._operations[number]
        name, attributes = op.name, op.attributes
        has_strategy = self._strategies is not None and STRATEGY in attributes
        if MHLO_SHARDING in attributes and is_maximal(attributes[MHLO_SHARDING]):
            self._one_device_classes.add(self._builder.class_of(number))
        is_pinned = PIN in attributes or has_strategy
        return _core.OpClass(
            is_special=name in self._handlers or is_pinned,
            num_placed=0 if is_pinned else self._placed.get(name, 0),
            is_free=name in MADE_OF_NOTHING,
            is_broadcast=name == "stablehlo.broadcast_in_dim",
            only_moves=name in _MOVES,
            is_cast=self._precision.rounds and name == "stablehlo.convert",
            is_zero=is_zeros(op),
            is_update=name == "stablehlo.dynamic_update_slice",
            is_sum=name == "stablehlo.add",
            result_types=[self._types.number_of(value, op) for value in op.results],
        )

    def _rule(self, number: int, operand_types: Sequence[int], result_types: Sequence[int]) -> int:
        op = self._operations[number]
        return self._rules.number_of(
            op,
            operand_types,
            result_types,
            is_on_host=self._builder.host_depth > 0,
            products=self._precision.products(op),
        )

    def _rounding(self, type_number: int) -> tuple[int, int]:
        rounded = self._types.rounded(type_number)
        if rounded == NO_TYPE:
            return NO_TYPE, -1
        return rounded, self._rules.of_cast(type_number, rounded)
