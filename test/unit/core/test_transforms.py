"""Seconds of Fourier transforms that a compiler makes products of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard import _core
from autoshard.cluster import Cluster

V5P = Cluster.of("v5p:2x2x2")
RATE = V5P.chip.memory_bandwidth.value * V5P.chip.memory_efficiency.value
PEAK = V5P.chip.matmul_f16.value * V5P.chip.matmul_efficiency.value
POINT = V5P.compiler.answers["fusion.transform_bytes"]
TRANSPOSED = V5P.compiler.answers["fusion.transposed_bytes"]


def seconds(rows: int, *lengths: int, cut: int = 1, cluster: Cluster = V5P) -> float:
    """A transform of pairs in float32, its rows cut over so many devices."""
    sizes = [rows, *lengths]
    tensor = _core.RuleTensor(0, [[k] for k in range(len(sizes))])
    rule = _core.Rule(
        [_core.Factor(size) for size in sizes],
        [tensor],
        [tensor],
        work=_core.Work.OTHER,
        transforms=[float(length) for length in lengths],
    )
    axes = [[0], *([] for _ in lengths)] if cut > 1 else [[] for _ in sizes]
    mesh = cluster.level_mesh()
    types = [_core.TensorType(sizes, 64)]
    core = cluster.to_core(mesh)
    found = _core.compute(rule, types, axes, [1], [True], core, list(mesh.axis_sizes))
    return found.seconds - cluster.chip.launch_seconds.value


@pytest.mark.parametrize("length", [8, 100, 128])
def test_a_short_transform_is_one_product_that_waits_for_its_points(length) -> None:
    assert seconds(100_000, length) == pytest.approx(POINT * 100_000 * length / RATE)


def test_a_longer_one_multiplies_and_one_that_64_divides_is_two_products() -> None:
    # Three products of six passes; 1,000 points fill 1,024 columns.
    multiplied = 3 * 6 * 2 * 1024 / PEAK
    assert seconds(10_000, 1000) == pytest.approx(multiplied * 1000 * 10_000)
    halves = (2 * (POINT + TRANSPOSED) + 32) / RATE
    assert seconds(10_000, 1024) == pytest.approx(halves * 1024 * 10_000)
    assert seconds(1000, 64, 1024) == pytest.approx((halves + POINT / RATE) * 65536 * 1000)


def test_a_device_transforms_its_rows() -> None:
    cut = V5P.level_mesh().axis_sizes[0]
    assert seconds(8000, 512, cut=cut) == pytest.approx(seconds(8000, 512) / cut)


def test_where_it_is_a_kernel_of_its_own_it_is_read_and_written_once() -> None:
    library = Cluster.of("v5p:2x2x2")
    answers = {**V5P.compiler.answers, "fusion.transform_bytes": 0.0}
    library.__dict__["compiler"] = replace(V5P.compiler, answers=answers)
    taken = seconds(10_000, 1000, cluster=library)
    assert taken == pytest.approx(2 * 8 * 10_000 * 1000 / RATE)
