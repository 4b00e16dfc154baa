"""Every family in the corpus, in small, runs as the search splits it and equals one device."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from math import prod

import jax
import pytest
from equivalence import CLUSTER, assert_equal, unsharded
from families import FAMILIES, Family

import autoshard
from bench.common import corpus

ROUNDING = 2e-5
"""Error over a leaf's largest entry: sums in another order, a backward pass, an optimizer."""


@cache
def quick_links() -> autoshard.Cluster:
    """The machine here with a hundredth of its latencies: splitting pays at these sizes."""
    described = autoshard.Cluster.parse(CLUSTER)
    dims = tuple(
        replace(dim, latency=replace(dim.latency, value=dim.latency.value / 100))
        for dim in described.dims
    )
    return replace(described, dims=dims)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_searched_step_equals_the_unsharded_step(family: Family) -> None:
    fn, args = family.build()
    step = autoshard.jit(fn, cluster=quick_links())
    plan = step.plan(*args)
    # Else a program would be compared with itself.
    assert plan.summary is not None
    assert plan.summary.collectives
    assert any(prod(value.sharding.tile) > 1 for value in (*plan.arguments, *plan.results))
    with warnings.catch_warnings():
        # Whether XLA moves as little as planned is not what is asked here.
        warnings.simplefilter("ignore", autoshard.PlanMismatchWarning)
        found = jax.device_get(step(*args))
    assert_equal(found, unsharded(fn, args), ROUNDING)


@pytest.mark.skipif(corpus.corpus_folder() is None, reason="no corpus: set AUTOSHARD_CORPUS")
def test_every_module_of_the_corpus_has_a_small_version() -> None:
    names = {entry.name for entry in corpus.entries([])}
    of_family = {f.name: {n for n in names if n.startswith(f.modules)} for f in FAMILIES}
    assert all(of_family.values())
    assert names == set().union(*of_family.values())
