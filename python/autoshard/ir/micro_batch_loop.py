"""What passes of pipelines leave in a module: the loop over micro-batches, and counts."""

from __future__ import annotations

import json

from jaxlib.mlir import ir

from autoshard.errors import PlanError
from autoshard.ir.attributes import MICRO_BATCHES, PIPELINE_CHUNKS, attribute_of
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


def pipeline_chunks_of(module: ir.Module) -> int:
    """How many parts of the model each stage has."""
    chunks = attribute_of(module.operation, PIPELINE_CHUNKS)
    return 1 if chunks is None else int(ir.IntegerAttr(chunks).value)
