"""``execution="auto"``: a program for each task of a stage, or one of all stages in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

from autoshard.errors import DoesNotFitError, PlanError
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.pipeline.options import Pipeline
from autoshard.planned.summary import PlanSummary, TriedMicroBatches


def with_faster_execution(request: Request, plan_for: Callable[[Request], Plan]) -> Plan:
    """The faster of the two by the cost model; of equal ones, a program for each task.

    ``summary.tried_pipelines`` has both, or why the step cannot be in lockstep. A pipeline that
    says a schedule or chunks is not tried in lockstep, which has none.

    Args:
        request: Says ``execution="auto"``.
        plan_for: Plans for a request that says which.

    Raises:
        DoesNotFitError: Neither fits.
        PlanError: The step cannot be planned in stages at all.
    """
    asked = cast(Pipeline, request.stages)
    tried: list[TriedMicroBatches] = []
    plans: list[Plan] = []
    errors: list[PlanError] = []

    def attempt(execution: Literal["stages", "lockstep"]) -> None:
        step: float | None = None
        peak: float | None = None
        outcome, reason = "fits", ""
        try:
            plan = plan_for(replace(request, pipeline=replace(asked, execution=execution)))
            plans.append(plan)
            step, peak = plan.step_seconds, plan.peak_bytes
        except DoesNotFitError as error:
            outcome, peak = "does not fit", error.peak_bytes
            errors.append(error)
        except PlanError as error:
            outcome, reason = "refused", str(error)
            errors.append(error)
        given = {"stages": asked.stages, "chunks": asked.chunks}
        tried.append(
            TriedMicroBatches(
                asked.micro_batches, outcome, step, peak, reason, **given, execution=execution
            )
        )

    attempt("stages")
    if asked.schedule == "auto" and asked.chunks == 1:
        attempt("lockstep")
    if not plans:
        raise errors[0]
    best = min(plans, key=lambda plan: plan.step_seconds)
    summary = replace(cast(PlanSummary, best.summary), tried_pipelines=tuple(tried))
    return replace(best, summary=summary)
