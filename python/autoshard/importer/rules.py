"""Factor rules: how the dims of an op's tensors hang together.

Shardy knows them for StableHLO (``sdy-populate-op-sharding-rules``). What it leaves out is
here: a few CHLO ops, and the rules that users register for custom calls and composites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from autoshard._core import FactorKind
from autoshard.errors import StrategyError
from autoshard.importer.factors import Dims, Factor, FactorRule, elementwise_rule
from autoshard.importer.kernels import kernel_rule
from autoshard.importer.windows import with_windows
from autoshard.importer.work import is_elementwise
from autoshard.ir import mlir, place, sdy
from autoshard.ir.attributes import (
    STAGE_EXCHANGE,
    STAGE_GATHER,
    STAGE_NUMBER,
    STAGE_PERMUTE,
    STAGE_SUM,
    custom_call_target,
)
from autoshard.ir.reading import shape_of
from autoshard.kernels.calls import kernel_call
from autoshard.sharding.sdy_text import factor_symbol

Shape = tuple[int, ...]
RuleText = str | Callable[[Sequence[Shape], Sequence[Shape]], str]

ELEMENTWISE_CHLO = frozenset(
    f"chlo.{name}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "conj", "cosh"),
        *("digamma", "erf", "erf_inv", "erfc", "is_inf", "is_neg_inf", "is_pos_inf", "lgamma"),
        *("mulhi", "next_after", "polygamma", "sinh", "square", "tan", "zeta"),
    )
)
"""CHLO ops that Shardy has no rule for: every dim passes through."""


def _of_each_dim(operands: Sequence[Shape], results: Sequence[Shape]) -> str:
    """The rule of what does the same with each element."""
    dims = ", ".join(f"d{number}" for number in range(len(results[0])))
    return f"([{dims}])->([{dims}])"


def _of_all_but_the_first_dim(operands: Sequence[Shape], results: Sequence[Shape]) -> str:
    """As ``_of_each_dim``, of a value whose first dim stays whole inside of a stage."""
    others = "".join(f", d{number}" for number in range(1, len(results[0])))
    return f"([first{others}])->([made{others}])"


_BETWEEN_STAGES: Mapping[str, RuleText] = {
    STAGE_PERMUTE: _of_each_dim,
    STAGE_SUM: _of_each_dim,
    STAGE_GATHER: _of_all_but_the_first_dim,
    STAGE_EXCHANGE: _of_all_but_the_first_dim,
}
"""Rules of calls between stages that run in lockstep."""


def is_between_stages(op: mlir.Operation) -> bool:
    """Is it a call between stages that run in lockstep, or one that asks which stage it is?"""
    target = custom_call_target(op)
    return target == STAGE_NUMBER or target in _BETWEEN_STAGES


@dataclass(slots=True)
class _Registry:
    rules: dict[str, RuleText] = field(default_factory=lambda: dict(_BETWEEN_STAGES))


_registry = _Registry()


def register_rule(target: str, rule: RuleText) -> None:
    """Say how a custom call or a composite may be split.

    Args:
        target: The ``call_target_name`` of the custom call, or the name of the composite.
        rule: ``"([i, k], [k, j])->([i, j]) reduction={k}"``: a factor for each dim, under any
            name. Where a dim is made of several factors Shardy's own notation with sizes,
            ``"([ij])->([i, j]) {i=8, j=4}"``. A factor that only operands have, or only results,
            is not cut unless it is a reduction. Or a function of the operand shapes and result
            shapes that returns such a text.

    The op itself must compute the right block when it is given blocks: with GSPMD and Shardy
    that needs a partitioner for the custom call (``jax.experimental.custom_partitioning``), a
    composite has one through its decomposition.

    Raises:
        StrategyError: ``rule`` is a text that is not a rule.
    """
    if isinstance(rule, str) and "->" not in rule:
        raise StrategyError(
            f'rule of "{target}": "{rule}" has no "->". '
            'Write operands->results, for example "([i, k], [k, j])->([i, j])".'
        )
    _registry.rules[target] = rule


def registered_rule(op: mlir.Operation) -> sdy.OpShardingRuleAttr | None:
    """The user's rule for a custom call or composite, sizes filled in; None without one.

    A call of ``autoshard.kernel`` has its own, if its function can be lowered on blocks.
    """
    call = kernel_call(op)
    if call is not None:
        return sdy.OpShardingRuleAttr(
            mlir.Attribute.parse(f"#sdy.op_sharding_rule<{call.rule}, custom>", op.context)
        )
    holder = "call_target_name" if op.name == "stablehlo.custom_call" else "name"
    target = mlir.StringAttr(op.attributes[holder]).value
    rule = _registry.rules.get(target)
    if rule is None:
        return None
    operands = [shape_of(value) for value in op.operands]
    results = [shape_of(value) for value in op.results]
    text = rule if isinstance(rule, str) else rule(operands, results)
    if not re.search(r"\{\s*\w+\s*=\s*\d+", text):
        text = _with_sizes(target, text, [*operands, *results], place(op.location))
    try:
        attribute = sdy.OpShardingRuleAttr(
            mlir.Attribute.parse(f"#sdy.op_sharding_rule<{text}, custom>", op.context)
        )
    except mlir.MLIRError as error:
        raise StrategyError(f'rule of "{target}": "{text}": {error}', place(op.location)) from error
    _check_fits(target, text, attribute, [*operands, *results], op)
    return attribute


def _check_fits(
    target: str,
    text: str,
    attribute: sdy.OpShardingRuleAttr,
    shapes: Sequence[Shape],
    op: mlir.Operation,
) -> None:
    """Raise StrategyError unless every dim is what its factors make up."""
    sizes = list(attribute.factor_sizes)
    tensors = (*_tensors(attribute.operand_mappings), *_tensors(attribute.result_mappings))
    made = [tuple(prod(sizes[f] for f in dim) for dim in tensor) for tensor in tensors]
    if made != list(shapes):
        raise StrategyError(
            f'rule of "{target}": "{text}" is for tensors of shapes {made}, the op has '
            f"{list(shapes)}. Leave the sizes out, or compute them from the shapes.",
            place(op.location),
        )
    kinds = (
        *attribute.reduction_factors,
        *attribute.need_replication_factors,
        *attribute.permutation_factors,
    )
    if any(factor >= len(sizes) for factor in kinds):
        raise StrategyError(
            f'rule of "{target}": "{text}" gives a kind to a factor that no dim has.',
            place(op.location),
        )


_TENSOR = re.compile(r"\[([^\[\]]*)\]")


def _with_sizes(target: str, text: str, shapes: Sequence[Shape], where: str | None) -> str:
    """Add ``{i=8, ..}`` behind the results, read from the shapes."""
    mapping, _, rest = text.rpartition(")")
    sizes: dict[str, int] = {}
    tensors = _TENSOR.findall(mapping)
    if len(tensors) != len(shapes):
        raise StrategyError(
            f'rule of "{target}": {len(tensors)} tensors for {len(shapes)} operands and results.',
            where,
        )
    for tensor, shape in zip(tensors, shapes, strict=True):
        dims = [dim.strip() for dim in tensor.split(",") if dim.strip()]
        if len(dims) != len(shape):
            raise StrategyError(
                f'rule of "{target}": [{tensor}] does not fit the shape {shape}.', where
            )
        for dim, size in zip(dims, shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise StrategyError(
                    f'rule of "{target}": factor {dim} has sizes {sizes[dim]} and {size}.',
                    where,
                )
    symbols = {name: factor_symbol(index) for index, name in enumerate(sizes)}

    def renamed(part: re.Match[str]) -> str:
        return _NAME.sub(lambda name: symbol_of(name[0]), part[0])

    def symbol_of(name: str) -> str:
        if name not in symbols:
            raise StrategyError(
                f'rule of "{target}": "{text}": no dim has the factor {name}.', where
            )
        return symbols[name]

    entries = ", ".join(f"{symbols[name]}={size}" for name, size in sizes.items())
    mapping, rest = (_BRACKETS.sub(renamed, part) for part in (mapping, rest))
    return f"{mapping}) {{{entries}}}{rest}"


_BRACKETS = re.compile(r"\[[^\]]*\]|\{[^}]*\}")
_NAME = re.compile(r"[A-Za-z_]\w*")


def rule_of(op: mlir.Operation, attribute: mlir.Attribute | None) -> FactorRule:
    """The rule of one op.

    Args:
        op: Any op with tensor operands or results.
        attribute: Its ``sdy.sharding_rule``, or None if Shardy has none.

    Returns:
        Without any known rule, one without factors: the op runs replicated.
    """
    rule = partitioners_rule_of(op, attribute)
    return rule if attribute is None else with_windows(op, rule)


def partitioners_rule_of(op: mlir.Operation, attribute: mlir.Attribute | None) -> FactorRule:
    """As ``rule_of``, with windows cut as Shardy cuts them, not as ``importer/windows.py`` does."""
    if attribute is not None:
        return _from_shardy(op, sdy.OpShardingRuleAttr(attribute))
    if op.name in ELEMENTWISE_CHLO:
        return _elementwise(op)
    if op.name == "chlo.top_k":
        return _top_k(op)
    if op.name == "chlo.scan" and _combines_elements(op):
        return _scan(op)
    if (rule := kernel_rule(op)) is not None:
        return rule
    return FactorRule(
        (), tuple(_no_factors(v) for v in op.operands), tuple(_no_factors(v) for v in op.results)
    )


def _no_factors(value: mlir.Value) -> tuple[tuple[int, ...], ...]:
    rank = value.type.rank if isinstance(value.type, mlir.RankedTensorType) else 0
    return ((),) * rank


def _elementwise(op: mlir.Operation) -> FactorRule:
    return elementwise_rule(shape_of(op.results[0]), len(op.operands), len(op.results))


def _top_k(op: mlir.Operation) -> FactorRule:
    """All but the last dim pass through; the last one must be whole to be ranked."""
    shape = shape_of(op.operands[0])
    factors = (
        *(Factor(size) for size in shape[:-1]),
        Factor(shape[-1], FactorKind.NEED_REPLICATION),
    )
    dims = tuple((d,) for d in range(len(shape)))
    return FactorRule(factors, (dims,), (dims,) * len(op.results))


def _scan(op: mlir.Operation) -> FactorRule:
    """The scanned dim must be whole; carries do not have it, all other dims pass through."""
    shape = shape_of(op.operands[0])
    scanned = mlir.IntegerAttr(op.attributes["dimension"]).value
    factors = tuple(
        Factor(size, FactorKind.NEED_REPLICATION) if dim == scanned else Factor(size)
        for dim, size in enumerate(shape)
    )
    dims = tuple((d,) for d in range(len(shape)))
    carried = tuple(dim for dim in dims if dim != (scanned,))

    def of(values: Sequence[mlir.Value]) -> tuple[Dims, ...]:
        return tuple(dims if len(shape_of(v)) == len(shape) else carried for v in values)

    return FactorRule(factors, of(list(op.operands)), of(list(op.results)))


def _combines_elements(op: mlir.Operation) -> bool:
    """Whether the body of a scan makes each element from one element of each argument."""
    ranks = [len(shape_of(value)) for value in op.operands]
    shapes = {shape_of(value) for value in (*op.operands, *op.results)}
    inside = [each.operation for region in op.regions for each in region.blocks[0].operations]
    return len(shapes) == len(set(ranks)) == 2 and all(
        not len(each.regions) and (is_elementwise(each.name) or _is_splat(each)) for each in inside
    )


def _is_splat(op: mlir.Operation) -> bool:
    if op.name != "stablehlo.constant":
        return False
    return mlir.DenseElementsAttr(op.attributes["value"]).is_splat


def _from_shardy(op: mlir.Operation, rule: sdy.OpShardingRuleAttr) -> FactorRule:
    kinds = [FactorKind.PASS_THROUGH] * len(rule.factor_sizes)
    for kind, indices in (
        (FactorKind.PERMUTATION, rule.permutation_factors),
        (FactorKind.REDUCTION, rule.reduction_factors),
        (FactorKind.NEED_REPLICATION, rule.need_replication_factors),
    ):
        for index in indices:
            kinds[index] = kind
    operands, results = _tensors(rule.operand_mappings), _tensors(rule.result_mappings)
    if op.name == "stablehlo.custom_call":
        for index in _factors(operands) ^ _factors(results):
            if kinds[index] == FactorKind.PASS_THROUGH:
                kinds[index] = FactorKind.NEED_REPLICATION
    factors = tuple(
        Factor(size, kind, -1 if kind == FactorKind.PERMUTATION else 0)
        for size, kind in zip(rule.factor_sizes, kinds, strict=True)
    )
    return FactorRule(factors, operands, results)


def _factors(tensors: tuple[tuple[tuple[int, ...], ...], ...]) -> set[int]:
    return {factor for tensor in tensors for dim in tensor for factor in dim}


def _tensors(mappings: Sequence[mlir.Attribute]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(
        tuple(
            tuple(sdy.DimMappingAttr(dim).factor_indices)
            for dim in sdy.TensorMappingAttr(mapping).dim_mappings
        )
        for mapping in mappings
    )


def is_grouped_convolution(op: mlir.Operation) -> bool:
    """Whether ``op`` is a convolution of features, or of a batch, in groups."""
    if op.name != "stablehlo.convolution":
        return False
    counts = (op.attributes["feature_group_count"], op.attributes["batch_group_count"])
    return any(mlir.IntegerAttr(count).value > 1 for count in counts)
