"""Devices of a cluster on stages: the slowest dim is cut first."""

import pytest

import autoshard
from autoshard.cluster.stages import cluster_of_a_stage, numbers_of_stages


@pytest.mark.parametrize(
    ("name", "stages", "sizes"),
    [("h100:4x8", 2, [2, 8]), ("h100:4x8", 4, [8]), ("h100:4x8", 8, [4]), ("cpu:8", 8, [])],
)
def test_a_stage_gets_a_part_of_the_slowest_dim(name, stages, sizes):
    whole = autoshard.Cluster.parse(name)
    stage = cluster_of_a_stage(whole, stages)
    assert [dim.size for dim in stage.dims] == sizes
    assert stage.num_devices * stages == whole.num_devices


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("h100:3x8", [3, 6, 12, 24]), ("h100:4x8", [2, 4, 8, 16, 32]), ("cpu:6", [2, 3, 6])],
)
def test_numbers_of_stages_are_those_that_are_taken(name, numbers):
    cluster = autoshard.Cluster.parse(name)
    assert numbers_of_stages(cluster) == numbers
    for count in range(2, cluster.num_devices + 1):
        if count not in numbers:
            with pytest.raises(autoshard.PlanError, match="do not fall"):
                cluster_of_a_stage(cluster, count)


def test_the_error_lists_what_works():
    # 4 divides 24 devices, but neither 3 nodes nor what is left of them.
    with pytest.raises(
        autoshard.PlanError,
        match=r"24 devices of cluster h100:3x8 \(3 x 8\) do not .* one of 3, 6, 12, 24 stages",
    ):
        cluster_of_a_stage(autoshard.Cluster.parse("h100:3x8"), 4)
    with pytest.raises(autoshard.PlanError, match="Give a cluster of two devices or more"):
        cluster_of_a_stage(autoshard.Cluster.parse("cpu:1"), 2)
