"""Proof that a program in lockstep hands out what all stages agree on."""

from __future__ import annotations

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import (
    STAGE_EXCHANGE,
    STAGE_GATHER,
    STAGE_NUMBER,
    STAGE_PERMUTE,
    STAGE_ROWS,
    STAGE_SUM,
    custom_call_target,
)
from autoshard.ir.boundary import entries_at, main_function
from autoshard.rewrites.recomputation.loops import body_of, yielded_of
from autoshard.rewrites.stage_tasks.tasks import outer_uses

_OWN = (STAGE_NUMBER, STAGE_PERMUTE, STAGE_EXCHANGE)
_SAME = (STAGE_SUM, STAGE_GATHER)


def own_arguments(main: mlir.Operation) -> set[mlir.Value]:
    """Arguments of which each stage has its own rows."""
    entries = entries_at(main, "arg_attrs")
    arguments = main.regions[0].blocks[0].arguments
    return {one for one, entry in zip(arguments, entries, strict=True) if STAGE_ROWS in entry}


def own_values(block: mlir.Block, own: set[mlir.Value]) -> None:
    """Add to ``own`` the values of a block that may differ from stage to stage.

    Raises:
        PlanError: Stages may go round a loop more or less often.
    """
    for op in block.operations:
        own_of_op(op.operation, own)


def own_of_op(op: mlir.Operation, own: set[mlir.Value]) -> None:
    """As ``own_values``, of one op and those in it."""
    target = custom_call_target(op)
    if op.name == "stablehlo.while":
        _own_in_loop(op, own)
    elif target not in _SAME and (
        target in _OWN or any(user.operands[operand] in own for user, operand in outer_uses(op))
    ):
        own.update(op.results)


def _own_in_loop(op: mlir.Operation, own: set[mlir.Value]) -> None:
    body, condition = body_of(op), op.regions[0].blocks[0]
    slots = {slot for slot, value in enumerate(op.operands) if value in own}
    before = -1
    while len(slots) != before:
        before = len(slots)
        own.update(body.arguments[slot] for slot in slots)
        own_values(body, own)
        slots |= {slot for slot, value in enumerate(yielded_of(op)) if value in own}
    own.update(condition.arguments[slot] for slot in slots)
    own_values(condition, own)
    if condition.operations[len(condition.operations) - 1].operands[0] in own:
        raise PlanError(
            "execution='lockstep': stages may go round this loop more or less often, and none may"
            " wait for collectives that the others do not reach. Take execution='stages'.",
            place(op.location),
        )
    own.update(op.results[slot] for slot in slots)


def check_results_agree(module: mlir.Module) -> None:
    """Raise unless all results but those with rows of each stage are the same on all stages.

    Raises:
        PlanError: One may differ.
    """
    main = main_function(module)
    block = main.regions[0].blocks[0]
    own = own_arguments(main)
    own_values(block, own)
    end = block.operations[len(block.operations) - 1].operation
    results = zip(end.operands, entries_at(main, "res_attrs"), strict=True)
    for number, (value, entry) in enumerate(results):
        if value in own and STAGE_ROWS not in entry:
            raise PlanError(
                f"execution='lockstep': result {number} would differ from stage to stage. Take"
                " execution='stages'.",
                place(end.location),
            )
