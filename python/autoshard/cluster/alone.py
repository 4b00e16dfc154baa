"""An op that is no part of a program, as the core's ``compute`` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autoshard import _core

Tensor = tuple[Sequence[Sequence[int]], int]
"""The factors of each dim, and the bits of an element; without dims: rank 0."""


def rule_alone(
    work: _core.Work,
    arithmetic: _core.Arithmetic,
    flops: float,
    sizes: Sequence[int],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    *,
    operand_bytes: Sequence[float] = (),
    result_bytes: Sequence[float] = (),
    touched_as: int = -1,
    moved_again: float = 0.0,
    exponentials: float = 0.0,
    vector_flops: float = 0.0,
) -> tuple[_core.Rule, list[_core.TensorType]]:
    """The rule of an op, and the types of its tensors.

    Args:
        work: What it does.
        arithmetic: Of its widest operand.
        flops: Operations of the whole op.
        sizes: Of each factor.
        operands: What it reads.
        results: What it makes.
        operand_bytes: Bytes touched of each operand where that is less than all; see ``Rule`` in
            passes/model/program.h.
        result_bytes: As ``operand_bytes``.
        touched_as: The tensor whose axes cut what is touched; -1: each tensor's own.
        moved_again: Bytes beside one pass over operands and results.
        exponentials: Those that operations on the matrix units wait for.
        vector_flops: Other operations on the vector units that they wait for.
    """
    types: list[_core.TensorType] = []

    def tensors(side: Sequence[Tensor]) -> list[_core.RuleTensor]:
        found: list[_core.RuleTensor] = []
        for dims, bits in side:
            if not dims:
                found.append(_core.RuleTensor(_core.NO_TYPE, ()))
                continue
            found.append(_core.RuleTensor(len(types), dims))
            types.append(_core.TensorType([prod(sizes[f] for f in dim) for dim in dims], bits))
        return found

    rule = _core.Rule(
        [_core.Factor(size) for size in sizes],
        tensors(operands),
        tensors(results),
        work=work,
        arithmetic=arithmetic,
        flops=flops,
        operand_bytes=operand_bytes,
        result_bytes=result_bytes,
        touched_as=touched_as,
        moved_again=moved_again,
        exponentials=exponentials,
        vector_flops=vector_flops,
    )
    return rule, types
