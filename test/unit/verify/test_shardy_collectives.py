"""Collectives by Shardy's own passes; bytes worked out by hand."""

from __future__ import annotations

from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.passes.export_shardy import ExportShardy
from autoshard.verify.shardy_collectives import shardy_collectives
from planned_text import planned_module


def planned(text: str) -> list[str]:
    module = planned_module(text)
    ExportShardy().run(module)
    return [str(found).partition(" (")[0] for found in shardy_collectives(module)]


def test_a_split_contraction_is_an_all_reduce() -> None:
    assert planned(
        """
func.func public @main(%x: tensor<16x8xf32> $([{dp}, {tp}]), %w: tensor<8x8xf32> $([{tp}, {}]))
    -> (tensor<16x8xf32> $([{dp}, {}])) {
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      $([{dp}, {tp}], [{tp}, {}] -> [{dp}, {}])
      : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  return %d : tensor<16x8xf32>
}
"""
    ) == ["all-reduce over tp: 384 bytes"]


def test_a_sum_that_is_cut_afterwards_is_a_reduce_scatter() -> None:
    assert planned(
        """
func.func public @main(%x: tensor<16x8xf32> $([{dp}, {tp}]), %w: tensor<8x8xf32> $([{tp}, {}]))
    -> (tensor<16x8xf32> $([{dp}, {tp}])) {
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      $([{dp}, {tp}], [{tp}, {}] -> [{dp}, {}] => [{dp}, {tp}])
      : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  return %d : tensor<16x8xf32>
}
"""
    ) == ["reduce-scatter over tp: 192 bytes"]


def test_a_counted_loop_multiplies() -> None:
    assert planned(
        """
func.func public @main(%x: tensor<16x8xf32> $([{dp}, {}])) -> (tensor<16x8xf32> $([{dp}, {}])) {
  %zero = stablehlo.constant $([]) dense<0> : tensor<i32>
  %one = stablehlo.constant $([]) dense<1> : tensor<i32>
  %end = stablehlo.constant $([]) dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<16x8xf32>
      attributes $([], [{dp}, {}])
  cond {
    %go = stablehlo.compare LT, %i, %end $([], [] -> []) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one $([], [] -> []) : tensor<i32>
    %e = stablehlo.floor %c $([{}, {}] -> [{}, {}]) : tensor<16x8xf32>
    stablehlo.return %n, %e : tensor<i32>, tensor<16x8xf32>
  }
  return %r#1 : tensor<16x8xf32>
}
"""
    ) == ["all-gather over dp: 3 x 256 bytes"]


def test_shardys_own_propagation_is_counted_and_the_module_stays() -> None:
    module = parse_bytes(
        b"""
sdy.mesh @mesh = <["dp"=2, "tp"=4]>
func.func public @main(
    %x: tensor<16x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>},
    %v: tensor<128x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>},
    %w: tensor<512x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<16x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) {
  %h = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0]
      : (tensor<16x128xf32>, tensor<128x512xf32>) -> tensor<16x512xf32>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0]
      : (tensor<16x512xf32>, tensor<512x128xf32>) -> tensor<16x128xf32>
  return %y : tensor<16x128xf32>
}""",
        new_context(),
    )
    before = print_module(module)
    (found,) = shardy_collectives(module)
    assert found.moved_bytes == 2 * 3 / 4 * (8 * 128 * 4)  # Megatron's one all-reduce over tp
    assert print_module(module) == before
