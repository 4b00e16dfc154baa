"""Pallas kernels in interpret mode, as programs for CPUs have them: cut as they would be on TPUs.

Lowered for a CPU such a kernel is a loop over its grid that reads and writes blocks, of which
nobody would see that devices may share the grid out. So it is lowered for a TPU too, from which
``kernels/cuts.py`` proves which dims of the grid may be cut, and becomes a composite with that
rule; where nothing is proven, with one that leaves all of it whole, of which plans warn.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard.importer.factors import FactorRule
from autoshard.importer.kernels import ProvenKernel, only_kernel
from autoshard.ir.kernel import Call, is_in_composite, lower_as_composite
from autoshard.ir.lowering import (
    NotLoweredError,
    Rules,
    lower_at_home,
    lowering_rule,
    marks_are_lowered,
)
from autoshard.kernels.cuts import Cut
from autoshard.sharding.kernel_rule import Dims, KernelRule

_PALLAS = "jax._src.pallas.pallas_call"
_DEVICE = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")


def interpreted_kernel_rules() -> Rules:
    """How ``pallas_call`` is lowered; nothing where Pallas was never imported."""
    pallas: Any = sys.modules.get(_PALLAS)
    return () if pallas is None else ((pallas.pallas_call_p, _lower),)


def _lower(context: Any, *operands: Any, **params: Any) -> Any:
    pallas: Any = sys.modules[_PALLAS]
    platform = context.module_context.platforms[0]
    if marks_are_lowered() and params["interpret"] is True and not is_in_composite():
        call = _call(pallas.pallas_call_p, context.avals_in, params)
        return lower_as_composite(context, operands, call)
    entry = lowering_rule(pallas.pallas_call_p, platform)
    return entry(context, *operands, **params)


def _call(primitive: Any, avals: Any, params: dict[str, Any]) -> Call:
    """The kernel with its rule."""
    name = params["jaxpr"].debug_info.func_name
    proven = _proven_call(name, primitive, avals, params)
    if proven is not None:
        return proven

    def whole(*operands: Any) -> list[Any]:
        return list(primitive.bind(*operands, **params))

    arrays = (None,) * len(avals), (None,) * len(params["out_avals"])
    rule = KernelRule(f"nothing proven of {name}", *arrays, frozenset(), frozenset())
    return Call(name, whole, rule, is_unproven=True)


def _proven_call(name: str, primitive: Any, avals: Any, params: dict[str, Any]) -> Call | None:
    """None where nothing of the kernel may be cut, or no TPU could run it."""

    def kernel(*operands: Any) -> Any:
        return primitive.bind(*operands, **{**params, "interpret": False})

    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    try:
        lowered = lower_at_home(kernel, structs, "tpu", _DEVICE)
    except NotLoweredError:  # blocks of other shapes than TPUs have, most often
        return None
    proven = only_kernel(lowered, len(structs))
    if proven is None:
        return None
    on_grid = _OnGrid(primitive, params, proven)
    return Call(name, on_grid, _as_kernel_rule(name, proven.rule))


@dataclass(frozen=True, eq=False)
class _OnGrid:
    """A ``pallas_call`` on that part of its grid which its operands are."""

    primitive: Any
    params: dict[str, Any]
    proven: ProvenKernel

    def __call__(self, *operands: Any) -> list[Any]:
        mapping, num_tables = self.params["grid_mapping"], self.proven.num_tables
        grid = list(mapping.grid)
        shapes = [list(shape) for shape in self.proven.shapes[num_tables:]]
        for cut in self.proven.cuts:
            parts = self._parts(cut, operands)
            grid[cut.grid_dim] //= parts
            for shape, dim in zip(shapes, cut.array_dims, strict=True):
                if dim is not None:
                    shape[dim] //= parts
        blocks = tuple(
            replace(block, array_aval=block.array_aval.update(shape=tuple(shape)))
            for block, shape in zip(mapping.block_mappings, shapes, strict=True)
        )
        results = shapes[len(operands) - num_tables :]
        local = {
            "grid_mapping": replace(mapping, grid=tuple(grid), block_mappings=blocks),
            "out_avals": tuple(
                aval.update(shape=tuple(shape))
                for aval, shape in zip(self.params["out_avals"], results, strict=True)
            ),
        }
        return list(self.primitive.bind(*operands, **{**self.params, **local}))

    def _parts(self, cut: Cut, operands: Any) -> int:
        """Number of equal parts along ``cut`` of which the operands are one."""
        for window, dim in enumerate(cut.array_dims):
            number = self.proven.num_tables + window
            if dim is not None and number < len(operands):
                return self.proven.shapes[number][dim] // operands[number].shape[dim]
        return 1


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
    return KernelRule(f"derived of {name}", *sides, frozenset(), frozenset(whole))
