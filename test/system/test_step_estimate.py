"""Step estimates and matched collectives of what XLA's CPU compiler makes of a plan."""

from __future__ import annotations

import pytest

from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.ir.compile import compile_module
from autoshard.passes.pipeline import run_passes
from autoshard.planned.collective import CollectiveKind
from autoshard.sharding import Mesh, from_hlo
from autoshard.verify.matching import Verdict, match_collectives
from autoshard.verify.rematerialization import read_rematerializations
from autoshard.verify.shardy_collectives import shardy_collectives
from autoshard.verify.step_time import estimate_step

MESH = Mesh.parse("dp=2,tp=4")
CPU = Cluster.parse("cpu:8")

LAYERS = """
sdy.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @main(
    %x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>},
    %u: tensor<6x32x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"tp"}]>},
    %v: tensor<6x128x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}, {}]>})
    -> (tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %six = stablehlo.constant dense<6> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<64x32xf32>
  cond {
    %lt = stablehlo.compare LT, %i, %six : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %lt : tensor<i1>
  } do {
    %a = stablehlo.dynamic_slice %u, %i, %zero, %zero, sizes = [1, 32, 128]
        : (tensor<6x32x128xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x32x128xf32>
    %b = stablehlo.dynamic_slice %v, %i, %zero, %zero, sizes = [1, 128, 32]
        : (tensor<6x128x32xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x128x32xf32>
    %p = stablehlo.reshape %a : (tensor<1x32x128xf32>) -> tensor<32x128xf32>
    %q = stablehlo.reshape %b : (tensor<1x128x32xf32>) -> tensor<128x32xf32>
    %h = stablehlo.dot_general %c, %p, contracting_dims = [1] x [0]
        : (tensor<64x32xf32>, tensor<32x128xf32>) -> tensor<64x128xf32>
    %t = stablehlo.tanh %h : tensor<64x128xf32>
    %y = stablehlo.dot_general %t, %q, contracting_dims = [1] x [0]
        : (tensor<64x128xf32>, tensor<128x32xf32>) -> tensor<64x32xf32>
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %y : tensor<i32>, tensor<64x32xf32>
  }
  return %r#1 : tensor<64x32xf32>
}
"""


def planned(text: str) -> mlir.Module:
    module = parse_bytes(text.encode(), new_context())
    run_passes(module, ["autoshard-import-strategies", "autoshard-sharding-propagation"])
    run_passes(module, ["autoshard-export-shardy"])
    return module


def test_a_compiled_loop_of_layers_is_estimated_and_matched() -> None:
    module = planned(LAYERS)
    predicted = shardy_collectives(module)
    text = compile_module(module).hlo_text()
    found = estimate_step(text, MESH, CPU)
    # Two products of 32x32x32 a device and layer, and 10 operations for each tanh.
    products = 6 * 2 * 2 * 32 * 32 * 32
    tanhs = 6 * 10 * 32 * 32
    assert products + tanhs <= found.flops < 1.01 * (products + tanhs)
    assert found.trips_known
    assert not found.unknown
    # The sum over the contracted dim: 4 KiB over four devices, 6 times.
    (one,) = found.collectives
    assert str(one.collective).startswith("all-reduce over tp: 6 x 6,144 bytes")
    assert one.seconds == pytest.approx(
        min(2 * (3 * 10e-6 + 3072 / 5e9), 4 * 10e-6 + 2 * 4096 / 5e9)
    )
    matching = match_collectives(predicted, text, MESH, CPU)
    assert [row.verdict for row in matching.rows] == [Verdict.AS_PLANNED]
    assert (matching.agreement, matching.byte_error) == (1.0, 0.0)


SCATTERED = """
sdy.mesh @mesh = <["tp"=8]>
func.func @main(
    %x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>},
    %w: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  return %y : tensor<64x16xf32>
}
"""


def test_a_scatter_that_the_cpu_compiler_writes_as_a_reduce_is_known() -> None:
    module = planned(SCATTERED)
    predicted = shardy_collectives(module)
    text = compile_module(module).hlo_text()
    matching = match_collectives(predicted, text, Mesh.parse("tp=8"), CPU)
    (row,) = matching.rows
    assert row.verdict is Verdict.WRITTEN_AS
    assert row.compiled is not None
    assert row.compiled.meant is CollectiveKind.REDUCE_SCATTER
    assert (matching.planned_bytes, matching.compiled_bytes) == (3584, 7168)


REMATERIALIZED = """
sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2]>
func.func @main(
    %x: tensor<24x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"c"}]>})
    -> (tensor<24x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b", "a", "c"}, {}]>}) {
  %y = stablehlo.exponential %x : tensor<24x32xf32>
  return %y : tensor<24x32xf32>
}
"""


def test_the_message_of_this_release_is_read(capfd: pytest.CaptureFixture[str]) -> None:
    compile_module(parse_bytes(REMATERIALIZED.encode(), new_context()))
    (found,) = read_rematerializations(capfd.readouterr().err)
    assert found.type == "f32[12,16]"
    mesh = Mesh.parse("a=2,b=2,c=2")
    assert str(from_hlo(found.before, mesh, 2)) == "[{a}, {c}]"
    assert str(from_hlo(found.after, mesh, 2)) == "[{b, a, c}, {}]"
