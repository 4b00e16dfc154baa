"""``micro_batches="auto"``: the number of parts of the batch with the fastest step that fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from autoshard.errors import DoesNotFitError
from autoshard.frontend.batch_arrays import batch_of_source, no_batch, pieces_of_batch, rows_of
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.passes.memory_limit import memory_limit_of
from autoshard.planned.summary import PlanSummary, TriedMicroBatches
from autoshard.search.micro_batches import choose_micro_batches, divisors, free_step


def with_chosen_micro_batches(
    source: Source,
    request: Request,
    plan: Callable[[Request], Plan],
    free: Callable[[Request], PlanSummary],
) -> Plan:
    """The fastest plan that fits of all numbers of micro-batches; it says what was tried.

    A step of which nobody knows the batch, or that cannot be cut, stays whole; so it does where
    examples are too few.

    Args:
        source: The lowered function.
        request: Says ``micro_batches="auto"``.
        plan: Plans for a request with a number.
        free: What the fastest plan for such a request costs that no limit of memory holds back.

    Raises:
        DoesNotFitError: None fits; it says what was tried.
    """
    held = batch_of_source(source, request.batch_argnums)
    examples = math.gcd(*rows_of(source, held)) if held else 1
    asked = within_memory(source, request)
    pieces = pieces_of_batch(source, request, held)
    try:
        found = choose_micro_batches(
            divisors(examples, pieces),
            divisors(examples, math.lcm(pieces, source.machine.mesh.size)),
            lambda count: plan(asked.with_micro_batches(count)),
            _costs,
            lambda count: free_step(free(asked.with_micro_batches(count))),
            request.options().most_seconds,
        )
    except DoesNotFitError as error:
        if held:
            raise
        raise _because(error, no_batch(source, request)) from error
    tried = found.tried
    if not held:
        tried += (TriedMicroBatches(2, "refused", reason=no_batch(source, request)),)
    return replace(found.plan, summary=replace(_costs(found.plan), tried_micro_batches=tried))


def taken_micro_batches(plan: Plan) -> int:
    """The number that was chosen for a plan."""
    tried = _costs(plan).tried_micro_batches
    return next(one.micro_batches for one in tried if one.outcome == "taken")


def within_memory(source: Source, request: Request) -> Request:
    """The same with a limit of memory: modes that do not search keep one only where it is given."""
    if source.mode == "auto" or request.memory_limit is not None:
        return request
    assert source.cluster is not None
    return replace(request, memory_limit=int(memory_limit_of(source.cluster, "")))


def _costs(plan: Plan) -> PlanSummary:
    return cast(PlanSummary, plan.summary)


def _because(error: DoesNotFitError, why: str) -> DoesNotFitError:
    return DoesNotFitError(
        error.found,
        error.location,
        error.peak_bytes,
        error.memory_limit,
        advice=f"{why} {error.advice}".rstrip(),
        micro_batches=error.micro_batches,
    )
