"""``Plan.refine``: the compiler chooses among the plans of a function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from autoshard.compilers.options import read_compiler_options
from autoshard.errors import PlanError
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.lowering import uses_shardy
from autoshard.search.automatic import Planned
from autoshard.search.refine import Budget, mesh_shapes, refine, verifier

if TYPE_CHECKING:
    from autoshard.frontend.lower import Source, Traced
    from autoshard.frontend.plan import Plan
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


def refine_plan(plan: Plan, budget: Budget, form: Literal["shardy", "gspmd"] | None) -> Plan:
    """See ``Plan.refine``."""
    from autoshard.frontend.planning import plan_on_shape, read_planned

    origin = plan.origin
    if origin is None or plan.summary is None or plan.mode != "auto":
        raise PlanError(f"plan of {plan.name}: {_why_not(plan)}")
    source, request = origin.source, origin.request
    cluster = plan.summary.read_cluster()
    first = Planned(parse_bytes(plan.bytecode, new_context(), plan.name), plan.summary)
    taken, refinement = refine(
        first,
        partial(plan_on_shape, source, request),
        () if source.has_mesh else mesh_shapes(cluster),
        verifier(
            cluster,
            use_shardy=uses_shardy() if form is None else form == "shardy",
            device_order=source.machine.numbers,
            compiler_options=read_compiler_options(plan.compiler_options),
        ),
        budget,
    )
    best = plan if taken is first else read_planned(source, taken, request)
    return replace(best, origin=origin, refinement=refinement)


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
