"""What is said of loops that cannot be cut for stages."""

from __future__ import annotations

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.rewrites.layer_loops.loops import layer_loop


def too_large(op: mlir.Operation, share: float, stages: int, trips: int) -> PlanError:
    """A loop over layers, or a part of it, that takes too large a share of the step."""
    fitting = [str(count) for count in range(2, trips + 1) if trips % count == 0]
    return PlanError(
        f"stages={stages}: a loop over layers is cut by its trips into equal parts, one a stage,"
        f" and {trips} trips fall into {', '.join(fitting)} of them only: one stage would have"
        f" {100 * share:.0f} % of the step. Give a number of stages that fits, or unroll the loop"
        " (jax.lax.scan: unroll=True, or a for loop over layers).",
        place(op.location),
    )


def why_whole(op: mlir.Operation) -> str:
    """Why a loop has not been cut by its trips, as a clause behind what is said of it."""
    found = layer_loop(op)
    if isinstance(found, str):
        return f": {found}, so that it cannot be cut by its trips"
    return ", as it has no weights with a row a trip, or autoshard-split-loops has not cut it"


def gone_through_twice(op: mlir.Operation) -> PlanError:
    """A loop that goes through layers a second time on the way forward."""
    return PlanError(
        "a loop over layers that is cut into stages goes through the same layers a second time, in"
        " the same direction, and a micro-batch goes forward from stage to stage once. Let"
        " jax.checkpoint be around the body of the scan and not around the scan, give recompute= in"
        " its place, or unroll the loop (unroll=True).",
        place(op.location),
    )
