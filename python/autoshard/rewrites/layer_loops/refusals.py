"""What is said of loops that cannot be cut for stages."""

from __future__ import annotations

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.rewrites.layer_loops.loops import LayerLoop, layer_loop
from autoshard.rewrites.recomputation.loops import maker_of


def too_large(
    op: mlir.Operation, share: float, stages: int, trips: int, parts: int | None
) -> PlanError:
    """A loop over layers that takes too large a share of the step.

    Args:
        op: The loop.
        share: Of the step, that one part of the loop takes.
        stages: How many there are.
        trips: Of the loop.
        parts: Into how many parts it is cut; None: no loops are, as they do not fill the stages.
    """
    return PlanError(
        f"stages={stages}: a loop over layers is cut by its trips into equal parts, one a stage,"
        f" and {_why_so_few(stages, trips, parts)}: one stage would have {100 * share:.0f} % of the"
        " step. Give a number of stages that fits, or unroll the loop (jax.lax.scan: unroll=True,"
        " or a for loop over layers).",
        place(op.location),
    )


def in_chunks(op: mlir.Operation, chunks: int) -> PlanError:
    """A loop over layers that would have to be cut for several parts of the model a stage."""
    return PlanError(
        f"chunks={chunks}: a loop over layers would be cut by its trips, and each stage would have"
        " rows of its arrays that are not next to each other, which no array of JAX can. Leave"
        " chunks out, or unroll the loop (jax.lax.scan: unroll=True, or a for loop over layers,"
        " each with weights of its own).",
        place(op.location),
    )


def _why_so_few(stages: int, trips: int, parts: int | None) -> str:
    if trips == 1:
        return "this one has one trip and cannot be cut"
    fitting = [count for count in range(2, trips + 1) if trips % count == 0]
    if parts is not None and any(parts < count <= stages for count in fitting):
        said = f"is in {parts} parts" if parts > 1 else "is not cut"
        return f"this one of {trips} trips {said}, as what is around it takes the other stages"
    return f"{trips} trips fall into {', '.join(map(str, fitting))} of them only"


def why_whole(op: mlir.Operation) -> str:
    """Why a loop has not been cut by its trips, as a clause behind what is said of it."""
    found = layer_loop(op)
    if isinstance(found, str):
        return f": {found}, so that it cannot be cut by its trips"
    if found.others:
        return f": {found.others[0]}, so that it cannot be cut by its trips"
    if _has_weights(found):
        return ", and autoshard-split-loops has not cut it by its trips"
    return ", as no argument but the batch has a row for each of its trips"


def _has_weights(loop: LayerLoop) -> bool:
    """Whether rows are those of an argument, as it is or in another form."""
    for slot in loop.stacks:
        value = loop.op.operands[slot]
        while (op := maker_of(value)) is not None and len(op.operands) == 1:
            value = op.operands[0]
        if isinstance(value, mlir.BlockArgument):
            return True
    return False


def gone_through_twice(op: mlir.Operation) -> PlanError:
    """A cut loop that goes through layers a second time on the way forward."""
    return PlanError(
        "a loop over layers that is cut into stages goes through the same layers a second time, and"
        " forwards a micro-batch goes from stage to stage once. Let jax.checkpoint be around the"
        " body of the scan and not around the scan, give recompute= in its place, or unroll the"
        " loop (unroll=True).",
        place(op.location),
    )
