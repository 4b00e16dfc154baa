"""The frontier of a plan that may let values go: its program, planned as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoshard.frontend.batch_arrays import places_of
from autoshard.frontend.planning import free_batch, job_of, read_planned
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.attributes import PIN
from autoshard.ir.boundary import attributes_at, main_function
from autoshard.rewrites.constraints import constraints_of
from autoshard.search.fitted_frontier import FrontierPlan, FrontierSearch
from autoshard.search.host_candidates import candidates

if TYPE_CHECKING:
    from autoshard.frontend.lower import Source
    from autoshard.frontend.plan import Plan
    from autoshard.frontend.refining import Origin
    from autoshard.frontend.request import Request


def frontier_search(plan: Plan) -> FrontierSearch | None:
    """What finds the frontier of a plan; None where none of its values may be let go.

    That is so of plans without ``recompute="auto"`` and ``host_offload="auto"``, of those in
    stages, and of those that were loaded.
    """
    origin = plan.origin
    if origin is None or plan.mode != "auto" or plan.pipeline is not None:
        return None
    recomputing = origin.request.recomputing()
    if recomputing is None or not recomputing.decides:
        return None
    source, request = _as_planned(plan, origin)
    job, mesh = job_of(source, request), source.machine.mesh
    if request.host_offload != "auto":
        return FrontierSearch(job, None)
    return FrontierSearch(job, lambda: candidates(job.read(()), mesh))


def taken(plan: Plan, found: FrontierPlan) -> Plan:
    """One of the frontier in place of the plan that was asked."""
    origin = plan.origin
    assert origin is not None
    made = read_planned(origin.source, found.planned(plan.name), origin.request)
    return replace(made, origin=origin)


def _as_planned(plan: Plan, origin: Origin) -> tuple[Source, Request]:
    """What was planned in the end, where the frontend tried one thing and another."""
    source, request = origin.source, origin.request
    module = parse_bytes(plan.bytecode, new_context(), plan.name)
    if request.constraints == "prefer":
        kept = constraints_of(module)
        request = replace(request, constraints="keep" if kept else "ignore")
    if request.batch_argnums is not None:
        batch, places = free_batch(source, request), places_of(source)
        pinned = attributes_at(main_function(module), "arg_attrs")
        cuts = tuple(
            (number, plan.arguments[number].sharding.num_shards(0))
            for number in batch
            if PIN in pinned[places[number]]
        )
        source = replace(source, batch_cuts=cuts)
    return source, request
