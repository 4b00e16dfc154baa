"""Ops whose operands and results have one shape, and ops that make values of none."""

from __future__ import annotations

from autoshard.importer.rules import ELEMENTWISE_CHLO
from autoshard.ir import mlir
from autoshard.ir.attributes import (
    IN_HOST_MEMORY,
    MARK,
    PIPELINE_STAGE,
    STAGE_EXCHANGE,
    STAGE_GATHER,
    STAGE_PERMUTE,
    STAGE_SUM,
)
from autoshard.rewrites.lockstep.step import stages_around
from autoshard.verify.check.attributes import cut_constant, shape_of
from autoshard.verify.check.shapes.shapes import Rule, Shapes

IDENTITY_TARGETS = frozenset(
    {"Sharding", MARK, PIPELINE_STAGE, IN_HOST_MEMORY, "annotate_device_placement"}
)
"""Custom calls whose result is their operand."""

_OF_ONE_SHAPE = IDENTITY_TARGETS | {STAGE_PERMUTE, STAGE_SUM}

_ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare"),
        *("complex", "convert", "cosine", "count_leading_zeros", "divide", "exponential"),
        *("exponential_minus_one", "floor", "imag", "is_finite", "log", "log_plus_one"),
        *("logistic", "map", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt"),
        *("power", "real", "reduce_precision", "remainder", "reverse", "round_nearest_afz"),
        *("round_nearest_even", "rsqrt", "select", "shift_left", "shift_right_arithmetic"),
        *("shift_right_logical", "sign", "sine", "sort", "sqrt", "subtract", "tan", "tanh", "xor"),
        "cholesky",
    )
) | {
    *ELEMENTWISE_CHLO,
    *("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier", "sdy.data_flow_edge"),
}
"""Ops of which operands and results of one rank and number have one shape."""


def _elementwise(op: mlir.Operation, shapes: Shapes) -> None:
    """Scalars among the operands (of a clamp or select) are for all elements."""
    rank = len(shape_of(op.results[0]))
    full, *others = [shape for shape in shapes.of_operands(op) if len(shape) == rank]
    for other in others:
        shapes.make_equal(full, other)
    for result in op.results:
        shapes.define(result, full)


def _bitcast(op: mlir.Operation, shapes: Shapes) -> None:
    """One whose elements become wider or narrower has another rank."""
    (shape,) = shapes.of_operands(op)
    if len(shape) == len(shape_of(op.results[0])):
        shapes.define(op.results[0], shape)
    else:
        shapes.keep_all(op)


def _barrier(op: mlir.Operation, shapes: Shapes) -> None:
    for result, shape in zip(op.results, shapes.of_operands(op), strict=True):
        shapes.define(result, shape)


def _constant(op: mlir.Operation, shapes: Shapes) -> None:
    (result,) = op.results
    if isinstance(mlir.RankedTensorType(result.type).element_type, mlir.ComplexType):
        shapes.keep_all(op)
        return
    shape = shapes.fresh(result)
    shapes.define(result, shape)
    if shape:
        shapes.rewrites.append(lambda new: cut_constant(op, [new(size) for size in shape]))


def _iota(op: mlir.Operation, shapes: Shapes) -> None:
    shapes.define(op.results[0], shapes.fresh(op.results[0]))


def _random_bits(op: mlir.Operation, shapes: Shapes) -> None:
    shapes.keep(op.operands[0])
    shapes.define(op.results[0], shapes.of[op.operands[0]])
    shapes.define(op.results[1], shapes.fresh(op.results[1]))


def _custom_call(op: mlir.Operation, shapes: Shapes) -> None:
    target = mlir.StringAttr(op.attributes["call_target_name"]).value
    if target in _OF_ONE_SHAPE and len(op.operands) == 1:
        shapes.define(op.results[0], shapes.of[op.operands[0]])
    elif target == STAGE_GATHER:
        _gather(op, shapes)
    elif target == STAGE_EXCHANGE:
        _exchange(op, shapes)
    else:
        shapes.keep_all(op)


def _gather(op: mlir.Operation, shapes: Shapes) -> None:
    """The first dims of all stages, one behind the other."""
    (first, *others) = shapes.of[op.operands[0]]
    stages = shape_of(op.results[0])[0] // shape_of(op.operands[0])[0]
    shapes.define(op.results[0], (first * stages, *others))


def _exchange(op: mlir.Operation, shapes: Shapes) -> None:
    """The first dim has a part of each stage."""
    shape = shapes.of[op.operands[0]]
    shapes.sizes.keep_cut(shape[0], stages_around(op))
    shapes.define(op.results[0], shape)


RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.optimization_barrier": _barrier,
    "stablehlo.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.rng_bit_generator": _random_bits,
    "stablehlo.custom_call": _custom_call,
}
