"""``jax.lax.ragged_dot``: the matmuls of experts, planned as a kernel that may be cut in every dim.

``group_sizes`` says which rows belong to which expert. Of a part of the rows, or of the experts,
it says nothing; so the kernel is given the expert of each row, and the number of each expert, which
are cut as rows and experts are:

    rows x in, experts x in x out, rows, experts -> rows x out        added over in and experts

A device finds the sizes of its groups from them. Rows of other devices' experts it leaves zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax._src.lax import lax  # pyright: ignore[reportPrivateUsage]
from jax.interpreters import mlir

from autoshard.ir.kernel import Call, is_in_composite, kernel_p
from autoshard.ir.lowering import Rules, lowering_rule, marks_are_lowered
from autoshard.sharding.kernel_rule import Dims, KernelRule

_PRIMITIVE: Any = lax.ragged_dot_general_p
_ROWS, _EXPERTS = "rows", "experts"


def ragged_dot_rules() -> Rules:
    """How ``ragged_dot_general`` is lowered."""
    return ((_PRIMITIVE, _lower),)


def _lower(context: Any, *operands: Any, **params: Any) -> Any:
    lhs, rhs, sizes, *offset = context.avals_in
    numbers = params["ragged_dot_dimension_numbers"]
    has_batch = bool(numbers.dot_dimension_numbers[1][0])
    if not marks_are_lowered() or is_in_composite() or offset or has_batch or sizes.ndim != 1:
        rule = lowering_rule(_PRIMITIVE, context.module_context.platforms[0])
        return rule(context, *operands, **params)
    local = _Local(numbers, tuple(params.items()), sizes.shape[0])
    call = Call("ragged_dot", local, _rule(numbers, lhs.ndim, rhs.ndim))

    def planned(lhs: Any, rhs: Any, sizes: Any) -> Any:
        rows = jnp.arange(lhs.shape[local.ragged_dim], dtype=jnp.int32)
        experts = jnp.arange(sizes.shape[0], dtype=jnp.int32)
        # A running sum, of so few numbers that it needs no op of its own.
        is_before = experts[None, :] <= experts[:, None]
        ends = jnp.sum(jnp.where(is_before, sizes.astype(jnp.int32)[None, :], 0), 1)
        expert_of_row = jnp.sum(ends[None, :] <= rows[:, None], 1, dtype=jnp.int32)
        return kernel_p.bind(lhs, rhs, expert_of_row, experts, call=call)

    return cast(Any, mlir).lower_fun(planned, multiple_results=True)(context, *operands)


def _rule(numbers: Any, lhs_rank: int, rhs_rank: int) -> KernelRule:
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
    return KernelRule("ragged_dot", operands, (result,), frozenset(sums), frozenset())


@dataclass(frozen=True)
class _Local:
    """A ``ragged_dot_general`` of some rows and some experts, both in their order."""

    numbers: Any
    params: tuple[tuple[str, Any], ...]
    num_experts: int
    """Experts on all devices together."""

    @property
    def ragged_dim(self) -> int:
        """The dim of the left operand that counts the rows."""
        (dim,) = self.numbers.lhs_ragged_dimensions
        return dim

    def __call__(self, lhs: Any, rhs: Any, expert_of_row: Any, experts: Any) -> list[Any]:
        sizes = jnp.sum(expert_of_row[:, None] == experts[None, :], 0, dtype=jnp.int32)
        has_all = experts.shape[0] == self.num_experts
        start = None if has_all else jnp.sum(expert_of_row < experts[0], dtype=jnp.int32)
        (lhs_contracted, rhs_contracted), _ = self.numbers.dot_dimension_numbers
        lhs = _turned(lhs, start, self.ragged_dim, -1)
        makes_weights = self.ragged_dim in lhs_contracted
        if makes_weights:
            rhs_dim = rhs_contracted[list(lhs_contracted).index(self.ragged_dim)]
            rhs = _turned(rhs, start, rhs_dim, -1)
        made = _PRIMITIVE.bind(lhs, rhs, sizes, **dict(self.params))
        if makes_weights:
            return [made]
        dim = _place_of(self.ragged_dim, lhs_contracted)
        # What a machine leaves in rows of no group is not told.
        rows = jax.lax.broadcasted_iota(jnp.int32, made.shape, dim)
        made = jnp.where(rows < jnp.sum(sizes), made, jnp.zeros((), made.dtype))
        return [_turned(made, start, dim, 1)]


def _turned(value: Any, start: Any, dim: int, direction: int) -> Any:
    return value if start is None else jnp.roll(value, direction * start, dim)


def _place_of(dim: int, contracted: Sequence[int]) -> int:
    """Where a dim of the left operand is in a result without the contracted ones."""
    return dim - sum(other < dim for other in contracted)
