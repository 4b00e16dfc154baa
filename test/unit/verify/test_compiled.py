"""Differences between a plan and what was compiled."""

from __future__ import annotations

from autoshard.planned.collective import Collective, CollectiveKind
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import AxisRef
from autoshard.verify.compiled import (
    as_on_cpu,
    collective_differences,
    differences_from_readings,
)

MESH = Mesh.parse("dp=2,tp=4")
DP, TP = (AxisRef("dp"),), (AxisRef("tp"),)


def all_reduce(local_bytes: float, place: str | None = None) -> Collective:
    return Collective(CollectiveKind.ALL_REDUCE, TP, 4, local_bytes, place=place)


def all_gather(local_bytes: float) -> Collective:
    return Collective(CollectiveKind.ALL_GATHER, DP, 2, local_bytes)


def test_combined_collectives_are_no_difference() -> None:
    assert collective_differences([all_reduce(64), all_reduce(64)], [all_reduce(128)]) == []


def test_fewer_bytes_are_no_difference() -> None:
    assert collective_differences([all_reduce(64), all_gather(8)], [all_reduce(64)]) == []


def test_more_bytes_name_the_axes_and_the_source() -> None:
    found = collective_differences(
        [all_reduce(64), all_gather(8)], [all_reduce(64), all_reduce(256, "model.py:7")]
    )
    assert found == [
        "over axes tp each device sends 480 bytes, planned are 96: all-reduce over tp: 384 bytes "
        "(model.py:7); all-reduce over tp: 96 bytes."
    ]


def test_the_cpu_compiler_reduces_to_all() -> None:
    planned = [Collective(CollectiveKind.REDUCE_SCATTER, TP, 4, 64)]
    assert collective_differences(planned, [all_reduce(64)])
    assert collective_differences(as_on_cpu(planned), [all_reduce(64)]) == []


def test_the_cpu_compiler_sends_bf16_as_f32() -> None:
    planned = [Collective(CollectiveKind.ALL_REDUCE, TP, 4, 64, element="bf16")]
    assert collective_differences(as_on_cpu(planned), [all_reduce(128)]) == []


def test_one_reading_of_the_plan_is_enough() -> None:
    shardys, searchs = [all_gather(8)], [all_reduce(64)]
    compiled = [all_reduce(64)]
    assert (
        differences_from_readings([lambda: shardys, lambda: searchs], compiled, MESH, on_cpu=False)
        == []
    )
    found = differences_from_readings([lambda: shardys], compiled, MESH, on_cpu=False)
    assert found == collective_differences(shardys, compiled)
    assert found


def test_what_a_compiler_adds_is_asked_only_where_more_is_sent() -> None:
    shardys, compiled = [all_gather(8)], [all_reduce(64)]
    asked: list[str] = []

    def extra() -> list[Collective]:
        asked.append("now")
        return [all_reduce(64)]

    def differences(planned: list[Collective]) -> list[str]:
        readings = [lambda: shardys, lambda: planned]
        return differences_from_readings(readings, compiled, MESH, on_cpu=False, besides=extra)

    assert differences([all_reduce(64)]) == []
    assert not asked
    assert differences([all_gather(8)]) == []
    assert asked


def test_a_sum_over_several_axes_may_be_made_axis_by_axis() -> None:
    planned = [Collective(CollectiveKind.ALL_REDUCE, (*DP, *TP), 8, 64)]
    compiled = [
        Collective(CollectiveKind.ALL_REDUCE, DP, 2, 64),
        Collective(CollectiveKind.ALL_REDUCE, TP, 4, 64),
    ]
    assert collective_differences(planned, compiled)
    assert differences_from_readings([lambda: planned], compiled, MESH, on_cpu=False) == []


def test_the_dearer_reading_is_not_taken_where_another_one_agrees() -> None:
    one = all_reduce(64)

    def dear() -> list[Collective]:
        raise AssertionError

    assert differences_from_readings([dear, lambda: [one]], [one], MESH, on_cpu=False) == []
