"""Composites become calls of what they are made of."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.importer.rules import registered_rule
from autoshard.ir import mlir


def expand_composites(operations: Sequence[mlir.Operation]) -> bool:
    """Call the decomposition of every composite for which the user registered no rule.

    Returns:
        Whether there was any.
    """
    has_any = False
    for op in operations:
        if op.name == "stablehlo.composite" and registered_rule(op) is None:
            has_any = True
            call = mlir.Operation.create(
                "func.call",
                results=[result.type for result in op.results],
                operands=list(op.operands),
                attributes={"callee": op.attributes["decomposition"]},
                loc=op.location,
                ip=mlir.InsertionPoint(op),
            )
            for old, new in zip(op.results, call.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()
    return has_any
