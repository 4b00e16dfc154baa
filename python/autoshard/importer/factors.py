"""Factors and rules, as the core has them (``passes/model/program.h``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard._core import FactorKind

Dims = tuple[tuple[int, ...], ...]
"""The factors of each dim of one tensor, major first."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One independent index of an op; see ``Factor`` in passes/model/program.h."""

    size: int
    kind: FactorKind = FactorKind.PASS_THROUGH
    halo: int = 0
    """Elements needed from neighbours, in units of the factor's size; negative: a whole block. Of a
    reduction: of the first operand's."""
    shares: tuple[float, ...] = ()
    """What of the op's work belongs to each place; empty: all have as much."""


@dataclass(frozen=True, slots=True)
class FactorRule:
    """Factors of an op and, for each tensor and dim, which factors make it up, major first."""

    factors: tuple[Factor, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]


def elementwise_rule(shape: Sequence[int], operands: int, results: int) -> FactorRule:
    """The rule of an op with so many tensors of one shape, element by element."""
    dims = tuple((dim,) for dim in range(len(shape)))
    return FactorRule(tuple(map(Factor, shape)), (dims,) * operands, (dims,) * results)
