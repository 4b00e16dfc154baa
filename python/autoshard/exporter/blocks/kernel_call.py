"""Calls of ``autoshard.kernel`` on blocks: the function, lowered anew at the shapes of a device."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from autoshard._core import FactorKind
from autoshard.errors import PlanError
from autoshard.exporter.blocks.block_op import Form, shardings
from autoshard.exporter.blocks.emitter import Axes, Emitter
from autoshard.importer.rules import registered_rule, rule_of
from autoshard.ir import mlir, parse_bytes, place
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.ir.functions import add_functions
from autoshard.ir.module import module_of, operations_of
from autoshard.ir.reading import shape_of
from autoshard.kernels.calls import KernelCall, is_kernel_call, kernel_call
from autoshard.planned.module import PlannedOp

Shape = tuple[int, ...]


def calls_kernel(planned: PlannedOp) -> bool:
    """Whether ``planned`` is a call of ``autoshard.kernel``."""
    return is_kernel_call(planned.op)


def kernel_call_form(planned: PlannedOp) -> Form:
    """How ``planned``, a call of ``autoshard.kernel``, is computed on equal blocks.

    Raises:
        PlanError: Its function is of another process.
    """
    op, call = planned.op, kernel_call(planned.op)
    if call is None:
        raise PlanError(
            "autoshard.kernel: the plan cuts a kernel whose function is of another process, and"
            " cannot be lowered on blocks here. Export the plan where it was made.",
            place(op.location),
        )

    def compute(emit: Emitter, blocks: list[mlir.Value]) -> list[mlir.Value]:
        function = _function(op, call, [shape_of(block) for block in blocks], emit)
        name = mlir.StringAttr(function.attributes["sym_name"]).value
        types = mlir.FunctionType(mlir.TypeAttr(function.attributes["function_type"]).value).results
        callee: dict[str, mlir.Attribute] = {"callee": mlir.FlatSymbolRefAttr.get(name)}
        return list(emit.op("func.call", types, blocks, callee).results)

    return Form(compute, _summed(planned))


def _summed(planned: PlannedOp) -> Axes:
    """Axes that cut factors whose parts are added."""
    rule = rule_of(planned.op, registered_rule(planned.op))
    axes = [
        axis
        for dims, sharding in zip(rule.operands, shardings(planned.operands), strict=True)
        for factors, cut in zip(dims, sharding.dims, strict=True)
        for axis in cut
        if any(rule.factors[factor].kind == FactorKind.REDUCTION for factor in factors)
    ]
    return tuple(dict.fromkeys(axes))


def _function(
    op: mlir.Operation, call: KernelCall, shapes: Sequence[Shape], emit: Emitter
) -> mlir.Operation:
    """The kernel's function on blocks of ``shapes``; a module has it once."""
    module = module_of(op)
    key = mlir.DictAttr(op.attributes["composite_attributes"])["key"]
    digest = hashlib.sha256(f"{key} {shapes}".encode()).hexdigest()[:12]
    name = f"autoshard_kernel_{digest}"
    symbols = mlir.SymbolTable(module)
    if name in symbols:
        return symbols[name].operation
    try:
        lowered = parse_bytes(call.function.lowered_at(shapes), op.context, call.name)
    except Exception as error:
        listed = ", ".join(map(str, shapes))
        raise PlanError(
            f"{call.name}: the kernel cannot be lowered on a device's blocks, {listed}:"
            f" {type(error.__cause__ or error).__name__}: {error.__cause__ or error}. Name the"
            " factors that it needs whole in autoshard.kernel(.., whole=..).",
            place(op.location),
        ) from error
    if emit.enter is not None:
        _make_manual(lowered)
    add_functions(module, lowered, name)
    return mlir.SymbolTable(module)[name].operation


def _make_manual(lowered: mlir.Module) -> None:
    """Tell GSPMD of values that are made of nothing that they are a device's own."""
    for op in operations_of(lowered.operation):
        if len(op.results) and not len(op.operands):
            op.attributes[MHLO_SHARDING] = mlir.StringAttr.get("{manual}")
