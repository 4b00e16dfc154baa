"""System tests run on 8 virtual CPU devices; the number must be set before JAX starts."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(params=[True, False], ids=["shardy", "gspmd"])
def partitioner(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether it is Shardy; each test runs under both."""
    from equivalence import shardy

    with shardy(request.param):
        yield request.param
