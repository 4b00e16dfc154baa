"""What a compiler made of a plan, as corrections of the costs of its program."""

from __future__ import annotations

from autoshard._core import Work
from autoshard.cluster import Cluster
from autoshard.cluster.corrections import Corrections
from autoshard.planned.given_plan import Costed, cost_of_module
from autoshard.search.automatic import Planned
from autoshard.verify.verification import Verification

_PRODUCTS = (Work.MATMUL, Work.KERNEL, Work.ATTENTION, Work.ATTENTION_GRADIENT)

_LEAST_SHARE = 0.02
"""A class of ops that takes less of the compute, planned or compiled, is not corrected: what of
it is fused into which other kernel says more then than how long it takes."""

_MOST_TIMES = 8.0
"""By which a class is corrected at most."""


def corrections_by(
    planned: Planned, found: Verification, cluster: Cluster, trip_count: int
) -> Corrections:
    """Corrections with which the model says of a plan what its compiled program takes.

    Args:
        planned: Not exported.
        found: Its compiled program; where it does not fit, memory alone is corrected.
        cluster: What it is planned for.
        trip_count: Assumed trips of loops whose count cannot be read from the program.
    """
    costed = cost_of_module(planned.module, cluster.uncorrected, trip_count=trip_count)
    memory = found.program.needed_bytes - costed.peak_bytes
    if found.estimate is None:
        return Corrections(memory_bytes=memory)
    products, others = planned_seconds(costed)
    compiled = found.estimate.product_seconds
    rest = found.estimate.compute_seconds - compiled
    least = _LEAST_SHARE * max(products + others, compiled + rest)
    return Corrections(
        _times(compiled, products, least), _times(rest, others, least), memory_bytes=memory
    )


def planned_seconds(costed: Costed) -> tuple[float, float]:
    """Seconds of a step on one device: of matmuls, convolutions and kernels, and of other ops."""
    program = costed.imported.program
    products = others = 0.0
    for op, (seconds, trips) in enumerate(
        zip(costed.plan.op_seconds, program.op_trips, strict=True)
    ):
        if program.rule_of(op).work in _PRODUCTS:
            products += seconds * trips
        else:
            others += seconds * trips
    return products, others


def _times(compiled: float, planned: float, least: float) -> float:
    if min(compiled, planned) <= least:
        return 1.0
    return min(max(compiled / planned, 1 / _MOST_TIMES), _MOST_TIMES)
