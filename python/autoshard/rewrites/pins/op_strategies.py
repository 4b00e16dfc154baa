"""Strategies that stand on an op become marks on its operands and results.

before  %0 = stablehlo.add %a, %b {autoshard.in_strategy = ["(4, 1)", "None"]} ..
after   %m = stablehlo.custom_call @autoshard.mark(%a) {autoshard.layout = "(4, 1)", ..}
        %0 = stablehlo.add %m, %b ..
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.errors import StrategyError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import (
    IN_STRATEGY,
    LAYOUT,
    MARK,
    MARK_GROUP,
    MARK_INDEX,
    MARK_ROLE,
    OUT_STRATEGY,
    text_of,
)


def expand_op_strategies(operations: Sequence[mlir.Operation]) -> bool:
    """Write ``autoshard.in_strategy`` and ``autoshard.out_strategy`` of ops as marks.

    Both are arrays of texts, one an operand or result; ``"None"`` says nothing.

    Returns:
        Whether any op had them.
    """
    has_any = False
    for group, op in enumerate(operations):
        attributes = op.attributes
        if IN_STRATEGY not in attributes and OUT_STRATEGY not in attributes:
            continue
        has_any = True
        for name, role in ((IN_STRATEGY, "in"), (OUT_STRATEGY, "out")):
            if name not in attributes:
                continue
            values = list(op.operands if role == "in" else op.results)
            texts = _texts_of(op, name)
            if len(texts) != len(values):
                raise StrategyError(
                    f"{op.name}: {name} has {len(texts)} strategies, the op has {len(values)} "
                    f'{"operands" if role == "in" else "results"}. Give one each; "None" for those '
                    "you leave open.",
                    place(op.location),
                )
            for index, (text, value) in enumerate(zip(texts, values, strict=True)):
                if text != "None":
                    _insert_mark(op, group, role, index, text, value)
            del op.attributes[name]
    return has_any


def _insert_mark(
    op: mlir.Operation, group: int, role: str, index: int, text: str, value: mlir.Value
) -> None:
    after = mlir.InsertionPoint(op) if role == "in" else mlir.InsertionPoint.after(op)
    mark = mlir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={
            "call_target_name": mlir.StringAttr.get(MARK),
            LAYOUT: mlir.StringAttr.get(text),
            MARK_ROLE: mlir.StringAttr.get(role),
            MARK_GROUP: mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), group),
            MARK_INDEX: mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), index),
        },
        loc=op.location,
        ip=after,
    )
    if role == "in":
        op.operands[index] = mark.results[0]
    else:
        value.replace_all_uses_except(mark.results[0], mark)


def _texts_of(op: mlir.Operation, name: str) -> list[str]:
    """The texts of an array of strings."""
    attribute = op.attributes[name]
    if not isinstance(attribute, mlir.ArrayAttr):
        raise StrategyError(
            f'{op.name}: {name} = {attribute} is no list of texts. Write it as {name} = ["(2, 1)", '
            '"None"].',
            place(op.location),
        )
    return [text_of(text, name, op) for text in attribute]
