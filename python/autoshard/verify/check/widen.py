"""Compute a program's floating-point numbers in double precision.

Partitioners split most ops alike whatever their numbers are, so the program can be computed in
numbers that leave rounding far below a mistake: 2^-52 of a value instead of 2^-8 of a bfloat16.

before  %y = stablehlo.convert %x : (tensor<8xf32>) -> tensor<8xbf16>
after   %y = stablehlo.convert %x : (tensor<8xf64>) -> tensor<8xf64>

Some ops are split in another way if they are of double precision: those are of single precision,
between two conversions. Where bits are looked at, values keep their types.
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.ir import mlir
from autoshard.ir.module import functions_of, operations_of
from autoshard.ir.types import element_bits, numpy_type
from autoshard.verify.check.attributes import Constant, set_constant
from autoshard.verify.check.scale import set_function_type
from autoshard.verify.check.shapes.elements import IDENTITY_TARGETS

_MANTISSA_BITS, _EXPONENT_BITS = 52, 11

_SINGLE = frozenset({"stablehlo.select_and_scatter", "stablehlo.sort", "chlo.top_k"})
"""XLA's partitioner has ways to split these for floats of at most 32 bits. Of jaxlib 0.10.2, which
splits the gradient of a max pool wrongly in single precision, and gathers it in double."""

_TypeMap = Callable[[mlir.Type], mlir.Type]


def rounds(module: mlir.Module) -> bool:
    """Whether there is an op that adds up in single precision, when ``module`` is widened."""
    return any(op.name == "stablehlo.select_and_scatter" for op in operations_of(module.operation))


def widen(module: mlir.Module) -> None:
    """Let every float of ``module`` be a float64, every complex number two of them.

    Args:
        module: Without a plan, or exported: conversions have no strategy.
    """
    with module.context, mlir.Location.unknown(module.context):
        ops = operations_of(module.operation)
        held = {value for op in ops for value in _converted_around(op)}
        known: dict[mlir.Type, mlir.Type] = {}
        for op in ops:
            for value in _values(op):
                type_ = value.type
                wide = known.get(type_)
                if wide is None:
                    wide = known[type_] = _double(type_)
                if wide != type_ and value not in held:
                    value.set_type(wide)
            rewrite = _ATTRIBUTES.get(op.name)
            if rewrite is not None:
                rewrite(op)
        for function in functions_of(module).values():
            if len(function.regions[0].blocks):
                set_function_type(function)


def _converted_around(op: mlir.Operation) -> list[mlir.Value]:
    """Put conversions around an op that is not of double precision; the values that are not, then.

    What is inside of it gets its types.
    """
    narrow = _types_in(op)
    if narrow is None:
        return []
    held: list[mlir.Value] = []
    operands = op.operands
    for index, operand in enumerate(list(operands)):
        if _double(operand.type) != operand.type:
            before = _convert(operand, narrow(operand.type), op, mlir.InsertionPoint(op))
            operands[index] = before.results[0]
            held.append(before.results[0])
    for result in op.results:
        wide = _double(result.type)
        if wide != result.type:
            result.set_type(narrow(result.type))
            behind = _convert(result, wide, op, mlir.InsertionPoint.after(op))
            result.replace_all_uses_except(behind.results[0], behind)
            held.append(result)
    for inner in operations_of(op) if len(op.regions) else ():
        for value in _inner_values(op, inner):
            if _double(value.type) != value.type:
                value.set_type(narrow(value.type))
                held.append(value)
    return held


def _inner_values(op: mlir.Operation, inner: mlir.Operation) -> list[mlir.Value]:
    return [value for value in _values(inner) if inner != op or value.owner != op]


def _convert(
    value: mlir.Value, type_: mlir.Type, op: mlir.Operation, where: mlir.InsertionPoint
) -> mlir.Operation:
    return mlir.Operation.create("stablehlo.convert", [type_], [value], loc=op.location, ip=where)


def _values(op: mlir.Operation) -> list[mlir.Value]:
    arguments = [
        argument for region in op.regions for block in region.blocks for argument in block.arguments
    ]
    return [*op.results, *arguments]


def _types_in(op: mlir.Operation) -> _TypeMap | None:
    """What an op makes of types; None: it is of double precision."""
    if op.name == "stablehlo.bitcast_convert":
        return _kept
    if op.name == "stablehlo.custom_call":
        target = mlir.StringAttr(op.attributes["call_target_name"]).value
        return None if target in IDENTITY_TARGETS | _PARTITIONERS else _kept
    return _single if op.name in _SINGLE else None


_PARTITIONERS = frozenset({"SPMDFullToShardShape", "SPMDShardToFullShape"})


def _kept(type_: mlir.Type) -> mlir.Type:
    return type_


def _single(type_: mlir.Type) -> mlir.Type:
    element = mlir.RankedTensorType(type_).element_type
    is_narrow = isinstance(element, mlir.FloatType) and element_bits(element) < 32
    return _with_floats(type_, mlir.F32Type.get()) if is_narrow else type_


def _double(type_: mlir.Type) -> mlir.Type:
    return _with_floats(type_, mlir.F64Type.get())


def _with_floats(type_: mlir.Type, number: mlir.Type) -> mlir.Type:
    if not isinstance(type_, mlir.RankedTensorType):
        return type_
    tensor = mlir.RankedTensorType(type_)
    element = tensor.element_type
    if isinstance(element, mlir.FloatType):
        element = number
    elif isinstance(element, mlir.ComplexType):
        element = mlir.ComplexType.get(number)
    return mlir.RankedTensorType.get(tensor.shape, element, tensor.encoding)


def _widen_constant(op: mlir.Operation) -> None:
    """To the type that the result has by now."""
    type_ = mlir.RankedTensorType(op.results[0].type)
    dtype = numpy_type(type_.element_type)
    if dtype.kind not in "fc":
        return
    constant = Constant.of(op)
    if constant.type != type_:
        set_constant(op, constant.values.astype(dtype), type_)


def _widen_precision(op: mlir.Operation) -> None:
    """A reduced precision would be rounding again."""
    int32 = mlir.IntegerType.get_signless(32)
    op.attributes["exponent_bits"] = mlir.IntegerAttr.get(int32, _EXPONENT_BITS)
    op.attributes["mantissa_bits"] = mlir.IntegerAttr.get(int32, _MANTISSA_BITS)


def _drop_algorithm(op: mlir.Operation) -> None:
    """It names the types that a matmul is computed in."""
    if "algorithm" in op.attributes:
        del op.attributes["algorithm"]


_ATTRIBUTES = {
    "stablehlo.constant": _widen_constant,
    "stablehlo.reduce_precision": _widen_precision,
    "stablehlo.dot_general": _drop_algorithm,
}
"""Changes of ops whose attributes hold numbers, or say how numbers are computed."""
