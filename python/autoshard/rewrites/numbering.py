"""Which values of a program are the same, computed twice.

%0 = stablehlo.tanh %x
%1 = stablehlo.optimization_barrier %x
%2 = stablehlo.tanh %1                  // the first value that is the same: %0
"""

from __future__ import annotations

from collections.abc import Hashable

from autoshard.ir import mlir
from autoshard.ir.attributes import (
    CHECKPOINT_NAME,
    MHLO_SHARDING,
    PIN,
    ROUNDED,
    STRATEGY,
    attribute_keys,
    attribute_of,
)
from autoshard.ir.module import module_of
from autoshard.ir.symbols import NAMED_BY, functions_named

_OURS = frozenset((MHLO_SHARDING, STRATEGY, ROUNDED, PIN))
_NAMES = (CHECKPOINT_NAME,)
_CALLEES = tuple(NAMED_BY.values())
"""Attributes that name functions: copies of one function have names of their own."""
_REGIONS = frozenset(("stablehlo.while", "stablehlo.case", "stablehlo.if"))
_STATEFUL = frozenset(
    f"stablehlo.{name}" for name in ("rng", "infeed", "outfeed", "send", "recv", "create_token")
)


class Numbering:
    """Numbers values op by op; barriers give what they take."""

    def __init__(
        self,
        before: Numbering | None = None,
        *,
        joins_loops: bool = False,
        is_planned: bool = False,
    ) -> None:
        """Start from nothing, or from what ``before`` has read.

        Args:
            before: Left as it is.
            joins_loops: May loops, branches and calls be the same as others, too?
            is_planned: Are only ops the same that have the same plan?
        """
        self.number: dict[mlir.Value, Hashable] = {} if before is None else dict(before.number)
        """The first of equal values for each."""
        self.first: dict[Hashable, mlir.Value] = {} if before is None else dict(before.first)
        self.joins_loops = joins_loops if before is None else before.joins_loops
        self._ignored = (*_NAMES, *_CALLEES) if is_planned else (*_OURS, *_NAMES, *_CALLEES)

    def of(self, value: mlir.Value) -> Hashable:
        """The first value that is the same."""
        return self.number.get(value, value)

    def twin(self, value: mlir.Value) -> mlir.Value | None:
        """Another value that is the same, and was read before; None if there is none."""
        found = self.of(value)
        return found if isinstance(found, mlir.Value) and found != value else None

    def read(self, op: mlir.Operation) -> None:
        """Number the results of the next op."""
        if op.name == "stablehlo.optimization_barrier":
            for result, operand in zip(op.results, op.operands, strict=True):
                self.number[result] = self.of(operand)
            return
        key = self._key(op)
        for index, result in enumerate(op.results):
            if key is None:
                self.number[result] = result
            else:
                self.number[result] = self.first.setdefault((key, index), result)

    def _key(self, op: mlir.Operation) -> Hashable | None:
        """The same for ops that compute the same; None for ops that may not be merged."""
        if not self.joins_loops and (op.name in _REGIONS or op.name == "func.call"):
            return None
        return None if _has_effect(op) else self._text(op, {})

    def _text(self, op: mlir.Operation, inside: dict[mlir.Value, Hashable]) -> Hashable:
        """What an op does, with numbers of its own for what is made in regions around it."""
        attributes = attribute_keys(op, but=self._ignored)
        callees = _bodies_of(op)
        operands = tuple(inside[v] if v in inside else self.of(v) for v in op.operands)
        regions: list[Hashable] = []
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    inside[argument] = ("in", len(inside))
                regions.append(tuple(argument.type for argument in block.arguments))
                for inner in block.operations:
                    regions.append(self._text(inner.operation, inside))
                    for result in inner.operation.results:
                        inside[result] = ("in", len(inside))
        types = tuple(result.type for result in op.results)
        return (op.name, attributes, callees, tuple(regions), operands, types)


def _has_effect(op: mlir.Operation) -> bool:
    """Does an op, or one in its regions, do more than make its results?"""
    found = False

    def visit(inner: mlir.Operation) -> mlir.WalkResult:
        nonlocal found
        found = found or has_effect(inner)
        return mlir.WalkResult.INTERRUPT if found else mlir.WalkResult.ADVANCE

    op.walk(visit)
    return found


def has_effect(op: mlir.Operation) -> bool:
    """Does an op do more than make its results, or others each time?"""
    name = op.name
    if name != "stablehlo.custom_call":
        return name in _STATEFUL
    effect = attribute_of(op, "has_side_effect")
    return effect is not None and mlir.BoolAttr(effect).value


def _bodies_of(op: mlir.Operation) -> Hashable:
    """What the functions do that an op names, whatever they are called."""
    names = functions_named(op)
    if not names:
        return ()
    functions = {
        mlir.StringAttr(each.operation.attributes["sym_name"]).value: each.operation
        for each in module_of(op).regions[0].blocks[0].operations
        if each.operation.name == "func.func"
    }
    found: list[str] = []
    for name in names:
        function = functions[name]
        text = function.get_asm(enable_debug_info=False)
        found.append(text[text.index("(") :])  # behind its name
    return tuple(found)
