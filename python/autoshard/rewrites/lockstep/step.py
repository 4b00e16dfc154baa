"""A train step as a program that all stages of a pipeline run in lockstep."""

from __future__ import annotations

import json
from dataclasses import asdict

from autoshard.errors import PlanError
from autoshard.importer.stage_ops import stage_of_mark
from autoshard.ir import mlir, place
from autoshard.ir.attributes import LOCKSTEP
from autoshard.ir.boundary import main_function
from autoshard.ir.micro_batch_loop import micro_batch_loop
from autoshard.ir.module import operations_of
from autoshard.rewrites.lockstep.check import check_results_agree, own_arguments, own_of_op
from autoshard.rewrites.lockstep.steps import Steps
from autoshard.rewrites.lockstep.write import Shape, write_steps


def check_lockstep(module: mlir.Module, stages: int, micro_batches: int) -> None:
    """Raise where no step can be in lockstep.

    Raises:
        PlanError: Stages cannot share the micro-batches, or marks say stages.
    """
    if micro_batches % stages:
        low = micro_batches - micro_batches % stages
        raise PlanError(
            f"execution='lockstep' with stages={stages}, micro_batches={micro_batches}: stages"
            " share the micro-batches of what is no layer, as of the loss. Give a multiple of the"
            f" stages: {f'{low} or ' if low else ''}{low + stages}."
        )
    for op in operations_of(module.operation):
        if stage_of_mark(op) >= 0:
            raise PlanError(
                "execution='lockstep': autoshard.pipeline_stage says a stage, and here all stages"
                " run one program, each with its part of the layers of a loop. Take the marks out,"
                " or take execution='stages'.",
                place(op.location),
            )


def into_lockstep(module: mlir.Module, shape: Shape) -> None:
    """Let the stages go through the micro-batches in lockstep.

    Args:
        module: As ``into_one_stage`` and then ``autoshard-micro-batch`` leave it. Expects its
            context.
        shape: How many stages and micro-batches.

    Raises:
        PlanError: The step cannot be in lockstep.
    """
    main = main_function(module)
    loop = micro_batch_loop(main)
    own = own_arguments(main)
    block = main.regions[0].blocks[0]
    _own_before(block, loop, own)
    write_steps(Steps(loop, own), shape)
    check_results_agree(module)
    module.operation.attributes[LOCKSTEP] = mlir.StringAttr.get(json.dumps(asdict(shape)))


def _own_before(block: mlir.Block, loop: mlir.Operation, own: set[mlir.Value]) -> None:
    """Add what differs from stage to stage of what the loop is given."""
    for op in block.operations:
        if op.operation == loop:
            return
        own_of_op(op.operation, own)


def lockstep_of(module: mlir.Module) -> Shape | None:
    """How a module is in lockstep; None: it is not."""
    return _said_on(module.operation)


def stages_around(op: mlir.Operation) -> int:
    """How many stages run an op of a module: 1 where it is not in lockstep."""
    while op.parent is not None:
        op = op.parent.operation
    shape = _said_on(op)
    return 1 if shape is None else shape.stages


def _said_on(module: mlir.Operation) -> Shape | None:
    if LOCKSTEP not in module.attributes:
        return None
    return Shape(**json.loads(mlir.StringAttr(module.attributes[LOCKSTEP]).value))
