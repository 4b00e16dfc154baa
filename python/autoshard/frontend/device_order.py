"""The order of devices, chosen where a mesh is given without devices.

``mesh="data=8,model=4"`` on ``v5e:4x8`` says how many devices each axis has, not which links they
use: ``data`` may lie on the eight of ``y`` and ``model`` on the four of ``x``, or ``data`` on ``x``
and half of ``y``. A plan is searched for in the order of the cluster and costed in all others, and
then searched for in the two where it costs least; the fastest of the three is taken. Where no time
could be saved, since devices hardly talk, it stays at the first. What follows from marks is costed
in all of them alike. Under a time limit the first search comes first: the others have what it
leaves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice

import jax

from autoshard.cluster import Cluster
from autoshard.cluster.order import Order, complaint_of_order, orders_of
from autoshard.errors import ClusterError, DoesNotFitError
from autoshard.frontend.lower import Source
from autoshard.frontend.mesh import machine_of_cluster
from autoshard.frontend.plan import Plan
from autoshard.frontend.request import Request
from autoshard.ir import new_context, parse_bytes
from autoshard.planned.given_plan import cost_of, cost_of_module
from autoshard.progress import running

MOST_ORDERS = 64
"""Orders in which a plan is costed: those that part the fewest dims."""
MORE_SEARCHES = 2
"""Searches in other orders than the first."""
LEAST_SECONDS = 1e-3
"""What a search gets of a time limit at least."""
LEAST_GAIN = 0.01
"""Share of a step that another order has to save: equal ones stay as they are."""


PlanIn = Callable[[Source, Request], Plan]
"""Plans a program in the order of its cluster."""


def in_chosen_order(source: Source, request: Request, plan_in: PlanIn) -> Plan:
    """The plan in the order of devices that is best for it.

    Args:
        source: The program.
        request: What is asked of the plan.
        plan_in: Is given the program in an order, and the request with what is left of its time.

    Raises:
        DoesNotFitError: No plan fits in the first order.
        ClusterError: The mesh fits the cluster in no order.
    """
    orders = _orders(source, request)
    if not orders:
        return plan_in(source, request)
    deadline = time.monotonic() + (math.inf if request.time_limit is None else request.time_limit)
    first, *others = orders
    best = plan_in(source_in(source, first), request)
    if not others or _is_over(deadline) or _hardly_talks(best):
        return best
    seconds = _seconds_in(best, source, request, orders, deadline)
    by_seconds = sorted(seconds.keys() - {first}, key=lambda order: seconds[order])
    if source.mode == "semi_auto":  # propagation finds the same in each
        by_seconds = [order for order in by_seconds[:1] if seconds[order] < seconds[first]]
    for order in by_seconds[:MORE_SEARCHES]:
        if _is_over(deadline):
            break
        try:
            found = plan_in(source_in(source, order), _in_what_is_left(request, deadline))
        except DoesNotFitError:
            continue  # in another order than one in which a plan fits
        if _step(found) < (1 - LEAST_GAIN) * _step(best):
            best = found
    return best


def _is_over(deadline: float) -> bool:
    return running().is_interrupted or time.monotonic() >= deadline


def _in_what_is_left(request: Request, deadline: float) -> Request:
    if request.time_limit is None:
        return request
    return replace(request, time_limit=max(deadline - time.monotonic(), LEAST_SECONDS))


def source_in(source: Source, order: Order) -> Source:
    """The program on a cluster, and on devices, in this order."""
    assert source.cluster is not None
    if order == source.cluster.parts:
        return source
    cluster = source.cluster.in_order(order)
    machine = replace(
        machine_of_cluster(cluster, source.machine.mesh), explicit=source.machine.explicit
    )
    program = source.program
    if machine.devices is not None:
        program = replace(program, mesh=machine.jax_mesh())
    return replace(source, cluster=cluster, machine=machine, program=program)


def source_of(plan: Plan, source: Source) -> Source:
    """The program in the order that was chosen for a plan of it."""
    if plan.summary is None or source.cluster is None or not may_be_ordered(source):
        return source
    order = plan.summary.read_cluster().parts
    is_of_cluster = complaint_of_order(order, source.cluster.dims) is None
    return source_in(source, order) if is_of_cluster else source


def may_be_ordered(source: Source) -> bool:
    """May a plan of it have its devices in another order than the cluster?"""
    machine, cluster = source.machine, source.cluster
    return (
        source.mode in ("auto", "semi_auto")
        and source.is_mesh_given
        and not source.keeps_order
        and cluster is not None
        and not cluster.order
        and len(cluster.dims) > 1
        and machine.cluster is not None
        and machine.numbers is None
        and not source.committed
    )


def _orders(source: Source, request: Request) -> list[Order]:
    """Those to choose from, that of the cluster first; none where something says which it is."""
    cluster = source.cluster
    if cluster is None or not may_be_ordered(source) or not _may_choose(request):
        return []
    by_parts = sorted(orders_of(source.machine.mesh, cluster.dims), key=len)
    found = list(islice(by_parts, MOST_ORDERS))
    if _fits(source, cluster) and len(found) > 1:
        return [cluster.parts, *(order for order in found if order != cluster.parts)]
    return found


def _fits(source: Source, cluster: Cluster) -> bool:
    """Do the axes of the mesh end where the dims do?"""
    try:
        cluster.covered_by(source.machine.mesh)
    except ClusterError:
        return False
    return True


def _may_choose(request: Request) -> bool:
    """Is it the search's to say on which devices a mesh lies?"""
    return (
        request.stages is None
        and request.cost_model == "seconds"
        and not isinstance(request.mesh_of_pins(), jax.sharding.Mesh)
    )


def _step(plan: Plan) -> float:
    assert plan.summary is not None
    return plan.summary.step_seconds


def _hardly_talks(plan: Plan) -> bool:
    """Would no order save anything?"""
    assert plan.summary is not None
    return plan.summary.communication_seconds < LEAST_GAIN * plan.summary.step_seconds


def _seconds_in(
    plan: Plan, source: Source, request: Request, orders: list[Order], deadline: float
) -> dict[Order, float]:
    """What the plan that was found in the first order costs in each, as far as there is time."""
    assert source.cluster is not None
    here = source.cluster.in_order(orders[0])
    module = parse_bytes(plan.bytecode, new_context(), plan.name)
    cost = partial(cost_of_module, module, here, overlap=request.overlap)
    costed = cost() if request.trip_count is None else cost(trip_count=request.trip_count)
    found: dict[Order, float] = {}
    for order in orders:
        cluster = source.cluster.in_order(order)
        found[order] = cost_of(costed.imported, cluster, request.overlap).step_seconds
        if _is_over(deadline):
            break
    return found
