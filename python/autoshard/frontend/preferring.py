"""``constraints="prefer"``: a program's own sharding constraints are kept unless they cost much."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from autoshard.errors import AutoshardWarning, DoesNotFitError, StrategyError
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.ir import new_context, parse_bytes, place
from autoshard.rewrites.constraints import constraints_of

_WORTH = 0.05
"""By which share a step may be longer with the constraints: the cost model is no finer."""


def preferred(source: Source, request: Request, plan: Callable[[Source, Request], Plan]) -> Plan:
    """The plan with all constraints, or the one with none where that is much better.

    Args:
        source: The program; where it has no constraint, it is planned once.
        request: Says ``constraints="prefer"``.
        plan: Plans for a request that does not.
    """
    kept = replace(request, constraints="keep")
    module = parse_bytes(source.program.bytecode, new_context(), source.name)
    found = constraints_of(module)
    if not found:
        return plan(source, kept)
    free_of_them = replace(request, constraints="ignore")
    try:
        constrained = plan(source, kept)
    except (StrategyError, DoesNotFitError) as error:
        free, why = plan(source, free_of_them), f"with it {error.message.partition('. ')[0]}"
    else:
        free = plan(source, free_of_them)
        longer = constrained.step_seconds / free.step_seconds - 1
        if longer <= _WORTH:
            return constrained
        why = f"the step would be {longer:.0%} longer by the cost model"
    warnings.warn(
        AutoshardWarning(
            f"{source.name}: with_sharding_constraint ({len(found)} times) is not kept: {why}."
            " constraints='keep' keeps it, constraints='ignore' does not ask.",
            place(found[0].location),
        ),
        stacklevel=2,
    )
    return free
