"""How ``pallas_call`` is lowered for a plan: as a composite with the rule that is proven of it.

Kernels for TPUs are left alone, for what is lowered of them can be read. Of kernels in interpret
mode and of those for GPUs nobody could tell later that devices may share the grid out.
Where nothing is proven, the composite leaves all of it whole, of which plans warn.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from autoshard.frontend.grouped_matmuls import grouped_matmul, lower_grouped_matmul
from autoshard.frontend.interpreted_kernels import proven_on_tpu
from autoshard.frontend.pallas_flops import operations, product_type
from autoshard.frontend.part_of_grid import call_of
from autoshard.frontend.triton_kernels import is_for_triton, proven_of_blocks
from autoshard.ir.kernel import is_in_composite, lower_as_composite
from autoshard.ir.lowering import Rules, lowering_rule, marks_are_lowered

_PALLAS = "jax._src.pallas.pallas_call"


def pallas_kernel_rules() -> Rules:
    """How ``pallas_call`` is lowered; nothing where Pallas was never imported."""
    pallas: Any = sys.modules.get(_PALLAS)
    return () if pallas is None else ((pallas.pallas_call_p, _lower),)


def _lower(context: Any, *operands: Any, **params: Any) -> Any:
    primitive: Any = sys.modules[_PALLAS].pallas_call_p
    platform = context.module_context.platforms[0]
    is_interpreted = params["interpret"] is True
    is_planned = marks_are_lowered() and not is_in_composite()
    if is_planned and is_interpreted:
        grouped = grouped_matmul(params, context.avals_in)
        if grouped is not None:
            return lower_grouped_matmul(context, operands, grouped)
    if not is_planned or not (is_interpreted or is_for_triton(platform, params)):
        return lowering_rule(primitive, platform)(context, *operands, **params)
    if is_interpreted:
        call = call_of(
            primitive, params, proven_on_tpu(primitive, context.avals_in, params), len(operands)
        )
    else:
        work = operations(params)
        call = replace(
            call_of(primitive, params, proven_of_blocks(params), len(operands)),
            matmul_flops=work.matmul_flops,
            exponentials=work.exponentials,
            vector_flops=work.vector_flops,
            product=product_type(params),
        )
    return lower_as_composite(context, operands, call)
