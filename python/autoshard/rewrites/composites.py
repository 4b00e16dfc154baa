"""Composites become calls of what they are made of, or the op that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.importer.rules import registered_rule
from autoshard.ir import mlir


def expand_composites(operations: Sequence[mlir.Operation]) -> bool:
    """Call the decomposition of every composite for which the user registered no rule.

    A scan, which ``jax.export`` writes as a composite with a body, becomes ``chlo.scan`` again.

    Returns:
        Whether there was any.
    """
    has_any = False
    for op in operations:
        if op.name != "stablehlo.composite" or registered_rule(op) is not None:
            continue
        has_any = True
        if mlir.StringAttr(op.attributes["name"]).value == _SCAN and len(op.regions[0].blocks):
            made = _scan(op)
        else:
            made = _created(op, "func.call", {"callee": op.attributes["decomposition"]}, 0)
        for old, new in zip(op.results, made.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()
    return has_any


_SCAN = "chlo.scan"


def _scan(op: mlir.Operation) -> mlir.Operation:
    said = mlir.DictAttr(op.attributes["composite_attributes"])
    made = _created(op, _SCAN, {each.name: each.attr for each in said}, 1)
    op.regions[0].blocks[0].append_to(made.regions[0])
    return made


def _created(
    op: mlir.Operation, name: str, attributes: dict[str, mlir.Attribute], regions: int
) -> mlir.Operation:
    """An op with the operands and results of ``op``, before it."""
    return mlir.Operation.create(
        name,
        results=[result.type for result in op.results],
        operands=list(op.operands),
        attributes=attributes,
        regions=regions,
        loc=op.location,
        ip=mlir.InsertionPoint(op),
    )
