"""What is said of loops that cannot be cut for stages."""

from __future__ import annotations

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.rewrites.layer_loops.loops import LayerLoop, layer_loop
from autoshard.rewrites.recomputation.loops import maker_of


def too_large(
    op: mlir.Operation, share: float, asked: tuple[int, int], trips: int, parts: int | None
) -> PlanError:
    """A loop over layers that takes too large a share of the step.

    Args:
        op: The loop.
        share: Of the step, that one part of the loop takes.
        asked: How many stages there are, and parts of the model on each.
        trips: Of the loop.
        parts: Into how many parts it is cut; None: no loops are, as they do not fill the stages.
    """
    stages, chunks = asked
    said, each, unit = f"stages={stages}", "one a stage", "stage"
    way_out, percent = "a number of stages that fits", f"{100 * share:.0f}"
    if chunks > 1:
        said, each, unit = f"{said} chunks={chunks}", f"{chunks} a stage", "part"
        way_out = "stages and chunks that fit"
    return PlanError(
        f"{said}: a loop over layers is cut by its trips into equal parts, {each}, and"
        f" {_why_so_few(stages, chunks, trips, parts)}: one {unit} would have {percent} % of"
        f" the step. Give {way_out}, or unroll the loop (jax.lax.scan: unroll=True, or a for loop"
        " over layers).",
        place(op.location),
    )


def _why_so_few(stages: int, chunks: int, trips: int, parts: int | None) -> str:
    if trips == 1:
        return "this one has one trip and cannot be cut"
    fitting = [count for count in range(2, trips + 1) if trips % count == 0]
    unit = "stage" if chunks == 1 else "part"
    if chunks > 1:
        fitting = [count for count in fitting if count <= stages or count % stages == 0]
    if parts is not None and any(parts < count <= stages * chunks for count in fitting):
        said = f"is in {parts} parts" if parts > 1 else "is not cut"
        return f"this one of {trips} trips {said}, as what is around it takes the other {unit}s"
    if not fitting:
        return f"{trips} trips fall on no such stages equally"
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
