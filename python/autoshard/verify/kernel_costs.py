"""What kernels of a program cost, found again in the compiled one by what they say of themselves.

Compilers know nothing of what a kernel computes, and hand its Mosaic module or its configuration on
as it is. What that says, and the tables that it is given, are known before compiling only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.cluster.alone import Tensor, rule_alone
from autoshard.importer.work import work_of
from autoshard.ir import element_bits, mlir
from autoshard.ir.attributes import custom_call_target
from autoshard.ir.module import operations_of
from autoshard.kernels.cudnn_attention import cudnn_attention
from autoshard.kernels.mosaic import body_of, is_tpu_kernel
from autoshard.verify.hlo_program import HloInstruction
from autoshard.verify.instruction_costs import InstructionCost

_BODY = re.compile(r'"custom_call_config":\{.*?"body":"([^"]*)"')

_ATTENTION = re.compile(r'custom_call_target="(__cudnn[^"]*)".*?backend_config=(\{.*\})')

KernelCosts = Mapping[str, InstructionCost]
"""Cost of a kernel by the text of its Mosaic module; of cuDNN's by its name and configuration."""


def kernel_costs(module: mlir.Module, cluster: Cluster) -> dict[str, InstructionCost]:
    """Costs of the kernels of an exported module, on one device: by the planner's formulas.

    Args:
        module: Exported for Shardy; a kernel stands there with the part of its grid that a device
            has.
        cluster: What it is compiled for.
    """
    found: dict[str, InstructionCost] = {}
    with module.context:
        for op in operations_of(module.operation):
            body = body_of(op) if is_tpu_kernel(op) else None
            if body is not None:
                found[body] = _cost(op, cluster)
            elif (attention := cudnn_attention(op)) is not None:
                found[_key(str(custom_call_target(op)), attention.config)] = _cost(op, cluster)
    return found


def _key(target: str, config: Mapping[str, Any]) -> str:
    return f"{target} {json.dumps(config, sort_keys=True)}"


def kernel_cost(instruction: HloInstruction, costs: KernelCosts) -> InstructionCost | None:
    """Cost of the kernel that an instruction calls; None where it calls none that is known."""
    if not costs or instruction.opcode != "custom-call":
        return None
    body = _BODY.search(instruction.rest)
    if body is not None:
        return costs.get(body[1])
    attention = _ATTENTION.search(instruction.rest)
    if attention is None:
        return None
    config, _ = json.JSONDecoder().raw_decode(attention[2])
    return costs.get(_key(attention[1], config))


def _cost(op: mlir.Operation, cluster: Cluster) -> InstructionCost:
    work = work_of(op)
    sizes: list[int] = []

    def tensors(values: Iterable[mlir.Value]) -> list[Tensor]:
        made: list[Tensor] = []
        for value in values:
            type_ = mlir.RankedTensorType(value.type)
            made.append((((len(sizes),),), element_bits(type_.element_type)))
            sizes.append(prod(type_.shape))
        return made

    operands, results = tensors(op.operands), tensors(op.results)
    rule, types = rule_alone(
        work.work,
        work.arithmetic,
        work.flops,
        sizes,
        operands,
        results,
        operand_bytes=work.operand_bytes,
        result_bytes=work.result_bytes,
        moved_again=work.moved_again,
        exponentials=work.exponentials,
        vector_flops=work.vector_flops,
    )
    mesh = cluster.level_mesh()
    cost = _core.compute(
        rule,
        types,
        ((),) * len(sizes),
        (True,) * len(operands),
        (True,) * len(results),
        cluster.to_core(mesh),
        [axis.size for axis in mesh.axes],
    )
    return InstructionCost(cost.seconds, cost.flops, cost.bytes, is_product=True)
