"""The mesh of all stages of a pipeline in lockstep."""

from __future__ import annotations

from autoshard.rewrites.lockstep.export import with_stages
from autoshard.sharding import Mesh


def test_stages_are_a_first_axis_under_a_name_of_their_own() -> None:
    assert str(with_stages(Mesh.parse("stage=2,data=3"), 2)) == "stage_=2,stage=2,data=3"


def test_devices_of_a_stage_keep_their_order() -> None:
    mesh = Mesh(Mesh.parse("data=4").axes, (2, 3, 0, 1))
    assert with_stages(mesh, 2).device_ids == (2, 3, 0, 1, 6, 7, 4, 5)
