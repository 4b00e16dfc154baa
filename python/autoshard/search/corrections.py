"""What a compiler made of a plan, as corrections of the costs of its program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Measured:
    """A plan as modelled without corrections, and as compiled."""

    modelled_bytes: float
    """Bytes of a device at the peak,"""
    compiled_bytes: float
    """and those that the compiled program needs."""
    modelled: tuple[float, float] = (0.0, 0.0)
    """Seconds of a step on one device: of products, and of other ops."""
    compiled: tuple[float, float] = (0.0, 0.0)
    """The same; zeros where there is no program to read."""

    @property
    def lacked_bytes(self) -> float:
        """Bytes that a device needs besides what is planned."""
        return self.compiled_bytes - self.modelled_bytes


def measured_by(
    planned: Planned, found: Verification, cluster: Cluster, trip_count: int
) -> Measured:
    """What the model says of a plan beside what its compiled program takes.

    Args:
        planned: Not exported.
        found: Its compiled program.
        cluster: What it is planned for.
        trip_count: Assumed trips of loops whose count cannot be read from the program.
    """
    costed = cost_of_module(planned.module, cluster.uncorrected, trip_count=trip_count)
    needed = found.program.needed_bytes
    if found.estimate is None:
        return Measured(costed.peak_bytes, needed)
    products = found.estimate.product_seconds
    others = found.estimate.compute_seconds - products
    return Measured(costed.peak_bytes, needed, planned_seconds(costed), (products, others))


def corrections_of(measured: Sequence[Measured]) -> Corrections:
    """Corrections by all plans that were compiled, of which there is one at least.

    Seconds are corrected by the sums of all, if each plan would have been closer by what the others
    say, taken together: where a compiler gives an op other seconds by how it is cut, one plan says
    little of the next. One plan alone is taken at its word. Bytes are those that the first plan
    lacked, the search's own, to which most others are alike.
    """
    lacked = measured[0].lacked_bytes
    timed = [one for one in measured if sum(one.compiled) > 0]
    if len(timed) > 1:
        others = [_times_of([*timed[:n], *timed[n + 1 :]]) for n in range(len(timed))]
        corrected = sum(map(_error, timed, others))
        if corrected >= sum(_error(one, (1.0, 1.0)) for one in timed):
            return Corrections(memory_bytes=lacked)
    return Corrections(*_times_of(timed), memory_bytes=lacked)


def _times_of(timed: Sequence[Measured]) -> tuple[float, float]:
    """How many times as long products, and other ops, take in all of these plans together."""
    modelled, compiled = [0.0, 0.0], [0.0, 0.0]
    for one in timed:
        for kind in range(2):
            modelled[kind] += one.modelled[kind]
            compiled[kind] += one.compiled[kind]
    least = _LEAST_SHARE * max(sum(modelled), sum(compiled))
    return _times(compiled[0], modelled[0], least), _times(compiled[1], modelled[1], least)


def _error(one: Measured, times: tuple[float, float]) -> float:
    """How far off the seconds of a plan are with these corrections."""
    said = sum(a * b for a, b in zip(one.modelled, times, strict=True))
    return abs(math.log(said / sum(one.compiled))) if said > 0 else 0.0


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
