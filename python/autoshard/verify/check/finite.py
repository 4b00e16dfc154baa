"""Keep a program's numbers finite: what is not a number hides what is wrong.

before  %r = stablehlo.rsqrt %x
after   %a = stablehlo.abs %x
        %r = stablehlo.rsqrt %a

Arguments are drawn, so that a variance may be less than zero and an index out of range, as they
never are in the user's program. Roots, logarithms and powers are taken of magnitudes, and what
stands for rows that are not there is a number, in both forms of the program.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, STRATEGY
from autoshard.ir.types import numpy_type
from autoshard.planned.module import PlannedBlock, PlannedModule, PlannedOp
from autoshard.sharding.hlo_text import to_v2
from autoshard.sharding.text import format_sharding
from autoshard.verify.check.attributes import Constant, set_constant

_OF_POSITIVE = frozenset(
    f"stablehlo.{name}" for name in ("sqrt", "rsqrt", "log", "log_plus_one", "power")
)


_IN_PLACE_OF_NAN = 0.25


def keep_finite(plan: PlannedModule) -> None:
    """Put ``abs`` before ops that take numbers above 0, and a number in place of NaN.

    Args:
        plan: Of a module, which changes; it is of no use afterwards.
    """
    with plan.module.context, mlir.Location.unknown(plan.module.context):
        for function in plan.functions:
            for planned in list(_ops(function.body)):
                if planned.op.name in _OF_POSITIVE:
                    _take_magnitude(planned)
                elif planned.op.name == "stablehlo.constant":
                    _be_a_number(planned.op)


def _ops(block: PlannedBlock) -> Iterable[PlannedOp]:
    for planned in block.ops:
        yield planned
        for inner in planned.blocks:
            yield from _ops(inner)


def _take_magnitude(planned: PlannedOp) -> None:
    op = planned.op
    operands = op.operands
    element = mlir.RankedTensorType(operands[0].type).element_type
    if not isinstance(element, mlir.FloatType):
        return
    attributes: dict[str, mlir.Attribute] = {}
    placement = planned.operands[0] or planned.results[0]
    if placement is not None:
        attributes[MHLO_SHARDING] = mlir.StringAttr.get(to_v2(placement.sharding))
        if planned.operands[0] is not None:
            text = format_sharding(placement.sharding)
            attributes[STRATEGY] = mlir.StringAttr.get(f"{text} -> {text}")
    operands[0] = mlir.Operation.create(
        "stablehlo.abs",
        [operands[0].type],
        [operands[0]],
        attributes,
        loc=op.location,
        ip=mlir.InsertionPoint(op),
    ).results[0]


def _be_a_number(op: mlir.Operation) -> None:
    type_ = mlir.RankedTensorType(op.results[0].type)
    if not isinstance(type_.element_type, mlir.FloatType):
        return
    constant = Constant.of(op)
    if constant.is_splat and constant.first != constant.first:
        values = np.array(_IN_PLACE_OF_NAN).astype(numpy_type(type_.element_type))
        set_constant(op, values, type_)
