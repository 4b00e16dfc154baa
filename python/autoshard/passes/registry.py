"""Every autoshard pass by name, imported when it is first needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from autoshard.passes.base import Pass

ALL_PASSES: Mapping[str, str] = {
    "autoshard-import-strategies": "autoshard.passes.import_strategies:ImportStrategies",
    "autoshard-undo-checkpoints": "autoshard.passes.undo_checkpoints:UndoCheckpoints",
    "autoshard-micro-batch": "autoshard.passes.micro_batch:MicroBatch",
    "autoshard-lockstep": "autoshard.passes.lockstep:Lockstep",
    "autoshard-pipeline-stages": "autoshard.passes.pipeline_stages:PipelineStages",
    "autoshard-host-offload": "autoshard.passes.host_offload:HostOffload",
    "autoshard-sharding-propagation": "autoshard.passes.sharding_propagation:ShardingPropagation",
    "autoshard-recursive-programming": (
        "autoshard.passes.recursive_programming:RecursiveProgramming"
    ),
    "autoshard-plan": "autoshard.search.plan_pass:PlanProgram",
    "autoshard-refine": "autoshard.search.plan_pass:RefineProgram",
    "autoshard-optimizer-parallel": "autoshard.passes.optimizer_parallel:OptimizerParallel",
    "autoshard-recompute": "autoshard.passes.recompute:Recompute",
    "autoshard-reduce-once": "autoshard.passes.reduce_once:ReduceOnce",
    "autoshard-split-loops": "autoshard.passes.split_loops:SplitLoops",
    "autoshard-split-stages": "autoshard.passes.split_stages:SplitStages",
    "autoshard-export-shardy": "autoshard.passes.export_shardy:ExportShardy",
    "autoshard-export-gspmd": "autoshard.passes.export_gspmd:ExportGspmd",
    "autoshard-export-lockstep": "autoshard.passes.export_lockstep:ExportLockstep",
    "autoshard-export-mpmd": "autoshard.pipeline.mpmd.export_mpmd:ExportMpmd",
    "autoshard-print-plan": "autoshard.passes.print_plan:PrintPlan",
    "autoshard-print-costs": "autoshard.passes.print_costs:PrintCosts",
    "autoshard-print-schedule": "autoshard.passes.print_schedule:PrintSchedule",
}
"""Pass name -> ``module:class``; one line a pass, in the order of the flow."""


def pass_type(name: str) -> type[Pass]:
    """The class of the pass that users call ``name``.

    Raises:
        KeyError: No pass has this name.
    """
    module, _, attribute = ALL_PASSES[name].partition(":")
    return cast(type[Pass], getattr(importlib.import_module(module), attribute))
