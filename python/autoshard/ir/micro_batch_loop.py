"""The loop over micro-batches that ``autoshard-micro-batch`` leaves in a module."""

from __future__ import annotations

import json

from jaxlib.mlir import ir

from autoshard.errors import PlanError
from autoshard.ir.attributes import MICRO_BATCHES
from autoshard.ir.boundary import main_function
from autoshard.ir.locations import place


def micro_batch_loop(main: ir.Operation) -> ir.Operation:
    """The loop over micro-batches of a function.

    Raises:
        PlanError: There is none.
    """
    for op in main.regions[0].blocks[0].operations:
        if op.operation.name == "stablehlo.while" and MICRO_BATCHES in op.operation.attributes:
            return op.operation
    raise PlanError(
        "the step has no loop over micro-batches, and stages work on these. Run"
        " autoshard-micro-batch first, with micro-batches=2 or more.",
        place(main.location),
    )


def micro_batches_of(module: ir.Module) -> int:
    """How many micro-batches a step works through.

    Raises:
        PlanError: It has no loop over any.
    """
    micro_batch_loop(main_function(module))
    said = ir.StringAttr(module.operation.attributes[MICRO_BATCHES]).value
    return int(json.loads(said)["count"])
