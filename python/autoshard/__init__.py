from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autoshard.cluster.cluster import Cluster as Cluster
from autoshard.errors import AutoshardError as AutoshardError
from autoshard.errors import AutoshardWarning as AutoshardWarning
from autoshard.errors import ClusterError as ClusterError
from autoshard.errors import DoesNotFitError as DoesNotFitError
from autoshard.errors import PlanError as PlanError
from autoshard.errors import PlanMismatchWarning as PlanMismatchWarning
from autoshard.errors import ShardingError as ShardingError
from autoshard.errors import StrategyError as StrategyError
from autoshard.sharding.mesh import Mesh as Mesh
from autoshard.sharding.sharding import Sharding as Sharding

if TYPE_CHECKING:
    from autoshard.frontend.jit import jit as jit
    from autoshard.frontend.layout import Layout as Layout
    from autoshard.frontend.plan import Plan as Plan
    from autoshard.frontend.plan import plan as plan
    from autoshard.frontend.planner import Planner as Planner
    from autoshard.frontend.shard import shard as shard
    from autoshard.importer.rules import register_rule as register_rule
    from autoshard.report.suggest import suggest_mem_coeff as suggest_mem_coeff

# Imported when first used: the frontend needs jax, which autoshard-opt does not.
_LATE = {
    "Layout": "autoshard.frontend.layout",
    "Plan": "autoshard.frontend.plan",
    "Planner": "autoshard.frontend.planner",
    "jit": "autoshard.frontend.jit",
    "plan": "autoshard.frontend.plan",
    "register_rule": "autoshard.importer.rules",
    "shard": "autoshard.frontend.shard",
    "suggest_mem_coeff": "autoshard.report.suggest",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'autoshard' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATE])
