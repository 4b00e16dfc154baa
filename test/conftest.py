"""Every test sees eight CPU devices, so that sharded programs run anywhere.

Tests that take long in many cases run in some of them, unless ``--thorough`` is given;
``thorough.toml`` says in how many.
"""

import os
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

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
    for name, kept in sampled_tests().items():
        of_test = cases.get(name, [])
        if kept > len(of_test) > 0:
            raise pytest.UsageError(f"{SAMPLED.name}: {name} has {len(of_test)} cases, not {kept}")
        chosen = {len(of_test) * number // kept for number in range(kept)}
        left_out.update(item for number, item in enumerate(of_test) if number not in chosen)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def sampled_tests() -> dict[str, int]:
    """How many cases of a test run, by the test's name as pytest says it."""
    tables = tomllib.loads(SAMPLED.read_text())
    return {
        f"test/{folder}/{module.replace('.', '/')}.py::{test}": kept
        for folder, tests in tables.items()
        for name, kept in tests.items()
        for module, test in [name.split("::")]
    }
