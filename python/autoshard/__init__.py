from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from autoshard.cluster.cluster import Cluster as Cluster
from autoshard.errors import AutoshardError as AutoshardError
from autoshard.errors import AutoshardWarning as AutoshardWarning
from autoshard.errors import CheckError as CheckError
from autoshard.errors import ClusterError as ClusterError
from autoshard.errors import CompileError as CompileError
from autoshard.errors import DoesNotFitError as DoesNotFitError
from autoshard.errors import PlanError as PlanError
from autoshard.errors import PlanMismatchWarning as PlanMismatchWarning
from autoshard.errors import ShardingError as ShardingError
from autoshard.errors import StrategyError as StrategyError
from autoshard.releases import check_release as _check
from autoshard.releases import not_opened as _not_opened
from autoshard.sharding.mesh import Mesh as Mesh
from autoshard.sharding.sharding import Sharding as Sharding

if TYPE_CHECKING:
    from autoshard.calibration.calibrate import Calibration as Calibration
    from autoshard.calibration.calibrate import calibrate as calibrate
    from autoshard.explain.what_if import sweep as sweep
    from autoshard.frontend.accumulate import accumulate_gradients as accumulate_gradients
    from autoshard.frontend.batch import global_batch_size as global_batch_size
    from autoshard.frontend.host import in_host_memory as in_host_memory
    from autoshard.frontend.host import on_host as on_host
    from autoshard.frontend.jit import jit as jit
    from autoshard.frontend.keras_jit import keras_jit as keras_jit
    from autoshard.frontend.kernel import kernel as kernel
    from autoshard.frontend.largest_batch import largest_batch as largest_batch
    from autoshard.frontend.layout import Layout as Layout
    from autoshard.frontend.library_jit import filter_jit as filter_jit
    from autoshard.frontend.library_jit import nnx_jit as nnx_jit
    from autoshard.frontend.manual_split import manual_split as manual_split
    from autoshard.frontend.pipeline_stage import pipeline_stage as pipeline_stage
    from autoshard.frontend.plan import Plan as Plan
    from autoshard.frontend.planner import Planner as Planner
    from autoshard.frontend.planning import plan as plan
    from autoshard.frontend.recompute import recompute as recompute
    from autoshard.frontend.shard import shard as shard
    from autoshard.frontend.together import plan_together as plan_together
    from autoshard.importer.rules import register_rule as register_rule
    from autoshard.passes.optimizer_parallel import OptimizerParallel as OptimizerParallel
    from autoshard.passes.recompute import Recompute as Recompute
    from autoshard.pipeline.options import Pipeline as Pipeline
    from autoshard.search.suggest_mem_coeff import suggest_mem_coeff as suggest_mem_coeff
    from autoshard.verify.described_devices import devices as devices

# Imported when first used: the frontend needs jax, which autoshard-opt does not.
_LATE = {
    "Calibration": "autoshard.calibration.calibrate",
    "Layout": "autoshard.frontend.layout",
    "OptimizerParallel": "autoshard.passes.optimizer_parallel",
    "Pipeline": "autoshard.pipeline.options",
    "Plan": "autoshard.frontend.plan",
    "Planner": "autoshard.frontend.planner",
    "calibrate": "autoshard.calibration.calibrate",
    "accumulate_gradients": "autoshard.frontend.accumulate",
    "devices": "autoshard.verify.described_devices",
    "filter_jit": "autoshard.frontend.library_jit",
    "global_batch_size": "autoshard.frontend.batch",
    "in_host_memory": "autoshard.frontend.host",
    "jit": "autoshard.frontend.jit",
    "kernel": "autoshard.frontend.kernel",
    "keras_jit": "autoshard.frontend.keras_jit",
    "largest_batch": "autoshard.frontend.largest_batch",
    "manual_split": "autoshard.frontend.manual_split",
    "nnx_jit": "autoshard.frontend.library_jit",
    "on_host": "autoshard.frontend.host",
    "pipeline_stage": "autoshard.frontend.pipeline_stage",
    "plan": "autoshard.frontend.planning",
    "plan_together": "autoshard.frontend.together",
    "Recompute": "autoshard.passes.recompute",
    "recompute": "autoshard.frontend.recompute",
    "register_rule": "autoshard.importer.rules",
    "shard": "autoshard.frontend.shard",
    "suggest_mem_coeff": "autoshard.search.suggest_mem_coeff",
    "sweep": "autoshard.explain.what_if",
}


_check_release = functools.cache(_check)
"""Once; what it raises, it raises again."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'autoshard' has no attribute {name!r}")
    _check_release()
    try:
        module = importlib.import_module(_LATE[name])
    except (ImportError, AttributeError) as error:
        raise _not_opened(error) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATE])
