"""Matmuls of experts in files become the kernel that those of Python functions are lowered to.

before  %y = chlo.ragged_dot %rows, %matrices, %sizes
after   %expert_of_row = .. %sizes, and %experts = iota
        %y = stablehlo.composite @autoshard.kernel %rows, %matrices, %expert_of_row, %experts
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir import chlo, mlir, parse_bytes
from autoshard.ir.functions import add_functions
from autoshard.ir.module import functions_of, operations_of
from autoshard.ir.reading import shape_of
from autoshard.ir.symbols import functions_named, functions_reached
from autoshard.ir.types import numpy_type

RAGGED_DOT = "chlo.ragged_dot"


def ragged_dots_as_kernels(
    module: mlir.Module, operations: Sequence[mlir.Operation], platform: str
) -> bool:
    """Call what autoshard lowers ``jax.lax.ragged_dot`` to in place of each ``chlo.ragged_dot``.

    Those with batch dims, or with a strategy of their own, stay what they are, and so do those that
    a composite stands for.

    Args:
        module: Gets the functions that are called.
        operations: Of the module; others are not looked at.
        platform: For which it was lowered.

    Returns:
        Whether there was any.
    """
    found = [op for op in operations if op.name == RAGGED_DOT and _can_be_kernel(op)]
    if not found:
        return False
    inside = _functions_of_composites(module)
    found = [op for op in found if _function_around(op) not in inside]
    for number, op in enumerate(found):
        _replace(module, op, platform, number)
    return bool(found)


def _functions_of_composites(module: mlir.Module) -> set[str]:
    """Functions that composites stand for, and those which these call."""
    functions = functions_of(module)
    return {
        name
        for op in operations_of(module.operation)
        if op.name == "stablehlo.composite"
        for decomposition in functions_named(op)
        for name in functions_reached(functions, decomposition)
    }


def _function_around(op: mlir.Operation) -> str:
    found = op
    while found.name != "func.func":
        assert found.parent is not None
        found = found.parent
    return mlir.StringAttr(found.attributes["sym_name"]).value


def _can_be_kernel(op: mlir.Operation) -> bool:
    has_strategy = any(name.startswith("autoshard.") for name in op.attributes)
    numbers = _numbers(op)
    has_one_group = len(numbers.rhs_group_dimensions) == 1 or not numbers.rhs_group_dimensions
    is_flat = len(shape_of(op.operands[2])) == 1
    return not has_strategy and not numbers.lhs_batching_dimensions and is_flat and has_one_group


def _numbers(op: mlir.Operation) -> chlo.RaggedDotDimensionNumbers:
    return chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])


def _replace(module: mlir.Module, op: mlir.Operation, platform: str, number: int) -> None:
    from autoshard.kernels.ragged_dot import RaggedDot  # imports jax

    numbers = _numbers(op)
    contracted = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
    types = [mlir.RankedTensorType(value.type) for value in (*op.operands, op.results[0])]
    names = [str(numpy_type(type_.element_type)) for type_ in types]
    said = RaggedDot(
        [(type_.shape, name) for type_, name in zip(types[:3], names[:3], strict=True)],
        (
            (contracted, ((), ())),
            numbers.lhs_ragged_dimensions,
            numbers.rhs_group_dimensions,
        ),
        _precision(op),
        names[3],
    )
    lowered = said.lowered(platform)
    other = parse_bytes(lowered, op.context, RAGGED_DOT)
    for inner in operations_of(other.operation):
        inner.location = op.location
    call = mlir.Operation.create(
        "func.call",
        results=[result.type for result in op.results],
        operands=list(op.operands),
        attributes={
            "callee": mlir.FlatSymbolRefAttr.get(
                add_functions(module.operation, other, f"autoshard_ragged_dot_{number}")
            )
        },
        loc=op.location,
        ip=mlir.InsertionPoint(op),
    )
    op.results[0].replace_all_uses_with(call.results[0])
    op.erase()


def _precision(op: mlir.Operation) -> tuple[str, ...] | None:
    """Precision of both operands, as ``jax.lax.Precision`` names it; None: nothing is said."""
    if "precision_config" not in op.attributes:
        return None
    said = [str(each) for each in mlir.ArrayAttr(op.attributes["precision_config"])]
    names = tuple(each.rstrip(">").split()[-1] for each in said)
    return names or None
