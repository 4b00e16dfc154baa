"""Why a program cannot be cut into micro-batches, in the user's terms."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import _core
from autoshard._core import Why
from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import custom_call_target
from autoshard.kernels.calls import is_opaque_kernel
from autoshard.kernels.cudnn_attention import is_cudnn_attention
from autoshard.kernels.mosaic import is_tpu_kernel

_RULES = {
    Why.EXAMPLES: "combines examples of the batch with one another",
    Why.PART: "needs all examples at once: no factor rule lets it be computed of a part of them",
    Why.UNEVEN: "has the batch in a dim that does not fall into equal parts of every micro-batch",
    Why.NO_SUM: "reduces over the batch, and does not add",
    Why.CARRIED: "carries a value that is a part of the batch at one time and a sum at another",
}


def refusal(
    operations: Sequence[mlir.Operation], error: _core.CannotMicroBatch, count: int
) -> PlanError:
    """The core's refusal as an error with lines, the rule and a way out.

    Args:
        operations: Of the module, as numbered.
        error: ``(why, op, sum, heavy)``.
        count: Micro-batches.
    """
    why, number, sum_number, heavy_number = error.args
    op = reader = operations[number]
    if why == Why.MIXES and sum_number >= 0:
        total = operations[sum_number]
        text = (
            f"{_called(total)} adds up over the batch, and {_called(op)}{_at(op, total)} reads the"
            " sum before it is finished: in the middle of the step each micro-batch would need all"
            " others"
        )
        reader, op = op, total
    elif why == Why.MIXES:
        text = f"{_called(op)} reads a sum over the batch before it is finished"
    else:
        text = f"{_called(op)} {_RULES[why]}"
    near = (op, reader) if heavy_number < 0 else (op, reader, operations[heavy_number])
    where = next((found for one in near if (found := place(one.location))), None)
    return PlanError(
        f"micro_batches={count}: {text}. {_computed_before(operations, op, heavy_number)}"
        f"{_way_out(why, op)}",
        where,
    )


def _computed_before(
    operations: Sequence[mlir.Operation], op: mlir.Operation, heavy_number: int
) -> str:
    if heavy_number < 0:
        return ""
    heavy = operations[heavy_number]
    if heavy == op:
        return "It is too much to be computed of the whole batch before. "
    return (
        "It cannot be computed of the whole batch before, either, as"
        f" {_called(heavy)}{_at(heavy, op)} leads to it. "
    )


def _way_out(why: Why, op: mlir.Operation) -> str:
    if why in (Why.MIXES, Why.NO_SUM) and (line := _line(op)):
        return (
            f'If each micro-batch may take its own, give per_micro_batch=("{line}",); else leave'
            " micro_batches out."
        )
    if why == Why.UNEVEN:
        return "Choose another number of micro-batches, or a batch that it divides."
    is_kernel = is_opaque_kernel(op) or is_tpu_kernel(op) or is_cudnn_attention(op)
    if op.name == "stablehlo.custom_call" and not is_kernel:
        return "Give it a rule with autoshard.register_rule, or leave micro_batches out."
    return (
        "Write it for each example by itself, or use autoshard.accumulate_gradients on the part of"
        " the step that can be cut."
    )


def _called(op: mlir.Operation) -> str:
    target = custom_call_target(op)
    return f"custom_call @{target}" if target else op.name.split(".", 1)[-1]


def _at(op: mlir.Operation, other: mlir.Operation) -> str:
    """Where another op stands, if it is another place."""
    where = place(op.location)
    return f" ({where})" if where and where != place(other.location) else ""


def _line(op: mlir.Operation) -> str | None:
    where = place(op.location)
    return None if where is None else where.rsplit(":", 1)[0]
