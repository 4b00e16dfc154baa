"""Rules as the core takes them: factors, and what the op does with its elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from autoshard import _core
from autoshard._core import Arithmetic, FactorKind, Work
from autoshard.importer.factors import FactorRule, elementwise_rule
from autoshard.importer.faults import fault_key, faulty_factors
from autoshard.importer.kernels import kernel_key
from autoshard.importer.rules import registered_rule, rule_of
from autoshard.importer.sum_parts import PRODUCT, leaves_parts, part_operands
from autoshard.importer.value_types import NO_TYPE, TypeTable
from autoshard.importer.windows import block_factors, window_key
from autoshard.importer.work import MATRIX_OPS, OpWork, work_key, work_of
from autoshard.ir import mlir
from autoshard.ir.attributes import SDY_SHARDING_RULE, attribute_of
from autoshard.sharding.padding import padded_size

_NAMED_BY_USERS = ("stablehlo.custom_call", "stablehlo.composite")
"""Ops for which users register rules; sizes in these stay as they are."""


class RuleTable:
    """Rules by number; ops that are cut alike and do the same work share one.

    Modules of one context may share a table, as copies of one module: then each rule is made once,
    and the table has rules and types of all of them.
    """

    def __init__(self, types: TypeTable) -> None:
        self.rules: list[_core.Rule] = []
        self.of_matrix_ops: set[int] = set()
        self.types = types
        self._numbers: dict[tuple[object, ...], int] = {}

    def number_of(
        self,
        op: mlir.Operation,
        operand_types: Sequence[int],
        result_types: Sequence[int],
        *,
        is_on_host: bool,
        products: float = 1.0,
    ) -> int:
        """The rule of an op.

        Args:
            op: May carry a rule of Shardy's.
            operand_types: Numbers of types.
            result_types: Numbers of types.
            is_on_host: The host computes the op.
            products: How often a matmul multiplies.
        """
        attribute = attribute_of(op, SDY_SHARDING_RULE)
        if op.name in _NAMED_BY_USERS:
            attribute = registered_rule(op) or attribute
        types = (*operand_types, None, *result_types)
        key = (op.name, attribute, *types, is_on_host, *work_key(op), None, *window_key(op))
        key = (*key, fault_key(op), kernel_key(op), products, leaves_parts(op))
        known = self._numbers.get(key)
        if known is not None:
            return known
        rule = rule_of(op, attribute)
        faulty = faulty_factors(op, rule)
        if faulty:
            rule = _whole(rule, faulty)
        if is_on_host:
            rule = _for_host(rule, op)
        if self.types.padded_to > 1 and op.name not in _NAMED_BY_USERS:
            if any(map(self._is_padded, (*operand_types, *result_types))):
                rule = _whole(rule, block_factors(op, rule) | _scattered_factors(op, rule))
            rule = _padded(rule, self.types.padded_to)
        number = self._numbers[key] = len(self.rules)
        if op.name in MATRIX_OPS:
            self.of_matrix_ops.add(number)
        work = work_of(op)
        if products != 1.0:
            work = replace(work, flops=work.flops * products)
        self.rules.append(_core_rule(rule, operand_types, result_types, work, op))
        return number

    def of_cast(self, source: int, target: int) -> int:
        """The rule of a cast that no op of the module is.

        Args:
            source: Number of a type.
            target: Of another of the same shape.
        """
        key = ("cast", source, target)
        if key not in self._numbers:
            shape = self.types[source].shape
            rule = elementwise_rule(shape, 1, 1)
            if self.types.padded_to > 1:
                rule = _padded(rule, self.types.padded_to)
            work = OpWork(Work.ELEMENTWISE, Arithmetic.F32, float(prod(shape)), is_cheap=True)
            self._numbers[key] = len(self.rules)
            self.rules.append(_core_rule(rule, (source,), (target,), work))
        return self._numbers[key]

    def _is_padded(self, type_number: int) -> bool:
        return type_number != NO_TYPE and self.types[type_number].is_padded


def _for_host(rule: FactorRule, op: mlir.Operation) -> FactorRule:
    """Without what would need a collective there: nothing is summed, and indices stay whole.

    So a table is looked up in columns: each device has its own of all rows, for all indices. Masks
    are no indices.
    """
    tensors = zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True)
    whole = {
        factor
        for value, dims in tensors
        if isinstance(value.type, mlir.RankedTensorType)
        and isinstance(value.type.element_type, mlir.IntegerType)
        and mlir.IntegerType(value.type.element_type).width > 1
        for dim in dims
        for factor in dim
    }
    summed = {
        index for index, factor in enumerate(rule.factors) if factor.kind == FactorKind.REDUCTION
    }
    return _whole(rule, frozenset(whole | summed))


def _scattered_factors(op: mlir.Operation, rule: FactorRule) -> frozenset[int]:
    """The factors of the dims that a scatter's indices name: XLA loses updates where those are cut
    and the indices are cut and padded."""
    if op.name != "stablehlo.scatter":
        return frozenset()
    operand, updates = rule.operands[0], rule.operands[-1]
    updated = {factor for factors in updates for factor in factors}
    return frozenset(factor for factors in operand for factor in factors) - updated


def _whole(rule: FactorRule, kept: frozenset[int]) -> FactorRule:
    """With some factors that are not cut."""
    return replace(
        rule,
        factors=tuple(
            replace(factor, kind=FactorKind.NEED_REPLICATION) if index in kept else factor
            for index, factor in enumerate(rule.factors)
        ),
    )


def _padded(rule: FactorRule, devices: int) -> FactorRule:
    """With the sizes that factors count as; those of a dim of several factors stay as they are.

    Nor does padding help where blocks read their neighbours.
    """
    several = {
        factor
        for tensor in (*rule.operands, *rule.results)
        for dim in tensor
        for factor in dim
        if len(dim) > 1
    }
    return replace(
        rule,
        factors=tuple(
            replace(factor, size=padded_size(factor.size, devices))
            if index not in several
            and factor.kind in (FactorKind.PASS_THROUGH, FactorKind.REDUCTION)
            else factor
            for index, factor in enumerate(rule.factors)
        ),
    )


def _core_rule(
    rule: FactorRule,
    operand_types: Sequence[int],
    result_types: Sequence[int],
    work: OpWork,
    op: mlir.Operation | None = None,
) -> _core.Rule:
    def tensors(
        types: Sequence[int], dims: tuple[tuple[tuple[int, ...], ...], ...]
    ) -> list[_core.RuleTensor]:
        return [
            _core.RuleTensor(type_id, () if type_id == NO_TYPE else tensor)
            for type_id, tensor in zip(types, dims, strict=True)
        ]

    return _core.Rule(
        [
            _core.Factor(factor.size, factor.kind, factor.halo, factor.shares)
            for factor in rule.factors
        ],
        tensors(operand_types, rule.operands),
        tensors(result_types, rule.results),
        work=work.work,
        arithmetic=work.arithmetic,
        flops=work.flops,
        is_cheap=work.is_cheap,
        has_workspace=work.has_workspace,
        operand_bytes=work.operand_bytes,
        result_bytes=work.result_bytes,
        touched_as=work.touched_as,
        in_place_operand=work.in_place_operand,
        padded_bytes=work.padded_bytes,
        dilation=work.dilation,
        scratch_bytes=work.scratch_bytes,
        moved_again=work.moved_again,
        exponentials=work.exponentials,
        vector_flops=work.vector_flops,
        transforms=work.transforms,
        expense=work.expense,
        function=work.function,
        kernels=work.kernels,
        adds_up=op is not None and leaves_parts(op),
        part_operands=() if op is None else _parts_of(op),
        has_one_part=op is not None and op.name == PRODUCT,
    )


def _parts_of(op: mlir.Operation) -> tuple[int, ...]:
    """A scatter adds to what is a part already."""
    if op.name == "stablehlo.scatter":
        return (0,) if leaves_parts(op) else ()
    return part_operands(op)
