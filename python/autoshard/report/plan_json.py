"""What ``autoshard-opt --plan-json`` writes: the summary of the plan that stands on a module."""

from __future__ import annotations

import json
from typing import Any

from autoshard.ir import mlir, parse_bytes, print_module
from autoshard.ir.attributes import MESH, PLAN, RESHARDED_BYTES
from autoshard.ir.boundary import allows_all_to_all

_NO_CLUSTER = (
    "planned without a cluster, so nothing is known of seconds and memory: plan with "
    "autoshard-recursive-programming, or see autoshard-print-costs='cluster=v5e:4x4'"
)
_TIMES = (
    "step_seconds",
    "compute_seconds",
    "communication_seconds",
    "peak_bytes_per_device",
    "memory_limit",
    "mem_coeff",
    "lower_bound_seconds",
    "gap",
    "planning_seconds",
    "cluster",
)
"""What nothing is known of without a cluster."""


def plan_json(module: mlir.Module) -> bytes | None:
    """The JSON; None for a module without a plan, or with an exported one.

    A plan by propagation has no times; ``missing`` says why. Its collectives are those that Shardy
    makes of it.
    """
    attributes = module.operation.attributes
    if PLAN in attributes:
        read = json.loads(mlir.StringAttr(attributes[PLAN]).value)
    elif RESHARDED_BYTES in attributes:
        read = _of_propagation(module)
    else:
        return None
    return (json.dumps(read, indent=1) + "\n").encode()


def _of_propagation(module: mlir.Module) -> dict[str, Any]:
    # Imported here: they load the exporter, which the command needs for nothing else.
    from autoshard.passes.export_shardy import ExportShardy
    from autoshard.verify.shardy_collectives import shardy_collectives

    attributes = module.operation.attributes
    exported = parse_bytes(print_module(module, "bytecode"), module.context)
    ExportShardy().run(exported)
    return {
        **dict.fromkeys(_TIMES),
        "mesh": mlir.StringAttr(attributes[MESH]).value,
        "cost_model": "bytes",
        "resharded_bytes": mlir.FloatAttr(attributes[RESHARDED_BYTES]).value,
        "collectives": [
            {
                "kind": one.kind.value,
                "axes": None if one.axes is None else [str(axis) for axis in one.axes],
                "bytes": one.moved_bytes,
                "times": one.times,
                "seconds": None,
                "location": None if one.place is None else one.place.rpartition(":")[0],
            }
            for one in shardy_collectives(exported, has_all_to_all=allows_all_to_all(module))
        ],
        "missing": _NO_CLUSTER,
    }
