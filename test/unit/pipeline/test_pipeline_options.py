import pytest

import autoshard
from autoshard.pipeline.options import Pipeline, cluster_of_a_stage


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stages": 4, "micro_batches": 2}, "Give as many micro-batches as stages, or more"),
        ({"stages": 1, "micro_batches": 2}, "is no pipeline"),
        ({"stages": 2.0, "micro_batches": 2}, r"stages=2\.0\): give 1 or more"),
        ({"stages": 2, "micro_batches": 4, "schedule": "dual"}, "'dual'\\) is not known"),
        ({"stages": 2, "micro_batches": 4, "chunks": 2}, "chunks=2\\) is not supported"),
        ({"stages": 2, "micro_batches": 4, "interleave": 2}, "interleave=2\\) is not supported"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(autoshard.PlanError, match=said):
        Pipeline(**options)


@pytest.mark.parametrize(
    ("name", "stages", "sizes"),
    [("h100:4x8", 2, [2, 8]), ("h100:4x8", 4, [8]), ("h100:4x8", 8, [4]), ("cpu:8", 8, [])],
)
def test_a_stage_gets_a_part_of_the_slowest_dim(name, stages, sizes):
    stage = cluster_of_a_stage(autoshard.Cluster.parse(name), stages)
    assert [dim.size for dim in stage.dims] == sizes
    assert stage.num_devices * stages == autoshard.Cluster.parse(name).num_devices


def test_stages_of_unequal_devices_are_refused():
    with pytest.raises(autoshard.PlanError, match=r"32 devices .*\(4 x 8\) do not fall on 3"):
        cluster_of_a_stage(autoshard.Cluster.parse("h100:4x8"), 3)
