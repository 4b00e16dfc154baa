"""Decisions about small programs of JAX are those of exhaustive search, by the cost of what is
written."""

from __future__ import annotations

import pytest
from recompute_exhaustive import compared


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(11, id="a scan that need not write its stacks"),
        pytest.param(14, id="estimates are too high for all that fits"),
    ],
)
def test_no_decisions_are_better_than_those_of_the_pass(seed: int) -> None:
    found = compared(seed, most=7)
    assert found is not None
    assert found.gap <= 1e-6
