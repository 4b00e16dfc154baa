"""Every test sees eight CPU devices, so that sharded programs run anywhere.

Tests that are marked ``thorough`` run with ``--thorough`` alone: they say for more programs, or for
more combinations, what another test says for some, and all of them take longer than the others.
"""

import os

import pytest

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
    parser.addoption("--thorough", action="store_true", help="run what is marked thorough, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--thorough"):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
