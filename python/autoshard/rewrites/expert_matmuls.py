"""Matmuls of experts in files become the kernel that those of Python functions are lowered to.

before  %y = chlo.ragged_dot %rows, %matrices, %sizes
        %z = stablehlo.custom_call @tpu_custom_call(%count, %starts, .., %rows, %matrices)
after   %expert_of_row = .. %sizes, and %experts = iota
        %y = stablehlo.composite @autoshard.kernel %rows, %matrices, %expert_of_row, %experts
        %z = such a composite, too, where the kernel is a grouped matmul of megablox
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoshard.ir import chlo, mlir, parse_bytes
from autoshard.ir.functions import add_functions
from autoshard.ir.module import functions_of, operations_of
from autoshard.ir.reading import shape_of
from autoshard.ir.symbols import functions_named, functions_reached
from autoshard.ir.types import numpy_type
from autoshard.kernels.grouped_matmuls import READ, Form, form_in

Array = tuple[Sequence[int], str]
"""Shape and type."""

RAGGED_DOT = "chlo.ragged_dot"
EXPERT_MATMULS = {RAGGED_DOT, "stablehlo.custom_call"}
"""Ops that may be a matmul of experts."""
_PLATFORM = "tpu"
"""Platform of grouped matmuls."""


def expert_matmuls_as_kernels(
    module: mlir.Module, operations: Sequence[mlir.Operation], platform: str | None
) -> bool:
    """Call what autoshard lowers ``jax.lax.ragged_dot`` to in place of each ``chlo.ragged_dot``.

    And the kernel of a grouped matmul in place of each that a TPU would run.

    Those with batch dims, or with a strategy of their own, stay what they are, and so do those that
    a composite stands for, and those in manual computations.

    Args:
        module: Gets the functions that are called.
        operations: Of the module; others are not looked at.
        platform: For which it was lowered; None: nobody knows, and ``chlo.ragged_dot`` stays.

    Returns:
        Whether there was any.
    """
    found = [each for op in operations if (each := _found(op, platform)) is not None]
    if not found:
        return False
    inside = _functions_of_others(module)
    found = [each for each in found if _function_around(each.op) not in inside]
    lowered: dict[object, bytes] = {}
    for number, each in enumerate(found):
        _replace(module, each, f"autoshard_experts_{number}", lowered)
    return bool(found)


@dataclass(frozen=True)
class _Found:
    """A matmul of experts."""

    op: mlir.Operation
    operands: Sequence[mlir.Value]
    """What the kernel is made from."""
    kind: object
    """Equal for those that differ in operands and result alone."""
    lowered: Callable[[Sequence[Array]], bytes]
    """A module that calls the kernel, by the types of operands and result."""


def _found(op: mlir.Operation, platform: str | None) -> _Found | None:
    if _has_strategy(op):
        return None
    if op.name == RAGGED_DOT and platform is not None and _can_be_kernel(op):
        kind = tuple(op.attributes[name] for name in op.attributes)
        lowered = functools.partial(_lowered_ragged_dot, op, platform)
        return _Found(op, list(op.operands), kind, lowered)
    if platform in (None, _PLATFORM) and (form := form_in(op)) is not None:
        operands = [op.operands[each] for each in READ]
        return _Found(op, operands, form, functools.partial(_lowered_grouped_matmul, form))
    return None


def _has_strategy(op: mlir.Operation) -> bool:
    return any(name.startswith("autoshard.") for name in op.attributes)


def _functions_of_others(module: mlir.Module) -> set[str]:
    """Functions that composites stand for or manual computations call, and what these call."""
    functions = functions_of(module)
    operations = operations_of(module.operation)
    callers = [op for op in operations if op.name == "stablehlo.composite"]
    for op in operations:
        if op.name == "sdy.manual_computation":
            callers += operations_of(op)
    return {
        name
        for op in callers
        for called in functions_named(op)
        for name in functions_reached(functions, called)
    }


def _function_around(op: mlir.Operation) -> str:
    found = op
    while found.name != "func.func":
        assert found.parent is not None
        found = found.parent
    return mlir.StringAttr(found.attributes["sym_name"]).value


def _can_be_kernel(op: mlir.Operation) -> bool:
    numbers = _numbers(op)
    has_one_group = len(numbers.rhs_group_dimensions) == 1 or not numbers.rhs_group_dimensions
    is_flat = len(shape_of(op.operands[2])) == 1
    return not numbers.lhs_batching_dimensions and is_flat and has_one_group


def _numbers(op: mlir.Operation) -> chlo.RaggedDotDimensionNumbers:
    return chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])


def _lowered_ragged_dot(op: mlir.Operation, platform: str, arrays: Sequence[Array]) -> bytes:
    from autoshard.kernels.ragged_dot import RaggedDot  # imports jax

    numbers = _numbers(op)
    contracted = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
    *operands, (_, made) = arrays
    dims = (contracted, ((), ())), numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    return RaggedDot(operands, dims, _precision(op), made).lowered(platform)


def _lowered_grouped_matmul(form: Form, arrays: Sequence[Array]) -> bytes:
    from autoshard.kernels.megablox import GroupedMatmul  # imports jax

    return GroupedMatmul(form, arrays[-1][1], False).lowered(arrays, _PLATFORM)


def _replace(module: mlir.Module, found: _Found, name: str, lowered: dict[object, bytes]) -> None:
    """Call the kernel in place of an op; ``lowered`` are modules that were made before."""
    op = found.op
    types = [mlir.RankedTensorType(value.type) for value in (*found.operands, op.results[0])]
    key = found.kind, *types
    if key not in lowered:
        arrays = [(type_.shape, str(numpy_type(type_.element_type))) for type_ in types]
        lowered[key] = found.lowered(arrays)
    other = parse_bytes(lowered[key], op.context, name)
    for inner in operations_of(other.operation):
        inner.location = op.location
    callee = mlir.FlatSymbolRefAttr.get(add_functions(module.operation, other, name))
    call = mlir.Operation.create(
        "func.call",
        results=[result.type for result in op.results],
        operands=list(found.operands),
        attributes={"callee": callee},
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
