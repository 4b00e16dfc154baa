"""The bound of an op is the term of the cost model's formula that its seconds are."""

from __future__ import annotations

import pytest

from autoshard import _core
from autoshard.cluster import Cluster
from autoshard.explain.bound import Bound, bound_of, roofline_seconds

CHIP = Cluster.of("v5e:4x4").chip
RATE = CHIP.memory_bandwidth.value * CHIP.memory_efficiency.value
LAUNCH = CHIP.launch_seconds.value
SIZE = 1e9


def rule(work: _core.Work, flops: float = 0.0) -> _core.Rule:
    return _core.Rule([], [], [], work=work, arithmetic=_core.Arithmetic.F16, flops=flops)


@pytest.mark.parametrize(
    ("work", "seconds", "packed", "bound"),
    [
        (_core.Work.ELEMENTWISE, SIZE / RATE, 0.0, Bound.MEMORY),
        (_core.Work.ELEMENTWISE, 2 * SIZE / RATE, 0.0, Bound.VECTOR),
        (_core.Work.MATMUL, 2 * SIZE / RATE, 0.0, Bound.MATRIX),
        (_core.Work.MATMUL, 1.5 * SIZE / RATE, SIZE / 2, Bound.MEMORY),
        (_core.Work.REDUCE, 3 * SIZE / RATE, SIZE * 2, Bound.VECTOR),
    ],
)
def test_what_the_seconds_are_spent_on(work, seconds, packed, bound):
    assert bound_of(rule(work), CHIP, seconds + LAUNCH, SIZE, packed) is bound


def test_a_small_op_is_its_launch():
    assert bound_of(rule(_core.Work.MATMUL), CHIP, LAUNCH * 1.5, 8.0, 0.0) is Bound.LAUNCH


def test_the_roofline_is_the_larger_of_compute_and_memory_at_the_peak():
    matmul = rule(_core.Work.MATMUL, flops=1e15)
    compute = 1e15 / 16 / CHIP.matmul_f16.value
    memory = SIZE / CHIP.memory_bandwidth.value
    assert roofline_seconds(matmul, CHIP, 16, SIZE) == pytest.approx(max(compute, memory))
    assert roofline_seconds(matmul, CHIP, 16, 1000 * SIZE) == pytest.approx(1000 * memory)
