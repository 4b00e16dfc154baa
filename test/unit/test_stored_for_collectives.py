"""Memory that depends on the plan: what collectives make, and what a ring of matmuls reads."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import RecursiveProgramming, search_module
from autoshard.report.plan_summary import PlanSummary

MIB = 2**20
CUT = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
WHOLE = "{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}"


def planned(text: str, rows: int = 8192) -> PlanSummary:
    for name, value in (("CUT", CUT), ("WHOLE", WHOLE), ("ROWS", str(rows))):
        text = text.replace(name, value)
    module = parse_bytes(text.encode(), new_context(), "step")
    return search_module(
        module, Cluster.parse("v5p:2x2x2"), RecursiveProgramming(mesh="x=8")
    ).summary


LAYER = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx1024xbf16> CUT, %dy: tensor<ROWSx2048xbf16> CUT,
    %w: tensor<1024x2048xbf16> WHOLE)
    -> (tensor<ROWSx2048xbf16> CUT, tensor<1024x2048xbf16> CUT) {
  %h = stablehlo.tanh %x : tensor<ROWSx1024xbf16>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0]
      : (tensor<ROWSx1024xbf16>, tensor<1024x2048xbf16>) -> tensor<ROWSx2048xbf16>
  %dw = stablehlo.dot_general %h, %dy, contracting_dims = [0] x [0]
      : (tensor<ROWSx1024xbf16>, tensor<ROWSx2048xbf16>) -> tensor<1024x2048xbf16>
  return %y, %dw : tensor<ROWSx2048xbf16>, tensor<1024x2048xbf16>
}
"""
"""Both products compute ``h`` themselves, unless the second one is a ring."""


@pytest.mark.parametrize(("rows", "is_ring"), [(8 * 16384, True), (8 * 256, False)])
def test_a_ring_of_matmuls_reads_stored_operands(rows: int, is_ring: bool) -> None:
    found = planned(LAYER, rows=rows)
    (kind,) = {each.kind for each in found.collectives}
    assert kind == ("reduce-scatter" if is_ring else "all-reduce")
    share = rows // 8
    arguments_and_results = share * (1024 + 2048 + 2048) * 2 + 4 * MIB + MIB // 2
    partial_sum = 4 * MIB
    # h from the first product to the second, and a copy of it in another layout
    stored = 2 * share * 1024 * 2 if is_ring else 0
    expected = arguments_and_results + partial_sum + stored
    assert found.peak_bytes_per_device == pytest.approx(expected)


GATHERED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<ROWSx1024xf32> CUT, %w: tensor<1024x1024xf32> CUT)
    -> (tensor<ROWSx1024xf32> CUT) {
  %c = stablehlo.convert %w : (tensor<1024x1024xf32>) -> tensor<1024x1024xbf16>
  %b = stablehlo.convert %x : (tensor<ROWSx1024xf32>) -> tensor<ROWSx1024xbf16>
  %y = stablehlo.dot_general %b, %c, contracting_dims = [1] x [0]
      : (tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>) -> tensor<ROWSx1024xbf16>
  %z = stablehlo.dot_general %y, %c, contracting_dims = [1] x [1]
      : (tensor<ROWSx1024xbf16>, tensor<1024x1024xbf16>) -> tensor<ROWSx1024xf32>
  return %z : tensor<ROWSx1024xf32>
}
"""
"""Both products could convert the weight themselves, if it were not gathered in between."""


def test_a_gathered_value_is_stored_though_its_readers_could_compute_it() -> None:
    found = planned(GATHERED)
    (gather,) = found.collectives
    assert (gather.kind, gather.bytes) == ("all-gather", 7 / 8 * 2 * MIB)
    # x and z in float32, a shard of w; y and the gathered weight in bfloat16
    expected = (4 + 4 + 0.5 + 2 + 2) * MIB
    assert found.peak_bytes_per_device == pytest.approx(expected)


UPDATED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<2048x1023xf32> CUT, %dy: tensor<2048x2047xf32> CUT,
    %m: tensor<1023x2047xf32> {tf.aliasing_output = 0 : i32},
    %n: tensor<1023x2047xf32> {tf.aliasing_output = 1 : i32})
    -> (tensor<1023x2047xf32>, tensor<1023x2047xf32>) {
  PRODUCT
  %a = stablehlo.add %m, %g : tensor<1023x2047xf32>
  %b = stablehlo.subtract %n, %g : tensor<1023x2047xf32>
  return %a, %b : tensor<1023x2047xf32>, tensor<1023x2047xf32>
}
"""
"""The gradient of a weight, and two states that it changes; of odd sizes, so that none is cut."""

TRANSPOSED = """%d = stablehlo.dot_general %dy, %x, contracting_dims = [0] x [0]
      : (tensor<2048x2047xf32>, tensor<2048x1023xf32>) -> tensor<2047x1023xf32>
  %g = stablehlo.transpose %d, dims = [1, 0] : (tensor<2047x1023xf32>) -> tensor<1023x2047xf32>"""
STRAIGHT = """%g = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
      : (tensor<2048x1023xf32>, tensor<2048x2047xf32>) -> tensor<1023x2047xf32>"""


@pytest.mark.parametrize(("product", "copies"), [(TRANSPOSED, 2), (STRAIGHT, 0)])
def test_a_gradient_that_is_reduced_in_its_own_order_changes_copies(
    product: str, copies: int
) -> None:
    found = planned(UPDATED.replace("PRODUCT", product))
    assert {each.kind for each in found.collectives} == {"all-reduce"}
    batch, state = 256 * (1023 + 2047) * 4, 1023 * 2047 * 4
    expected = batch + 2 * state + state + copies * state
    assert found.peak_bytes_per_device == pytest.approx(expected)
