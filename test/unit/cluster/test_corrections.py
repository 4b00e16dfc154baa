"""Costs of one program, corrected: in a cluster, its file, the core, and the limit of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.cluster import Cluster
from autoshard.cluster.corrections import Corrections
from autoshard.cluster.toml_file import parse_toml
from autoshard.errors import ClusterError
from autoshard.passes.memory_limit import memory_limit_of, user_limit


def test_corrections_are_read_back():
    cluster = replace(Cluster.parse("v5e:4x4"), corrections=Corrections(1.5, 0.75, -2e9))
    text = cluster.to_toml()
    assert "[corrections]" in text
    assert parse_toml(text, "corrected.toml") == cluster
    assert not cluster.is_named
    said = " ".join(cluster.describe().split())
    assert "products take 1.500 times as long, other ops 0.750 times, 1.86 GiB less" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("products = 0", "corrections.products = 0: a positive number of times is needed"),
        ("others = 'two'", "corrections.others = 'two' is no number"),
        ("all = 2", "corrections.all is no key here"),
    ],
)
def test_corrections_that_cannot_be_are_refused(line: str, said: str):
    with pytest.raises(ClusterError, match=said):
        parse_toml(f'base = "v5e:4x4"\n[corrections]\n{line}\n', "wrong.toml")


@pytest.mark.parametrize("corrections", [Corrections(products=0.0), Corrections(others=-1.0)])
def test_a_cluster_has_no_costs_of_nothing(corrections: Corrections):
    with pytest.raises(ClusterError, match="a positive number of times is needed"):
        replace(Cluster.parse("v5e:4x4"), corrections=corrections)


def test_what_is_needed_besides_is_left_free():
    plain = Cluster.parse("h100:8")
    usable = plain.usable_memory_bytes
    more = replace(plain, corrections=Corrections(memory_bytes=2e9))
    assert memory_limit_of(plain, "") == pytest.approx(0.92 * usable)
    assert memory_limit_of(more, "") == pytest.approx(0.99 * usable - 2e9)
    assert memory_limit_of(more, "10GB") == 8e9
    assert memory_limit_of(more, "1GB") == 1.0
    assert user_limit("10GB") == 1e10
    assert user_limit("") == float("inf")
