"""Rows that are sorted by expert, multiplied with their expert's matrix: what devices may share.

The sizes of the groups say which rows belong to which expert. Of a part of the rows, or of the
experts, they say nothing; so the kernel is given the expert of each row, and the number of each
expert, which are cut as rows and experts are:

    rows x in, experts x in x out, rows, experts -> rows x out        added over in and experts

A device finds the sizes of its groups from them. Rows of other devices' experts it leaves zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.ir.kernel import Call, kernel_p
from autoshard.sharding.kernel_rule import Dims, KernelRule

_ROWS, _EXPERTS = "rows", "experts"


def bind_experts(call: Call, lhs: Any, rhs: Any, sizes: Any, experts: Any) -> list[Any]:
    """The kernel on all rows.

    Args:
        call: Of ``OfExperts``.
        lhs: Rows, sorted by expert.
        rhs: The matrices, or the rows that those of ``lhs`` are multiplied with.
        sizes: Rows of each expert.
        experts: Numbers of those that ``rhs`` or the result has, one after the other.
    """
    assert isinstance(call.function, OfExperts)
    ragged_dim = call.function.ragged_dim
    rows = jnp.arange(lhs.shape[ragged_dim], dtype=jnp.int32)
    ends = running_sum(sizes)
    expert_of_row = jnp.sum(ends[None, :] <= rows[:, None], 1, dtype=jnp.int32)
    return kernel_p.bind(lhs, rhs, expert_of_row, experts, call=call)


def experts_rule(name: str, numbers: Any, lhs_rank: int, rhs_rank: int) -> KernelRule:
    """The rule of a product of experts with these ``RaggedDotDimensionNumbers``."""
    (lhs_contracted, rhs_contracted), _ = numbers.dot_dimension_numbers
    (ragged_dim,) = numbers.lhs_ragged_dimensions
    lhs = [(f"l{dim}",) for dim in range(lhs_rank)]
    rhs = [(f"r{dim}",) for dim in range(rhs_rank)]
    lhs[ragged_dim] = (_ROWS,)
    for left, right in zip(lhs_contracted, rhs_contracted, strict=True):
        rhs[right] = lhs[left]
    for dim in numbers.rhs_group_dimensions:
        rhs[dim] = (_EXPERTS,)
    free = [name for dim, name in enumerate(lhs) if dim not in lhs_contracted]
    inside = {*rhs_contracted, *numbers.rhs_group_dimensions}
    free += [name for dim, name in enumerate(rhs) if dim not in inside]
    makes_weights = ragged_dim in lhs_contracted
    result: Dims = ((_EXPERTS,), *free) if makes_weights else tuple(free)
    operands: tuple[Dims, ...] = (tuple(lhs), tuple(rhs), ((_ROWS,),), ((_EXPERTS,),))
    all_names = {name for tensor in operands for dim in tensor for name in dim}
    sums = all_names - {name for dim in result for name in dim}
    return KernelRule(name, operands, (result,), frozenset(sums), frozenset())


@dataclass(frozen=True)
class OfExperts:
    """The product of some rows and some experts, both in their order."""

    numbers: Any
    """``RaggedDotDimensionNumbers``, with one dim of rows."""
    product: Callable[[Any, Any, Any, bool], Any]
    """Multiplies rows of ``lhs`` with ``rhs``, by the sizes of the groups from row 0 on, which the
    flag says to be all rows; rows of no group come out as zeros. Equal for equal products."""
    num_experts: int
    """Experts on all devices together."""

    @property
    def ragged_dim(self) -> int:
        """The dim of the left operand that counts the rows."""
        (dim,) = self.numbers.lhs_ragged_dimensions
        return dim

    def __call__(self, lhs: Any, rhs: Any, expert_of_row: Any, experts: Any) -> list[Any]:
        """The part of the result."""
        sizes = jnp.sum(expert_of_row[:, None] == experts[None, :], 0, dtype=jnp.int32)
        has_all = experts.shape[0] == self.num_experts
        start = None if has_all else jnp.sum(expert_of_row < experts[0], dtype=jnp.int32)
        lhs = _turned(lhs, start, self.ragged_dim, -1)
        if makes_weights(self.numbers):
            left, right = self.numbers.dot_dimension_numbers[0]
            rhs = _turned(rhs, start, right[left.index(self.ragged_dim)], -1)
            return [self.product(lhs, rhs, sizes, has_all)]
        made = self.product(lhs, rhs, sizes, has_all)
        return [_turned(made, start, dim_of_rows(self.numbers), 1)]


def makes_weights(numbers: Any) -> bool:
    """Is the result one matrix for each expert, added up over its rows?"""
    (ragged_dim,) = numbers.lhs_ragged_dimensions
    return ragged_dim in numbers.dot_dimension_numbers[0][0]


def dim_of_rows(numbers: Any) -> int:
    """The dim of a result that has rows."""
    (ragged_dim,) = numbers.lhs_ragged_dimensions
    contracted = numbers.dot_dimension_numbers[0][0]
    return ragged_dim - sum(dim < ragged_dim for dim in contracted)


def only_rows_of(sizes: Any, made: Any, dim: int) -> Any:
    """A result with zeros in rows of no group, of which machines do not tell what they leave."""
    rows = jax.lax.broadcasted_iota(jnp.int32, made.shape, dim)
    return jnp.where(rows < jnp.sum(sizes), made, jnp.zeros((), made.dtype))


def running_sum(values: Any) -> Any:
    """Sums up to each of a few numbers, without an op that XLA keeps apart."""
    numbers = jnp.arange(values.shape[0])
    return jnp.sum(
        jnp.where(numbers[None, :] <= numbers[:, None], values.astype(jnp.int32)[None, :], 0), 1
    )


def _turned(value: Any, start: Any, dim: int, direction: int) -> Any:
    return value if start is None else jnp.roll(value, direction * start, dim)
