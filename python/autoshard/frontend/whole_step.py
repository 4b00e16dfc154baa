"""Seconds of a pipeline's step before it is planned: a search in which one stage does all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.frontend.layer_parts import InParts
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.frontend.staged_planning import StagedSearch
from autoshard.passes.recursive_programming import read_module
from autoshard.pipeline.options import Pipeline
from autoshard.search.automatic import ALL_MEMORY, Job, seconds_with_sums_once


@dataclass(frozen=True, slots=True)
class WholeStep:
    """What a search finds for the devices of a stage that does the work of all stages."""

    seconds: float
    is_held_back: bool
    """Is it slower than with more memory?"""


def whole_step(
    source: Source, request: Request, job_of: Callable[[Source, Request], Job]
) -> WholeStep:
    """What the first search for a pipeline finds; nothing of it is written.

    What only adds to its seconds is left out: what is computed again, shardings that are preferred,
    inputs cut alike.

    Args:
        source: The step, lowered for the devices of a stage.
        request: With a pipeline.
        job_of: What a request asks of the search.

    Raises:
        DoesNotFitError: No plan fits the memory of all stages.
        PlanError: The step cannot be cut so.
    """
    stages = cast(Pipeline, request.stages).stages
    first = StagedSearch.of(source, request, stages, _no_plan).first(request)
    parts = InParts.of(source, first)
    if parts is not None:
        source, first = parts.source, parts.with_names(first)
    recomputing = first.recomputing()
    if first.spreading() is not None or (recomputing is not None and recomputing.decides):
        first = replace(first, memory_limit=ALL_MEMORY)
    if first.constraints == "prefer":
        first = replace(first, constraints="ignore")
    job = job_of(source, replace(first, pipeline=None))  # as one program for all numbers of stages
    program = read_module(job.read(()), cast(Cluster, source.cluster), job.options)
    found = program.searched(job.options)
    return WholeStep(seconds_with_sums_once(found), found.summary.mem_coeff > 0)


def _no_plan(source: Source, request: Request) -> Plan:
    raise PlanError(f"{source.name}: a search alone makes no plan.")
