"""How ops are cut into micro-batches: what the core asks of each class of ops.

The factors are those by which devices share an op. Here also: whether an op adds up over its
reduction factors, and in which operands it is linear, so that it may be done on addends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from autoshard._core import CutKind, Factor, FactorKind, Linear, OpCut
from autoshard.importer.factors import FactorRule
from autoshard.importer.kernels import kernel_rule
from autoshard.importer.own_examples import mixed_dims
from autoshard.importer.rules import registered_rule, rule_of
from autoshard.importer.work import MADE_OF_NOTHING, MATRIX_OPS
from autoshard.ir import element_bits, mlir
from autoshard.ir.attributes import (
    IN_HOST_MEMORY,
    MARK,
    PIPELINE_STAGE,
    SDY_SHARDING_RULE,
    attribute_of,
    custom_call_target,
)
from autoshard.ir.constants import is_zeros
from autoshard.ir.host_memory import PLACEMENT
from autoshard.ir.reading import element_of
from autoshard.kernels.calls import is_opaque_kernel
from autoshard.kernels.cudnn_attention import is_cudnn_attention
from autoshard.kernels.mosaic import is_tpu_kernel, kernel_of

_KINDS: Mapping[str, CutKind] = {
    "stablehlo.optimization_barrier": CutKind.IDENTITY,
    "sdy.sharding_constraint": CutKind.IDENTITY,
    "stablehlo.while": CutKind.LOOP,
    "stablehlo.case": CutKind.BRANCHES,
    "stablehlo.if": CutKind.BRANCHES,
}
_IDENTITY_TARGETS = ("Sharding", MARK, PIPELINE_STAGE, IN_HOST_MEMORY, PLACEMENT)

_PASSED_ON = frozenset(
    f"stablehlo.{name}"
    for name in (
        "negate",
        "convert",
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "reverse",
        "slice",
    )
)
"""Ops that are linear in their one operand."""

_ADDITIONS = ("stablehlo.add", "stablehlo.subtract")

_SAME_SIZE = ("stablehlo.reshape", "stablehlo.transpose")
"""Between a gradient and its conversion; a buffer that adds up gradients is then as these are."""

_LINEAR_IN: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_ADDITIONS, (0, 1)),
    **dict.fromkeys(_PASSED_ON, (0,)),
    "stablehlo.pad": (0, 1),
    "stablehlo.select": (1, 2),
    "stablehlo.dynamic_slice": (0,),
    "stablehlo.dynamic_update_slice": (0, 1),
    "stablehlo.gather": (0,),
}
"""Data operands in which an op is linear, all of them at once."""

_PRODUCTS: Mapping[str, tuple[int, ...]] = {
    "stablehlo.multiply": (0, 1),
    "stablehlo.divide": (0,),
    **dict.fromkeys(MATRIX_OPS, (0, 1)),
}
"""Data operands in each of which an op is linear by itself."""

_HEAVY = MATRIX_OPS | frozenset(
    (
        *("chlo.ragged_dot", "stablehlo.custom_call", "stablehlo.composite", "func.call"),
        *("sdy.manual_computation", "stablehlo.fft", "stablehlo.triangular_solve"),
        "stablehlo.cholesky",
    )
)
"""Ops that are too much to compute of a whole batch."""


_WHOLE = frozenset(
    (
        *("stablehlo.composite", "stablehlo.rng", "stablehlo.rng_bit_generator"),
        *("stablehlo.batch_norm_training", "stablehlo.batch_norm_grad", "chlo.ragged_dot"),
    )
)
"""Ops that are not the same at another size: random bits would be others, groups longer."""


def kind_of(op: mlir.Operation) -> CutKind:
    """How ``op`` is read: by its factors, or by what it contains."""
    if custom_call_target(op) in _IDENTITY_TARGETS:
        return CutKind.IDENTITY
    return _KINDS.get(op.name, CutKind.PLAIN)


def cut_of(op: mlir.Operation) -> OpCut:
    """What the core's ``OpCut`` says of an op and all that are like it."""
    kind = kind_of(op)
    if kind != CutKind.PLAIN:
        return OpCut(kind=kind)
    rule = factors_of(op)
    return OpCut(
        factors=[Factor(factor.size, factor.kind, factor.halo) for factor in rule.factors],
        operands=rule.operands,
        results=rule.results,
        adds=adds_up(op),
        **_linear(op),
        is_heavy=op.name in _HEAVY,
        is_zero=is_zeros(op),
        is_free=op.name in MADE_OF_NOTHING,
    )


def factors_of(op: mlir.Operation) -> FactorRule:
    """The factor rule of an op that can be computed at another size.

    Without factors: a custom call that nobody gave a rule, a kernel that is compiled for the sizes
    of its operands or of whose grid no dim was proven to be cut, and whatever holds a program of
    its own.
    """
    if op.name in _WHOLE or is_opaque_kernel(op):
        return FactorRule((), (), ())
    if is_tpu_kernel(op) or is_cudnn_attention(op):
        rule = kernel_rule(op)
        return FactorRule((), (), ()) if rule is None else _with_whole_tables(op, rule)
    attribute = attribute_of(op, SDY_SHARDING_RULE)
    if op.name == "stablehlo.custom_call":
        attribute = registered_rule(op) or attribute
    return _of_own_examples(op, rule_of(op, attribute))


def _with_whole_tables(op: mlir.Operation, rule: FactorRule) -> FactorRule:
    """Without factors along which a kernel's tables are cut: they say the same in each trip."""
    kernel = kernel_of(op)
    tables = rule.operands[: 0 if kernel is None else kernel.num_tables]
    return _whole(rule, {factor for dims in tables for dim in dims for factor in dim})


def _of_own_examples(op: mlir.Operation, rule: FactorRule) -> FactorRule:
    """Without factors along which elements meet those of other places."""
    tensors = (*rule.operands, *rule.results)
    places = [(n, d) for n, d in mixed_dims(op) if n < len(tensors) and d < len(tensors[n])]
    mixed = {factor for number, dim in places for factor in tensors[number][dim]}
    return _whole(rule, mixed)


def _whole(rule: FactorRule, kept: set[int]) -> FactorRule:
    factors = tuple(
        replace(factor, kind=FactorKind.NEED_REPLICATION) if number in kept else factor
        for number, factor in enumerate(rule.factors)
    )
    return replace(rule, factors=factors)


def adds_up(op: mlir.Operation) -> bool:
    """Whether an op adds up over its reduction factors."""
    if op.name == "stablehlo.reduce":
        return len(op.results) == 1 and _body_adds(op)
    if op.name == "stablehlo.scatter":
        return len(op.results) == 1 and _body_adds(op)
    if op.name == "stablehlo.custom_call":
        return registered_rule(op) is not None
    return op.name in MATRIX_OPS and _bits(op.results[0]) > 1


def _body_adds(op: mlir.Operation) -> bool:
    """Whether the region adds its two arguments, and these are no booleans, whose sum is or."""
    block = op.regions[0].blocks[0]
    first, *rest = (inner.operation for inner in block.operations)
    if (
        first.name != "stablehlo.add"
        or len(rest) != 1
        or list(rest[0].operands) != [first.results[0]]
    ):
        return False
    arguments = list(block.arguments)
    return list(first.operands) in (arguments, arguments[::-1]) and _bits(op.results[0]) > 1


class _Linear(TypedDict, total=False):
    linear: Linear
    data: Sequence[int]
    added_to: int
    is_early: bool


def _linear(op: mlir.Operation) -> _Linear:
    """``linear``, ``data``, ``added_to`` and ``is_early`` of an op."""
    if len(op.results) != 1 or _bits(op.results[0]) == 1:
        return {}
    if op.name == "stablehlo.reduce" and adds_up(op):
        return {"linear": Linear.TOGETHER, "data": [0, 1], "added_to": 1, "is_early": True}
    if op.name == "stablehlo.scatter" and adds_up(op):
        return {"linear": Linear.TOGETHER, "data": [0, 2], "added_to": 0}
    if op.name in _PRODUCTS and _keeps_fractions(op):
        return {"linear": Linear.EACH, "data": list(_PRODUCTS[op.name])}
    if op.name in _LINEAR_IN and not _is_not_linear(op):
        early = op.name in (*_ADDITIONS, *_SAME_SIZE) or _widens(op)
        return {
            "linear": Linear.TOGETHER,
            "data": list(_LINEAR_IN[op.name]),
            "is_early": early,
        }
    if op.name == "stablehlo.concatenate":
        return {"linear": Linear.TOGETHER, "data": list(range(len(op.operands)))}
    return {}


def _keeps_fractions(op: mlir.Operation) -> bool:
    """An integer division does not distribute over sums."""
    return op.name != "stablehlo.divide" or not _is_integer(op.results[0])


def _is_not_linear(op: mlir.Operation) -> bool:
    """A conversion that rounds each addend, or of integers that may have wrapped around."""
    if op.name != "stablehlo.convert":
        return False
    is_integer = _is_integer(op.operands[0])
    return is_integer != _is_integer(op.results[0]) or (is_integer and _widens(op))


def _widens(op: mlir.Operation) -> bool:
    """Whether sums are more exact behind the op."""
    return op.name == "stablehlo.convert" and _bits(op.results[0]) > _bits(op.operands[0])


def _is_integer(value: mlir.Value) -> bool:
    return isinstance(element_of(value), mlir.IntegerType)


def _bits(value: mlir.Value) -> int:
    if not isinstance(value.type, mlir.RankedTensorType):
        return 0
    return element_bits(element_of(value))
