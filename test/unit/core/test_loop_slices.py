"""A slice that a loop begins with is stored: it takes what it takes to read and to write it."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.planned.given_plan import cost_of_module
from planned_text import planned_module

MESH = "data=4"
CLUSTER = Cluster.parse("h100:4")
SIZE = 1024
CUT, WHOLE = "[{data}, {}]", "[{}, {}]"

LOOP = """
func.func public @main(%w: tensor<1024x1024xf32> $(GIVEN)) -> (tensor<1024x1024xf32> $(BEHIND)) {
  %first = stablehlo.constant $([]) dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%m = %first, %v = %w) : tensor<i32>, tensor<1024x1024xf32>
      attributes $([], INSIDE)
  cond {
    %trips = stablehlo.constant $([]) dense<5> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips $([]) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %i1 = stablehlo.constant $([]) dense<1> : tensor<i32>
    %next = stablehlo.add %m, %i1 $([]) : tensor<i32>
    %u = stablehlo.tanh %v $(INSIDE -> INSIDE) : tensor<1024x1024xf32>
    stablehlo.return %next, %u : tensor<i32>, tensor<1024x1024xf32>
  }
  return %r#1 : tensor<1024x1024xf32>
}
"""


def compute_seconds(given: str, inside: str) -> float:
    text = LOOP.replace("GIVEN", given).replace("INSIDE", inside).replace("BEHIND", inside)
    return cost_of_module(planned_module(text, MESH), CLUSTER).plan.compute_seconds


def test_a_slice_that_a_loop_begins_with_is_read_and_written_once() -> None:
    chip = CLUSTER.chip
    bytes_ = 4 * SIZE * SIZE / 4
    rate = chip.memory_bandwidth.value * chip.memory_efficiency.value
    launch = 0.05 * chip.launch_seconds.value
    more = compute_seconds(WHOLE, CUT) - compute_seconds(CUT, CUT)
    assert more == pytest.approx(2 * bytes_ / rate + launch, rel=1e-6)


def test_what_a_loop_begins_with_gathered_is_no_slice() -> None:
    assert compute_seconds(CUT, WHOLE) == pytest.approx(compute_seconds(WHOLE, WHOLE))
