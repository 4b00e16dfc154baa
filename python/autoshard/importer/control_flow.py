"""Calls, loops and branches: ops whose regions are read block by block."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import _core
from autoshard.errors import ImportModuleError
from autoshard.importer.block_reader import BlockReader
from autoshard.importer.host_values import ValuesOnHost
from autoshard.importer.imported_program import NO_VALUE, FunctionValues
from autoshard.importer.loops import trip_count
from autoshard.importer.values import Values
from autoshard.ir import mlir, place, users_place
from autoshard.ir.attributes import SAID_TRIPS
from autoshard.ir.host_memory import runs_on_host
from autoshard.ir.reading import ints


class ControlFlow:
    """Follows calls from ``main`` on, and counts how often loops run."""

    def __init__(
        self,
        operations: Sequence[mlir.Operation],
        builder: _core.ProgramBuilder,
        values: Values,
        host: ValuesOnHost,
        reader: BlockReader,
        unknown_trip_count: int,
    ) -> None:
        self.called: list[FunctionValues] = []
        self.loops: list[_core.Loop] = []
        self.assumed_loops: list[str] = []
        """Places of loops whose trip count is not known."""
        self._operations = operations
        self._builder = builder
        self._values = values
        self._host = host
        self._reader = reader
        self._unknown_trip_count = unknown_trip_count
        self._functions = _numbers_of_functions(operations, builder)
        self._open: list[int] = []

    def main(self) -> int:
        """The number of the function that is called from outside.

        Raises:
            ImportModuleError: There is none, or it has no body.
        """
        number = self._functions.get("main")
        if number is None:
            found = ", ".join(sorted(self._functions)) or "none"
            raise ImportModuleError(
                f"no function main; functions: {found}. Rename the entry function to main.",
                place(self._operations[0].location),
            )
        main = self._operations[number]
        _check_has_body(main, main)
        return number

    def body(self, function: int, arguments: list[int], trips: float) -> list[int]:
        """Read a function that is called with ``arguments``; what it returns."""
        (block,) = self._builder.blocks(function)
        self._open.append(function)
        self._reader.read(block, arguments, trips)
        self._open.pop()
        return self._values.operands(block.last_op)

    def call(self, number: int, trips: float) -> None:
        """The callee is read as a part of the program."""
        op, builder, values = self._operations[number], self._builder, self._values
        callee = self._functions[mlir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        function = self._operations[callee]
        _check_has_body(function, op)
        if callee in self._open:
            raise ImportModuleError(
                "a function that calls itself cannot be planned: nobody knows how often. Write a"
                " stablehlo.while.",
                place(op.location),
            )
        (block,) = builder.blocks(callee)
        values.pass_on(op.operands, function.regions[0].blocks[0].arguments)
        builder.pass_after(builder.operands(number), block.arguments)
        before, is_on_host = builder.num_ops, runs_on_host(op)
        builder.host_depth += is_on_host
        arguments = values.operands(number)
        results = self.body(callee, arguments, trips)
        builder.host_depth -= is_on_host
        self.called.append(FunctionValues(function, arguments, results))
        if is_on_host:
            self._host.add_ops(range(before, builder.num_ops))
        values.pass_on(self._operations[block.last_op].operands, op.results)
        builder.pass_after(builder.operands(block.last_op), builder.results(number))
        values.alias_or_copy(number, results, trips)

    def loop(self, number: int, trips: float) -> None:
        """Carried values are one value of the core, inside of the loop and behind it."""
        op, builder, values = self._operations[number], self._builder, self._values
        condition, body = builder.blocks(number)
        inside = op.regions[1].blocks[0].arguments
        carried = [
            values.new(value, op, is_on_host=argument in self._host.stacks)
            for value, argument in zip(op.results, inside, strict=True)
        ]
        for value, argument in zip(carried, inside, strict=True):
            if argument in self._host.stacks:  # which the program sends
                self._host.add_sent(value)
        for initial, target in zip(values.operands(number), carried, strict=True):
            values.join(initial, target, trips)
        # Walk the body once before its trip count is known: calls inside must be followed first.
        first, rounded, first_manual = builder.mark(), builder.num_rounded, len(self._reader.manual)
        self._reader.read(condition, carried, 1.0)
        self._reader.read(body, carried, 1.0)
        builder.forget_rounded(rounded)
        yielded = values.operands(body.last_op)
        for source, target in zip(yielded, carried, strict=True):
            values.join(source, target, 1.0)
        count = self._trip_count(op)
        builder.scale_trips(first, trips * count)
        self._reader.scale_manual(first_manual, trips * count)
        builder.set_after(builder.results(number), builder.num_ops - 1)
        builder.set_makers(carried, builder.num_ops - 1)
        kept = [slot for slot, target in enumerate(carried) if target != NO_VALUE]
        self.loops.append(
            _core.Loop(
                first.op,
                builder.num_ops,
                float(count),
                [carried[slot] for slot in kept],
                [NO_VALUE if yielded[s] == carried[s] else yielded[s] for s in kept],
            )
        )
        values.alias(number, carried)

    def branches(self, number: int, trips: float) -> None:
        """Any branch may run: each is counted."""
        builder, values = self._builder, self._values
        results = values.new_results(self._operations[number])
        for block in builder.blocks(number):
            rounded = builder.num_rounded
            self._reader.read(block, [], trips)
            builder.forget_rounded(rounded)
            for yielded, target in zip(values.operands(block.last_op), results, strict=True):
                values.join(yielded, target, trips)
        builder.set_after(builder.results(number), builder.num_ops - 1)
        values.alias(number, results)

    def _trip_count(self, loop: mlir.Operation) -> int:
        count = trip_count(loop, self._values.origin)
        if count is None and SAID_TRIPS in loop.attributes:
            (count,) = ints(loop, SAID_TRIPS, ())
        if count is None:
            self.assumed_loops.append(users_place(loop.location) or loop.name)
            return self._unknown_trip_count
        return count


def _numbers_of_functions(
    operations: Sequence[mlir.Operation], builder: _core.ProgramBuilder
) -> dict[str, int]:
    """The functions of the module by name."""
    found: dict[str, int] = {}
    (block,) = builder.blocks(0)
    number = block.first_op
    while number <= block.last_op:
        op = operations[number]
        if op.name == "func.func":
            found[mlir.StringAttr(op.attributes["sym_name"]).value] = number
        number = builder.end(number)
    return found


def _check_has_body(function: mlir.Operation, caller: mlir.Operation) -> None:
    if not len(function.regions[0].blocks):
        name = mlir.StringAttr(function.attributes["sym_name"]).value
        raise ImportModuleError(
            f"function {name} has no body: it cannot be planned. Define it in the module.",
            place(caller.location),
        )
