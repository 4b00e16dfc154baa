"""Every test sees eight CPU devices, so that sharded programs run anywhere.

Tests that take long in many cases run in some of them, unless ``--thorough`` is given;
``thorough.toml`` says in how many.
"""

import os
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SAMPLED = Path(__file__).parent / "thorough.toml"

# LLVM's own optimisations are two fifths of a compile here, and change neither HLO nor collectives.
# The older emitters of loops (xla_cpu_use_fusion_emitters=false) would save as much again, but
# compute a reverse wrongly (jaxlib 0.10.2).
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
    ]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

# How long an example takes depends on the machine and on what else it does.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run all cases of all tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Who names a case wants it.
    if config.getoption("--thorough") or any("::" in argument for argument in config.args):
        return
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for name, kept in tomllib.loads(SAMPLED.read_text()).items():
        chosen = {len(cases[name]) * number // kept for number in range(kept)}
        left_out.update(item for at, item in enumerate(cases[name]) if at not in chosen)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
