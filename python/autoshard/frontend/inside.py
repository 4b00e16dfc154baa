"""A planned function that is called while another program is traced.

    jax.jit(lambda w, x: step(w, x))        step = autoshard.jit(.., cluster=..)

It is lowered and planned by itself, for its own devices, and its plan is written into the program
around it: constraints on its arguments, its module as planned, constraints on its results. Where
that cannot be, it runs unplanned as part of that program, and a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from autoshard.errors import AutoshardWarning, PlanError
from autoshard.frontend.arguments import Arguments
from autoshard.frontend.device_order import may_be_ordered
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan
from autoshard.ir import print_module
from autoshard.ir.custom_partitioning import show_mesh
from autoshard.ir.lowering import Tracing, user_line, uses_shardy
from autoshard.ir.planned_call import (
    PlannedCall,
    PlannedModule,
    bind_planned,
    cannot_be_called,
    is_inside_shard_map,
    is_traced_to_jaxpr,
)
from autoshard.sharding.placement import prime_factors

_tree: Any = jax.tree_util
P = jax.sharding.PartitionSpec


def unplanned_because(around: Tracing) -> str | None:
    """What is done to the function right now, other than writing it into a program."""
    if around is Tracing.EAGER or not is_traced_to_jaxpr():
        return "is called inside grad, vmap or the like"
    if is_inside_shard_map():
        return "is called inside shard_map, which is one device's part of a program"
    return None


def keeps_apart(source: Source) -> str | None:
    """Why the program cannot be written into another one; None if it can."""
    if source.machine.explicit:
        return "has Explicit axes, whose types the program around it says itself"
    return cannot_be_called(source.program)


_TRANSFORM_FIRST = (
    "Transform first, autoshard.jit(jax.grad({name})), or plan the function around it:"
    " autoshard.jit in place of jax.jit."
)


def warn_unplanned(name: str, what: str) -> None:
    """Say at the user's line that a function runs unplanned, and what to do.

    Args:
        name: The function.
        what: ``"is called inside grad, vmap or the like"``.
    """
    warnings.warn(
        AutoshardWarning(
            f"autoshard.jit({name}) {what}: it runs unplanned, as jax.jit({name}) would."
            f" {_TRANSFORM_FIRST.format(name=name)}",
            user_line(),
        ),
        stacklevel=2,
    )


def planned_call(
    source: Source, plan: Callable[[], Plan], unplanned: Callable[[Sequence[Any]], Any]
) -> PlannedCall:
    """The op that calls a planned function.

    Args:
        source: The function as lowered.
        plan: Its plan, made when it is asked for.
        unplanned: The function, given its flat arguments.
    """
    machine = source.machine

    def flat(*leaves: Any) -> Any:
        return _tree.tree_leaves(unplanned(leaves))

    def planned() -> PlannedModule:
        machine.needs_devices()
        found = plan()
        _check_on_devices(found)
        form = "autoshard-export-shardy" if uses_shardy() else "autoshard-export-gspmd"
        module = found.exported(form)
        show_mesh(module, found.jax_mesh)
        return PlannedModule(print_module(module, "bytecode"), *found.named_shardings)

    return PlannedCall(
        name=source.name,
        program=source.program,
        platform=_platform(source),
        num_devices=machine.mesh.size,
        planned=planned,
        unplanned=flat,
        warn=lambda what: warn_unplanned(source.name, what),
    )


def call_inside(
    call: PlannedCall, source: Source, plan: Callable[[], Plan], arguments: Arguments
) -> Any:
    """Call a planned function in the program that is being traced.

    Args:
        call: The op.
        source: The function as lowered.
        plan: Its plan, made when it is asked for.
        arguments: Arrays and tracers.
    """
    stage: Any = source.program.stage
    results = bind_planned(call, arguments.leaves)
    if source.machine.devices is not None:
        mesh = _mesh_of_results(source, plan)
        # A free dim is no constraint; what counts is the mesh: the program is for its devices.
        free: Any = P.UNCONSTRAINED
        results = [
            jax.lax.with_sharding_constraint(
                result, jax.sharding.NamedSharding(mesh, P(*[free] * result.ndim))
            )
            for result in results
        ]
    return _tree.tree_unflatten(stage.out_tree, results)


def _mesh_of_results(source: Source, plan: Callable[[], Plan]) -> Any:
    """The JAX mesh along whose axes the program around says how its results are cut.

    JAX ends with an error where XLA cuts a result into other numbers than the axes have. A mesh
    that a plan makes has any axes, which axes of primes can say, if the primes are equal: of six
    devices, 3 x 2 is no 2 x 3. Only then the plan has to be made before the program around is
    lowered.
    """
    primes = set(prime_factors(source.machine.mesh.size))
    if may_be_ordered(source):
        return plan().jax_mesh
    if source.has_mesh or not primes:
        return source.machine.jax_mesh()
    if len(primes) > 1:
        return plan().jax_mesh
    return source.machine.with_mesh(source.machine.mesh.in_primes("devices")).jax_mesh()


def _check_on_devices(plan: Plan) -> None:
    for value in (*plan.arguments, *plan.results):
        if value.is_on_host:
            raise PlanError(
                f"{plan.name}: {value.name} is planned to live in the memory of the host, and a"
                " program around it has its arrays on devices. Call it by itself, or give"
                " host_offload='none'."
            )


def _platform(source: Source) -> str:
    if source.machine.devices is not None:
        platform: str = source.machine.devices[0].platform
        return "cuda" if platform == "gpu" else platform
    return (source.cluster and source.cluster.platform) or "devices that are not here"
