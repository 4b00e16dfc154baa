"""Read the functions of a module, op by op."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.ir import mlir
from autoshard.ir.module import functions_of
from autoshard.verify.check.shapes import contractions, elements, parts, views, windows
from autoshard.verify.check.shapes.shapes import Rule, Shape, Shapes

_RULES: dict[str, Rule] = {
    **elements.RULES,
    **views.RULES,
    **parts.RULES,
    **contractions.RULES,
    **windows.RULES,
}


def shapes_of(module: mlir.Module) -> Shapes:
    """The sizes of all values that ``main`` reaches."""
    reader = _Reader(functions_of(module))
    reader.read_function("main")
    return reader.shapes


class _Reader:
    """Has the rules of ops that run others."""

    def __init__(self, functions: Mapping[str, mlir.Operation]) -> None:
        self.shapes = Shapes()
        self._functions = functions
        self._results: dict[str, list[Shape]] = {}
        """Shapes of the results of each function that has been read."""
        self._rules: dict[str, Rule] = {
            **_RULES,
            "stablehlo.while": self._while,
            "stablehlo.case": self._branches,
            "stablehlo.if": self._branches,
            "func.call": self._call,
        }

    def read_function(self, name: str) -> None:
        """Read a function; callers say later what its arguments are."""
        function = self._functions[name]
        self.shapes.functions.append(function)
        (block,) = function.regions[0].blocks
        for argument in block.arguments:
            self.shapes.define(argument, self.shapes.fresh(argument))
        self._results[name] = self._read_block(block)

    def _read_block(self, block: mlir.Block) -> list[Shape]:
        """Read all ops; the shapes of what the last one returns."""
        *ops, last = [op.operation for op in block.operations]
        for op in ops:
            rule = self._rules.get(op.name, _without_rule)
            rule(op, self.shapes)
        return [self.shapes.of.get(value, ()) for value in last.operands]

    def _call(self, op: mlir.Operation, shapes: Shapes) -> None:
        name = mlir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if name not in self._results:
            self.read_function(name)
        (block,) = self._functions[name].regions[0].blocks
        for operand, argument in zip(op.operands, block.arguments, strict=True):
            shapes.make_equal(shapes.of[operand], shapes.of[argument])
        for result, shape in zip(op.results, self._results[name], strict=True):
            shapes.define(result, shape)

    def _while(self, op: mlir.Operation, shapes: Shapes) -> None:
        carried = shapes.of_operands(op)
        for region in op.regions:
            (block,) = region.blocks
            for argument, shape in zip(block.arguments, carried, strict=True):
                shapes.define(argument, shape)
        condition, body = op.regions
        self._read_block(condition.blocks[0])
        for shape, yielded in zip(carried, self._read_block(body.blocks[0]), strict=True):
            shapes.make_equal(shape, yielded)
        for result, shape in zip(op.results, carried, strict=True):
            shapes.define(result, shape)

    def _branches(self, op: mlir.Operation, shapes: Shapes) -> None:
        first, *others = [self._read_block(region.blocks[0]) for region in op.regions]
        for other in others:
            for mine, theirs in zip(first, other, strict=True):
                shapes.make_equal(mine, theirs)
        for result, shape in zip(op.results, first, strict=True):
            shapes.define(result, shape)


def _without_rule(op: mlir.Operation, shapes: Shapes) -> None:
    shapes.keep_all(op)
