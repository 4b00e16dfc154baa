"""``Plan.refine``: the compiler chooses among the plans of a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from autoshard.cluster import Cluster
from autoshard.cluster.corrections import Corrections
from autoshard.compilers.compiler import read_compiler
from autoshard.compilers.options import read_compiler_options
from autoshard.errors import PlanError
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.memory_limit import user_limit
from autoshard.planned.summary import PlanSummary
from autoshard.search.automatic import Planned
from autoshard.search.corrections import measured_by
from autoshard.search.refine import Budget, Search, refine, verifier
from autoshard.search.ways import Way, mesh_shapes, ways_on

if TYPE_CHECKING:
    from autoshard.frontend.lower import Source, Traced
    from autoshard.frontend.plan import Plan
    from autoshard.frontend.planned_lockstep import LockstepPipeline
    from autoshard.frontend.request import Request


@dataclass(frozen=True)
class Origin:
    """What a plan was made of, so that it can be planned again."""

    source: Source
    request: Request
    traced: Traced | None = None
    """The function; None where it is not known any more."""

    def lowered_for(self, request: Request) -> Source:
        """The function for another request; lowered again only where that may change it."""
        now = self.request
        is_same = all(
            getattr(now, name) == getattr(request, name)
            for name in ("mesh", "cluster", "compiler", "mode", "indivisible")
        )
        return self.source if is_same or self.traced is None else self.traced.source(request)


def check_refinable(plan: Plan) -> None:
    """Refuse what cannot be planned again.

    Raises:
        PlanError: It is not known what the plan was made of, or it was not searched.
    """
    if plan.origin is None or plan.summary is None or plan.mode != "auto":
        raise PlanError(f"plan of {plan.name}: {_why_not(plan)}")


def refine_plan(
    plan: Plan, budget: Budget, devices: Cluster, device_order: Sequence[int] | None, form: str
) -> Plan:
    """See ``Plan.refine``.

    Args:
        plan: The search's own, see ``check_refinable``.
        budget: How much is compiled.
        devices: All that the plan is for.
        device_order: The device of each partition, as ``verify`` takes it.
        form: ``shardy`` or ``gspmd``.
    """
    from autoshard.frontend import plan_cache
    from autoshard.frontend.planning import job_of, read_planned

    origin = cast(Origin, plan.origin)
    source, request = origin.source, origin.request
    compiler = devices.chip.compiler
    release = read_compiler(compiler).installed() if compiler else None
    sets = [sorted(read_compiler_options(options).items()) for options in budget.options]
    asked = ("refined", budget.compiles, form, release, sets)
    path = plan_cache.path_of(source, request, lambda: job_of(source, request).read(()), asked)
    kept = None if path is None else plan_cache.found_at(path, source)
    if kept is not None:
        return replace(kept, origin=origin)
    cluster = cast(PlanSummary, plan.summary).read_cluster()
    trips = request.options().trip_count
    verify = verifier(
        devices,
        use_shardy=form == "shardy",
        device_order=device_order,
        compiler_options=plan.compiler_options,
        trip_count=trips,
    )
    if plan.pipeline is not None:
        others = _Lockstep(origin)
        first = others.candidate(_planned(plan), plan)
        shapes = () if source.has_mesh else mesh_shapes(cluster)
        search = Search(others.plan_in, _lockstep_ways(plan, shapes))
        taken, refinement = refine(first, search, verify, budget)
        best = others.plan_of(taken)
    else:
        first = _planned(plan)
        search = Search(
            partial(_plan_in_way, source, request),
            () if source.has_mesh else ways_on(cluster),
            Way(),
            partial(measured_by, cluster=cluster, trip_count=trips),
            lambda way: way.name,
            user_limit(request.options().memory_limit),
        )
        taken, refinement = refine(first, search, verify, budget)
        best = plan if taken is first else read_planned(source, taken, request)
    best = replace(best, compiler_options={**plan.compiler_options, **refinement.taken.options})
    was_chosen = refinement.ended == "all" and refinement.taken.fits
    if path is not None and was_chosen:
        plan_cache.keep(path, best)
    return replace(best, origin=origin, refinement=refinement)


def _plan_in_way(source: Source, request: Request, way: Way, corrections: Corrections) -> Planned:
    """What the search finds in one way, with all that saves memory around it.

    Raises:
        DoesNotFitError: No such plan fits, or there is none.
    """
    from autoshard.frontend.planning import job_of, plan_job

    cluster = replace(cast(Cluster, source.cluster), corrections=corrections)
    job = way.job(job_of(replace(source, cluster=cluster), request))
    return plan_job(source, request, replace(job, insists=False))


def _planned(plan: Plan) -> Planned:
    return Planned(parse_bytes(plan.bytecode, new_context(), plan.name), plan.summary)


_LockstepWay = tuple[str, int]
"""The shape of the mesh of a stage, or the search's own, and the turns from a stage to the next."""


def _lockstep_ways(plan: Plan, shapes: Sequence[str]) -> list[_LockstepWay]:
    """All shapes with the plan's own delay, then with the other one where compilers hide it."""
    pipeline = cast("LockstepPipeline", plan.pipeline)
    own, other = pipeline.delay, 3 - pipeline.delay
    found = [(shape, own) for shape in shapes]
    if pipeline.seconds.hides_hops:
        found += [(shape, other) for shape in ("", *shapes)]
    return found


@dataclass(frozen=True)
class _Lockstep:
    """Plans of a pipeline in lockstep: those of one stage, which all stages run."""

    origin: Origin
    plans: list[tuple[Planned, Plan]] = field(default_factory=list["tuple[Planned, Plan]"])
    """What is compiled, and the plan that it is."""

    def plan_in(self, way: _LockstepWay, corrections: Corrections) -> Planned:
        """What the search finds in one way, whose costs are not corrected.

        Raises:
            DoesNotFitError: No such plan fits.
        """
        from autoshard.frontend.lockstep_planning import InLockstep, of_a_stage
        from autoshard.frontend.planning import read_planned

        shape, delay = way
        request = self.origin.request
        step, asked = InLockstep.of(self.origin.source, request, delay), of_a_stage(request)
        planned = _plan_in_way(step.source, asked, Way(shape), corrections)
        plan = step.of_all_stages(read_planned(step.source, planned, asked), request)
        return self.candidate(planned, plan)

    def candidate(self, planned: Planned, plan: Plan) -> Planned:
        """The program of one stage, with what a step of all stages takes."""
        pipeline = cast("LockstepPipeline", plan.pipeline)
        delay = f", delay {pipeline.delay}" if pipeline.delay > 1 else ""
        summary = replace(
            cast(PlanSummary, planned.summary),
            mesh=f"{plan.mesh}{delay}",
            step_seconds=pipeline.step_seconds,
            scheduled_seconds=None,  # that of one stage
        )
        found = replace(planned, summary=summary)
        self.plans.append((found, plan))
        return found

    def plan_of(self, planned: Planned) -> Plan:
        """The plan that a candidate is."""
        return next(plan for one, plan in self.plans if one is planned)


def _why_not(plan: Plan) -> str:
    """Why a plan cannot be refined, and what to do."""
    if plan.mode != "auto":
        return (
            f"refine compares plans of the search, but mode {plan.mode!r} does not search. Plan it"
            ' with mode="auto" and a cluster.'
        )
    return (
        "refine plans the function again, which a plan that was loaded, or made by a Planner, does"
        " not have. Call refine of what autoshard.plan returns."
    )
