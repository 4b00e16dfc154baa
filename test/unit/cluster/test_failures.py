"""What is left of a cluster when parts of it fail."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.cluster.failures import remaining
from autoshard.errors import ClusterError


@pytest.mark.parametrize(
    ("name", "failures", "left"),
    [
        ("v5p:2x2x2*3", 2, ["v5p:2x2x2*3", "v5p:2x2x2*2", "v5p:2x2x2"]),
        ("v5e:1x4*2", 1, ["v5e:1x4*2", "v5e:1x4"]),
        ("h100:4x8", 1, ["h100:4x8", "h100:3x8"]),
        ("cpu:3x2", 2, ["cpu:3x2", "cpu:2x2", "cpu:2"]),
        ("cpu:2x8", 0, ["cpu:2x8"]),
    ],
)
def test_slices_and_nodes_fail_one_after_the_other(
    name: str, failures: int, left: list[str]
) -> None:
    whole = Cluster.parse(name)
    found = list(remaining(whole, failures))
    assert [one.cluster for one in found] == [Cluster.parse(each) for each in left]
    assert [one.count for one in found] == list(
        range(whole.dims[0].size, whole.dims[0].size - failures - 1, -1)
    )


def test_a_cluster_of_a_file_keeps_its_numbers() -> None:
    named = Cluster.parse("h100:3x2")
    file = Cluster("racks", named.chip, named.dims)
    _, two, one = (each.cluster for each in remaining(file, 2))
    assert (two.name, two.num_devices) == ("racks, 2 of node", 4)
    assert (two.dims[0].bandwidth, two.chip) == (named.dims[0].bandwidth, named.chip)
    assert one.dims == named.dims[1:]


@pytest.mark.parametrize(
    ("name", "failures", "said"),
    [
        ("v5e:4x4", 1, r"v5e:4x4 is one slice or node: nothing is left"),
        ("h100:1", 1, r"is one slice or node"),
        ("h100:4x8", 4, r"4 failures of h100:4x8: it has 4 parts of dim node.* Give 0 to 3\."),
        ("h100:4x8", -1, r"-1 failures"),
    ],
)
def test_what_leaves_nothing_is_refused(name: str, failures: int, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        list(remaining(Cluster.parse(name), failures))
