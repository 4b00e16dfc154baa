"""A ``pallas_call`` on a part of its grid, and the rule that says which parts there are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from autoshard.importer.factors import FactorRule
from autoshard.importer.kernels import ProvenKernel
from autoshard.ir.kernel import Call
from autoshard.kernels.cuts import Cut
from autoshard.sharding.kernel_rule import Dims, KernelRule


def call_of(
    primitive: Any,
    params: dict[str, Any],
    proven: ProvenKernel | None,
    num_operands: int,
) -> Call:
    """The kernel with the rule that is proven of it; whole on every device if that is nothing."""
    name = params["jaxpr"].debug_info.func_name
    if proven is not None:
        function, rule = OnGrid(primitive, params, proven), _as_kernel_rule(name, proven.rule)
        return Call(name, function, rule)

    def whole(*operands: Any) -> list[Any]:
        return list(primitive.bind(*operands, **params))

    arrays = (None,) * num_operands, (None,) * len(params["out_avals"])
    rule = KernelRule(f"nothing proven of {name}", *arrays, frozenset(), frozenset())
    return Call(name, whole, rule, is_unproven=True)


@dataclass(frozen=True, eq=False)
class OnGrid:
    """A ``pallas_call`` on that part of its grid which its operands are.

    Args:
        primitive: The one of ``pallas_call``.
        params: Its parameters for the whole.
        proven: What of it may be cut.
    """

    primitive: Any
    params: dict[str, Any]
    proven: ProvenKernel

    def __call__(self, *operands: Any) -> list[Any]:
        """The results' parts of the same part; tables come first."""
        mapping, num_tables = self.params["grid_mapping"], self.proven.num_tables
        grid = list(mapping.grid)
        shapes = [list(shape) for shape in self.proven.shapes]
        for cut in self.proven.cuts:
            parts = self._parts(cut, operands)
            grid[cut.grid_dim] //= parts
            for shape, dim in zip(shapes, cut.dims, strict=True):
                if dim is not None:
                    shape[dim] //= parts
        blocks = tuple(
            replace(block, array_aval=block.array_aval.update(shape=tuple(shape)))
            for block, shape in zip(mapping.block_mappings, shapes[num_tables:], strict=True)
        )
        results = shapes[len(operands) :]
        local = {
            "grid_mapping": replace(mapping, grid=tuple(grid), block_mappings=blocks),
            "out_avals": tuple(
                aval.update(shape=tuple(shape))
                for aval, shape in zip(self.params["out_avals"], results, strict=True)
            ),
        }
        tables = map(_as_whole, operands[:num_tables], self.proven.shapes)
        given = (*tables, *operands[num_tables:])
        return list(self.primitive.bind(*given, **{**self.params, **local}))

    def _parts(self, cut: Cut, operands: Any) -> int:
        """Number of equal parts along ``cut`` of which the operands are one."""
        for operand, shape, dim in zip(operands, self.proven.shapes, cut.dims, strict=False):
            if dim is not None:
                return shape[dim] // operand.shape[dim]
        return 1


def _as_whole(table: Any, shape: tuple[int, ...]) -> Any:
    """A part of a table, as long as the kernel expects the whole; it reads the front alone."""
    return jnp.pad(table, [(0, size - n) for size, n in zip(shape, table.shape, strict=True)])


def _as_kernel_rule(name: str, rule: FactorRule) -> KernelRule:
    whole = {f"f{n}" for n, it in enumerate(rule.factors) if it.kind.name == "NEED_REPLICATION"}
    tensors: list[Dims] = []
    for number, dims in enumerate((*rule.operands, *rule.results)):
        named: list[tuple[str, ...]] = []
        for dim, factors in enumerate(dims):
            names = tuple(f"f{factor}" for factor in factors) or (f"d{number}_{dim}",)
            whole |= set(names) if not factors else set()
            named.append(names)
        tensors.append(tuple(named))
    count = len(rule.operands)
    sides = tuple(tensors[:count]), tuple(tensors[count:])
    given = tuple((f"f{number}", factor.size) for number, factor in enumerate(rule.factors))
    return KernelRule(f"derived of {name}", *sides, frozenset(), frozenset(whole), given)
