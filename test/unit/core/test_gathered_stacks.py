"""Stacks whose slices are gathered along another dim than their first."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.planned.given_plan import cost_of_module
from planned_text import planned_module

ROWS, COLUMNS = "[{}, {data}, {}]", "[{}, {}, {data}]"

LOOP = """
func.func public @main(%w: STACK $(HELD), %x: TYPE $([{data}, {}])) -> (TYPE $([{data}, {}])) {
  %first = stablehlo.constant $([]) dense<0> : tensor<i32>
  %r:3 = stablehlo.while(%m = %first, %v = %w, %y = %x) : tensor<i32>, STACK, TYPE
      attributes $([], HELD, [{data}, {}])
  cond {
    %trips = stablehlo.constant $([]) dense<8> : tensor<i32>
    %go = stablehlo.compare LT, %m, %trips $([]) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %i1 = stablehlo.constant $([]) dense<1> : tensor<i32>
    %i0 = stablehlo.constant $([]) dense<0> : tensor<i32>
    %next = stablehlo.add %m, %i1 $([]) : tensor<i32>
    %s = stablehlo.dynamic_slice %v, %m, %i0, %i0, sizes = [1, 1024, 1024]
        $(HELD, [], [], [] -> HELD)
        : (STACK, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1024x1024xf32>
    %l = stablehlo.reshape %s $(HELD -> SLICE) : (tensor<1x1024x1024xf32>) -> TYPE
    %z = stablehlo.dot_general %y, %l, contracting_dims = [1] x [0]
        $([{data}, {}], [{}, {}] -> [{data}, {}]) : (TYPE, TYPE) -> TYPE
    stablehlo.return %next, %v, %z : tensor<i32>, STACK, TYPE
  }
  return %r#2 : TYPE
}
""".replace("TYPE", "tensor<1024x1024xf32>").replace("STACK", "tensor<8x1024x1024xf32>")


@pytest.mark.parametrize(("cluster", "copies"), [("h100:4", 1), ("v5p:2x2x1", 0)])
def test_columns_that_are_gathered_are_kept_transposed(cluster: str, copies: int) -> None:
    peaks = []
    for held in (ROWS, COLUMNS):
        text = LOOP.replace("HELD", held).replace("SLICE", held.replace("[{}, ", "[", 1))
        module = planned_module(text, "data=4")
        peaks.append(cost_of_module(module, Cluster.parse(cluster)).plan.peak_bytes)
    assert peaks[1] - peaks[0] == copies * 8 * 1024 * 1024 * 4 / 4
