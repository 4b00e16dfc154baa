"""Several processes that run one program: each plans by itself, and all must find the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from autoshard.errors import PlanError
from autoshard.frontend.mesh import Machine
from autoshard.frontend.plan import Plan
from autoshard.frontend.planned_pipeline import PlannedPipeline
from autoshard.ir import print_module
from autoshard.ir.attributes import CUSTOM_PARTITIONING, custom_call_target
from autoshard.ir.module import operations_of
from autoshard.pipeline.instructions import instructions_of

_NO_PLAN = bytes(hashlib.sha256().digest_size)
"""What a process says that has failed."""


def check_same_everywhere(plan: Plan, form: str) -> None:
    """Refuse to run where processes have planned differently, which would stop all of them.

    Called by all of them before the first step. A plan on devices of some processes alone is not
    compared.

    Args:
        plan: What this process is about to run.
        form: What is compiled, as ``Plan.exported`` takes it.

    Raises:
        PlanError: In every process.
        ShardingError: The devices of the plan are not here.
    """
    plan.machine.needs_devices()
    machines = (plan.machine,) if plan.pipeline is None else plan.pipeline.machines
    if not _are_of_all_processes(machines):
        return
    found = _said_by_all(digest(plan, form))
    failed = [number for number, said in enumerate(found) if said == _NO_PLAN]
    if failed:
        raise PlanError(
            f"{plan.name}: process {failed[0]} has no plan: it raised an error, which it shows."
        )
    others = [number for number, said in enumerate(found) if said != found[0]]
    if others:
        raise PlanError(
            f"{plan.name}: process {others[0]} has another plan than process 0, on mesh"
            f" {plan.mesh} here. Give all processes the same program, types and compiler_options=,"
            " no time_limit=, or one plan: autoshard.jit(.., plan=path)."
        )


def say_failed(machine: Machine | None) -> None:
    """Tell the other processes, which wait in ``check_same_everywhere``, that there is no plan.

    Args:
        machine: What was planned for; not all processes wait where it is of some of them alone.
            None: a pipeline, which all processes have a part of.
    """
    if jax.process_count() > 1 and (machine is None or _are_of_all_processes([machine])):
        _said_by_all(_NO_PLAN)


def digest(plan: Plan, form: str) -> bytes:
    """Alike for plans that are compiled to one program, in whatever process they were made."""
    module = plan.exported(form)
    for op in operations_of(module.operation):
        if custom_call_target(op) == CUSTOM_PARTITIONING:
            del op.attributes["backend_config"]  # the address of a callback
    said = hashlib.sha256(print_module(module, debug_info=False))
    said.update(repr(sorted(plan.compiler_options.items())).encode())
    if isinstance(plan.pipeline, PlannedPipeline):
        step = plan.pipeline.step
        said.update(repr(instructions_of(step.program, step.schedule)).encode())
    return said.digest()


def _are_of_all_processes(machines: Sequence[Machine]) -> bool:
    count = jax.process_count()
    devices = [device for machine in machines for device in machine.devices or ()]
    return count > 1 and len({device.process_index for device in devices}) == count


def _said_by_all(own: bytes) -> list[bytes]:
    from jax.experimental import multihost_utils

    found: Any = multihost_utils.process_allgather(np.frombuffer(own, np.uint8))
    return [bytes(said) for said in found]
