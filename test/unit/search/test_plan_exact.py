"""The plan of the search against the least seconds of any; bench/quality/plan_exact.py has more."""

from __future__ import annotations

import pytest
from exhaustive import exact_and_found
from plan_cases import block_module, random_cases, random_module

from autoshard.cluster import Cluster

WITHIN = 1e-3
TIES = 1e-5
"""What the cost that breaks ties, 1e-18 s a byte, can change."""


@pytest.mark.parametrize(("seed", "cluster"), random_cases(20))
def test_no_plan_of_a_random_program_is_faster(seed: int, cluster: str) -> None:
    _, exact, found, bound = exact_and_found(random_module(seed), Cluster.parse(cluster))
    assert exact * (1 - TIES) <= found <= exact * (1 + WITHIN)
    assert bound <= exact * (1 + TIES)


@pytest.mark.parametrize("name", ["attention", "mlp", "layer norm", "moe dispatch", "adam update"])
def test_no_plan_of_a_block_is_faster(name: str) -> None:
    _, exact, found, _ = exact_and_found(block_module(name), Cluster.parse("h100:8"))
    assert exact * (1 - TIES) <= found <= exact * (1 + WITHIN)
