"""What is looked at before a plan runs: its memory, its numbers, and what XLA made of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import jax

from autoshard.errors import CheckError, PlanError, PlanMismatchWarning
from autoshard.frontend.plan import Plan
from autoshard.ir.host_memory import PINNED_HOST
from autoshard.ir.lowering import user_line
from autoshard.planned.collective import Collective, CollectiveKind
from autoshard.sharding import AxisRef
from autoshard.verify.compiled import differences_from_readings
from autoshard.verify.hlo_collectives import hlo_collectives
from autoshard.verify.matching import collectives_of_summary

CheckLike = bool | Literal["off", "warn", "error"]
"""What becomes of differences between plan and program; True: ``plan.check()``, too."""

_MISMATCH = "check='off' does not compare, check='error' refuses to run it."


def read_check(check: Any) -> CheckLike:
    """What was asked for, False as ``"warn"``.

    Raises:
        PlanError: There is no such check.
    """
    if isinstance(check, bool):
        return check or "warn"
    if not isinstance(check, str) or check not in ("off", "warn", "error"):
        raise PlanError(
            f"check={check!r} is not known. Use 'off', 'warn' or 'error' for what XLA makes"
            " otherwise than planned, or True to run plan.check() before the first step."
        )
    return cast(CheckLike, check)


def check_host_memory(plan: Plan) -> None:
    """Refuse a plan that keeps arrays where the devices here cannot.

    Raises:
        PlanError: The devices' platform has no such memory.
    """
    kept = [value.name for value in (*plan.arguments, *plan.results) if value.is_on_host]
    if not kept:
        return
    device: Any = plan.jax_mesh.devices.flat[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if PINNED_HOST not in kinds:
        raise PlanError(
            f"{plan.name}: {kept[0]} is planned to live in the memory of the host, but"
            f" {device.platform} devices have no memory {PINNED_HOST}, only {', '.join(kinds)}."
            " Give host_offload='none'."
        )


def check_computes_right(plan: Plan, shardy: bool) -> None:
    """Refuse a plan with which a small form of the program gives something wrong.

    Raises:
        CheckError: An op is computed wrongly or cannot be split, or nobody can say.
    """
    found = plan.check(form="shardy" if shardy else "gspmd")
    if not found.is_right:
        where = None if found.differs is None else found.differs.location
        raise CheckError(
            f"{plan.name}: {found.message} This is a defect of XLA's partitioner or of the plan:"
            " split the op in another way (autoshard.shard, in_shardings), and report it.",
            where,
        )


def check_compiled(plan: Plan, compiled: jax.stages.Compiled, *, is_error: bool = False) -> None:
    """Say every split and every collective that XLA makes otherwise than planned.

    Raises:
        CheckError: There is one, and ``is_error``.
    """
    found = [*_interface_differences(plan, compiled), *_collective_differences(plan, compiled)]
    if found and is_error:
        raise CheckError(f"{plan.name}: {' '.join(found)} check='warn' runs it.", user_line())
    where = user_line() if found else None
    for difference in found:
        text = f"{plan.name}: {difference} {_MISMATCH}"
        warnings.warn(PlanMismatchWarning(f"{where}: {text}" if where else text), stacklevel=2)


def _interface_differences(plan: Plan, compiled: jax.stages.Compiled) -> Iterator[str]:
    arguments, results = plan.named_shardings
    made_arguments = plan.in_tree.flatten_up_to(compiled.input_shardings)
    made_results = plan.out_tree.flatten_up_to(compiled.output_shardings)
    for value, planned, made in (
        *zip(plan.arguments, arguments, made_arguments, strict=True),
        *zip(plan.results, results, made_results, strict=True),
    ):
        if value.is_used and not made.is_equivalent_to(planned, len(value.shape)):
            yield (
                f"{value.name} of shape {value.shape} is planned as {value.sharding}, but XLA"
                f" compiled it as {made}. The program is correct, but moves more data than planned."
            )


def _collective_differences(plan: Plan, compiled: jax.stages.Compiled) -> list[str]:
    summary = plan.summary
    readings: list[Callable[[], Sequence[Collective]]] = [lambda: plan.collectives]
    if summary is not None:
        readings.append(lambda: collectives_of_summary(summary.collectives, plan.mesh))
    return differences_from_readings(
        readings,
        hlo_collectives(compiled.as_text() or "", plan.mesh),
        plan.mesh,
        on_cpu=plan.jax_mesh.devices.flat[0].platform == "cpu",
        besides=lambda: _for_callbacks(plan),
    )


def _for_callbacks(plan: Plan) -> list[Collective]:
    """What it takes, at most, to bring values to the one device that calls back, and results out.

    XLA makes an all-reduce over all devices of each.
    """
    everywhere = tuple(AxisRef(name) for name in plan.mesh.axis_names)
    return [
        Collective(CollectiveKind.ALL_REDUCE, everywhere, plan.mesh.size, float(size), times)
        for size, times in plan.callback_bytes
    ]
