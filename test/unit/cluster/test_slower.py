"""Slices and nodes of unlike speed: a cluster as its slowest part."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from autoshard.cluster import Cluster
from autoshard.errors import ClusterError

SLOW = """
base = "h100:4x8"
[[slower]]
dim = "node"
numbers = [3]
compute = 0.7
memory_bytes = 0.9
bandwidth = { gpu = 0.5 }
[[slower]]
dim = "node"
numbers = [0, 1]
compute = 0.8
bandwidth = { node = 0.25 }
"""


def test_a_cluster_is_planned_as_its_slowest_parts(tmp_path: Path, caplog) -> None:
    path = tmp_path / "mixed.toml"
    path.write_text(SLOW)
    with caplog.at_level("INFO", logger="autoshard"):
        cluster = Cluster.of(path)
    assert "planned as its slowest part: node 3, node 0, 1" in caplog.text
    plain = Cluster.parse("h100:4x8")
    chip, (node, gpu) = cluster.chip, cluster.dims
    assert chip.matmul_f16.value == 0.7 * plain.chip.matmul_f16.value
    assert chip.vector_flops.value == 0.7 * plain.chip.vector_flops.value
    assert chip.memory_bytes.value == 0.9 * plain.chip.memory_bytes.value
    assert chip.memory_bandwidth == plain.chip.memory_bandwidth
    assert node.bandwidth.value == 0.25 * plain.dims[0].bandwidth.value
    assert gpu.bandwidth.value == 0.5 * plain.dims[1].bandwidth.value
    assert "the slowest, node 3: 0.7 of" in chip.matmul_f16.source
    assert "the slowest, node 0, 1: 0.25 of" in node.bandwidth.source
    assert str(cluster.compiler) == str(plain.compiler)
    again = tmp_path / "again.toml"
    again.write_text(cluster.to_toml())
    assert Cluster.of(again) == cluster


def test_the_file_of_the_documentation_is_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "use" / "clusters.md"
    text = next(part for part in page.read_text().split("```") if "[[slower]]\ndim" in part)
    path = tmp_path / "slower.toml"
    path.write_text(text.removeprefix("toml\n"))
    cluster = Cluster.of(path)
    plain = Cluster.parse("h100:4x8")
    assert cluster.chip.matmul_f16.value == 0.8 * plain.chip.matmul_f16.value
    assert cluster.dims[0].bandwidth.value == 0.5 * plain.dims[0].bandwidth.value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('dim = "rack"\nnumbers = [0]\ncompute = 0.5', r"slower\[0\]\.dim = 'rack' is no dim"),
        ('dim = "node"\nnumbers = [4]\ncompute = 0.5', r"does not say which\. Give some of 0 to 3"),
        ('dim = "node"\ncompute = 0.5', "numbers = None does not say which"),
        ('dim = "node"\nnumbers = [0]', "nothing is less. Give compute, memory_bandwidth"),
        ('dim = "node"\nnumbers = [0]\ncompute = 1.5', r"= 1\.5 is no share.* at most 1"),
        ('dim = "node"\nnumbers = [0]\nflops = 1', "flops is no key here"),
        ('dim = "node"\nnumbers = [0]\nbandwidth = { x = 0.5 }', r"bandwidth\.x is no key here"),
    ],
)
def test_a_bad_slower_part_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(f'base = "h100:4x8"\n[[slower]]\n{text}\n')
    with pytest.raises(ClusterError, match=said):
        Cluster.of(path)


NODES, DEVICES = 3, 4
Shares = Mapping[str, Mapping[int, float]]


def step_seconds(program: list[tuple[str, float]], shares: Shares) -> float:
    """The last device's clock: each op waits for all devices that take part.

    ``compute`` runs on each device, ``gpu`` among those of each node, ``node`` among all nodes.
    ``shares`` tells what a node has of the speed of the others.
    """
    clocks = np.zeros((NODES, DEVICES))
    for kind, seconds in program:
        took = np.array([seconds / shares[kind].get(node, 1.0) for node in range(NODES)])
        if kind == "compute":
            clocks += took[:, None]
        elif kind == "gpu":
            clocks[:] = (clocks.max(axis=1) + took)[:, None]
        else:
            clocks[:] = clocks.max(axis=0) + took.max()
    return float(clocks.max())


def programs(count: int) -> list[list[tuple[str, float]]]:
    chance = random.Random(7)
    kinds = ("compute", "gpu", "node")
    return [
        [(chance.choice(kinds), float(chance.randint(1, 9))) for _ in range(20)]
        for _ in range(count)
    ]


def as_slowest(shares: Shares) -> Shares:
    return {
        kind: dict.fromkeys(range(NODES), min(some.values(), default=1.0))
        for kind, some in shares.items()
    }


def test_a_step_takes_as_long_as_on_nodes_that_are_all_as_the_slowest() -> None:
    slow: Shares = {"compute": {1: 0.5}, "gpu": {1: 0.25}, "node": {1: 0.5}}
    for program in programs(50):
        assert step_seconds(program, slow) == step_seconds(program, as_slowest(slow))


def test_and_at_most_so_long_where_nodes_are_slow_in_different_things() -> None:
    slow: Shares = {"compute": {1: 0.5}, "gpu": {2: 0.25}, "node": {}}
    found = [(step_seconds(one, slow), step_seconds(one, as_slowest(slow))) for one in programs(50)]
    assert all(some <= most for some, most in found)
    assert any(some < most for some, most in found)
