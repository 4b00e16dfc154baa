"""What TPU kernels of a program cost, found again in the compiled one by their Mosaic modules.

Compilers know nothing of what a kernel computes, and hand its module on as it is. What the module
says, and the tables that it is given, are known before compiling only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.cluster.alone import Tensor, rule_alone
from autoshard.importer.work import work_of
from autoshard.ir import element_bits, mlir
from autoshard.ir.module import operations_of
from autoshard.kernels.mosaic import body_of, is_tpu_kernel
from autoshard.sharding.mesh import Axis, Mesh
from autoshard.verify.hlo_program import HloInstruction
from autoshard.verify.instruction_costs import InstructionCost

_BODY = re.compile(r'"custom_call_config":\{.*?"body":"([^"]*)"')

KernelCosts = Mapping[str, InstructionCost]
"""By the text of the Mosaic module."""


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
    return found


def kernel_cost(instruction: HloInstruction, costs: KernelCosts) -> InstructionCost | None:
    """Cost of the kernel that an instruction calls; None where it calls none that is known."""
    if not costs or instruction.opcode != "custom-call":
        return None
    body = _BODY.search(instruction.rest)
    return None if body is None else costs.get(body[1])


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
    )
    mesh = Mesh(tuple(Axis(dim.name, dim.size) for dim in cluster.dims))
    cost = _core.compute(
        rule,
        types,
        ((),) * len(sizes),
        (True,) * len(operands),
        (True,) * len(results),
        cluster.to_core(mesh),
        [axis.size for axis in mesh.axes],
    )
    return InstructionCost(cost.seconds, cost.flops, cost.bytes)
