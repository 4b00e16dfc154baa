"""Several processes that run one program: each plans by itself, and all must find the same."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

from autoshard.errors import PlanError
from autoshard.frontend.plan import Plan
from autoshard.ir import print_module


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
    owners = {device.process_index for device in plan.jax_mesh.devices.flat}
    count = jax.process_count()
    if count == 1 or len(owners) < count:
        return
    from jax.experimental import multihost_utils

    text = print_module(plan.exported(form), debug_info=False)
    own = np.frombuffer(hashlib.sha256(text).digest(), np.uint8)
    found: Any = multihost_utils.process_allgather(own)
    others = [number for number in range(count) if (found[number] != found[0]).any()]
    if others:
        raise PlanError(
            f"{plan.name}: process {others[0]} has another plan than process 0, on mesh"
            f" {plan.mesh} here. Give all processes the same program and types, no time_limit=, or"
            " one plan: autoshard.jit(.., plan=path)."
        )
