"""What is handed over to callees: an argument that is read in one sharding comes in that one."""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.planned.module import (
    Placement,
    PlannedBlock,
    PlannedFunction,
    PlannedModule,
    PlannedOp,
)


def name_of(function: mlir.Operation) -> str:
    """The name of a function."""
    return mlir.StringAttr(function.attributes["sym_name"]).value


def callee_of(call: mlir.Operation) -> str:
    """The name of the function that a ``func.call`` calls."""
    return mlir.FlatSymbolRefAttr(call.attributes["callee"]).value


class Callees:
    """The shardings that callers give the arguments of functions."""

    def __init__(self, plan: PlannedModule) -> None:
        self._functions = {name_of(function.op): function for function in plan.functions}
        self._handed: dict[str, tuple[Placement | None, ...]] = {}

    def arguments(self, name: str) -> tuple[Placement | None, ...]:
        """What a function gets: what all its readers of an argument want, else what is planned."""
        found = self._handed.get(name)
        if found is None:
            function = self._functions[name]
            found = self._handed[name] = (
                function.arguments if function.is_entry else self._only_wishes(function)
            )
        return found

    def operands(self, planned: PlannedOp) -> tuple[Placement | None, ...]:
        """What each operand of an op must be."""
        if planned.op.name != "func.call":
            return planned.operands
        return self.arguments(callee_of(planned.op))

    def _only_wishes(self, function: PlannedFunction) -> tuple[Placement | None, ...]:
        values = [value for value, _ in function.body.arguments]
        wishes: dict[mlir.Value, set[Placement | None]] = {value: set() for value in values}
        self._collect(function.body, wishes)
        return tuple(
            planned if planned is None or len(wishes[value]) != 1 else next(iter(wishes[value]))
            for value, planned in zip(values, function.arguments, strict=True)
        )

    def _collect(
        self, block: PlannedBlock, wishes: dict[mlir.Value, set[Placement | None]]
    ) -> None:
        for planned in block.ops:
            wanted = self.operands(planned)
            for number, operand in enumerate(planned.op.operands):
                if operand in wishes:
                    wishes[operand].add(wanted[number] if number < len(wanted) else None)
            for inner in planned.blocks:
                self._collect(inner, wishes)
